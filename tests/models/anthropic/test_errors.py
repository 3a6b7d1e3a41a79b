"""Errors of Anthropic, as errors of ours."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from windlass.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)

from .serving import Server, answer, asked, asking, events, facts, heard, text

INVALID = {"type": "invalid_request_error"}
SPENT = {"error_code": "enforced_spend_limit_reached"}
BODY: list[tuple[int, dict[str, Any], type[ModelError], bool]] = [
    (400, {**INVALID, "message": "max_tokens: too many"}, BadRequest, False),
    (400, {**INVALID, "message": "prompt is too long: 2 tokens > 1 maximum"}, ContextOverflow, False),
    (400, {**INVALID, "message": "input length and `max_tokens` exceed context limit"}, ContextOverflow, False),
    (400, {**INVALID, "message": "Your credit balance is too low to access"}, QuotaExceeded, False),
    (400, {**INVALID, "message": "You have reached your specified API usage limits."}, QuotaExceeded, False),
    (400, {**INVALID, "message": "Output blocked by content filtering policy"}, ContentFiltered, False),
    (401, {"type": "authentication_error", "message": "invalid x-api-key"}, AuthFailed, False),
    (402, {"type": "billing_error", "message": "pay"}, QuotaExceeded, False),
    (403, {"type": "permission_error", "message": "not yours"}, AuthFailed, False),
    (404, {"type": "not_found_error", "message": "model: claude-x"}, ModelNotFound, False),
    (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}, ContextOverflow, False),
    (429, {"type": "rate_limit_error", "message": "slow down"}, RateLimited, True),
    (429, {"type": "rate_limit_error", "message": "no", "details": SPENT}, QuotaExceeded, False),
    (500, {"type": "api_error", "message": "Internal server error"}, ServerError, True),
    (502, {"message": "bad gateway"}, ServerError, True),
    (503, {"message": "away"}, Overloaded, True),
    (504, {"type": "timeout_error", "message": "too slow"}, ModelTimeout, True),
    (529, {"type": "overloaded_error", "message": "Overloaded"}, Overloaded, True),
    (529, {"message": "Overloaded"}, Overloaded, True),
    (418, {"type": "a_new_error", "message": "I am a teapot"}, BadRequest, False),
]  # fmt: skip


@pytest.mark.parametrize(("status", "error", "kind", "retryable"), BODY)
async def test_a_status_becomes_an_error_and_is_asked_for_once(
    status: int, error: dict[str, Any], kind: type[ModelError], retryable: bool
) -> None:
    for streaming in (False, True):
        body = {"type": "error", "error": error, "request_id": "req_body"}
        server = Server(httpx2.Response(status, json=body, headers={"request-id": "req_1"}))
        with pytest.raises(ModelError) as caught:
            await asked(server.model(), streaming=streaming)
        assert facts(caught.value) == (kind, error["message"], status, retryable, "req_1", None)
        assert len(server.requests) == 1


async def test_an_error_of_something_between_us_and_the_vendor_is_one_too() -> None:
    page = Server(httpx2.Response(502, text="<html>Bad Gateway</html>"))
    with pytest.raises(ServerError, match="Bad Gateway") as caught:
        await page.model().reply(asking())
    assert caught.value.retryable
    plain = Server(httpx2.Response(429, json={"message": "Too many tokens"}, headers={"x-amzn-requestid": "aws_1"}))
    with pytest.raises(RateLimited, match=r"^Too many tokens$") as limited:
        await plain.model().reply(asking())
    assert limited.value.request_id == "aws_1"


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_error_of_googles_cloud_may_be_in_a_list(streaming: bool) -> None:
    body = [{"error": {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED"}}]
    with pytest.raises(RateLimited) as caught:
        await asked(Server(httpx2.Response(429, json=body)).model(), streaming=streaming)
    assert facts(caught.value) == (RateLimited, "Quota exceeded", 429, True, None, None)


INSIDE: list[tuple[dict[str, Any], type[ModelError], bool]] = [
    ({"type": "overloaded_error", "message": "m"}, Overloaded, True),
    ({"type": "api_error", "message": "m"}, ServerError, True),
    ({"type": "rate_limit_error", "message": "m"}, RateLimited, True),
    ({"type": "timeout_error", "message": "m"}, ModelTimeout, True),
    ({**INVALID, "message": "m"}, BadRequest, False),
    ({"type": "a_new_error", "message": "m"}, ServerError, True),
    ({"type": "throttlingException", "message": "m"}, RateLimited, True),
    ({"type": "validationException", "message": "m: Input is too long"}, ContextOverflow, False),
]


@pytest.mark.parametrize(("error", "kind", "retryable"), INSIDE)
async def test_an_error_inside_a_stream_is_an_error(
    error: dict[str, Any], kind: type[ModelError], retryable: bool
) -> None:
    event = {"type": "error", "error": error, "request_id": "req_1"}
    body = events({"type": "message_start", "message": answer()}, *text(0, "Hi"), event)
    unnamed = body.replace(b"event: error", b"event: message")
    for told in (body, unnamed):
        with pytest.raises(ModelError, match=r"^m") as caught:
            await heard(Server(told).model(), asking())
        assert type(caught.value) is kind
        assert (caught.value.retryable, caught.value.request_id) == (retryable, "req_1")


async def test_an_error_inside_an_answer_that_is_fine_is_an_error() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    with pytest.raises(Overloaded, match="busy"):
        await Server(body).model().reply(asking())
    with pytest.raises(Overloaded, match="busy"):
        await heard(Server(body).model(), asking())


async def test_a_break_is_reported_with_the_id_of_the_request() -> None:
    begun = events({"type": "message_start", "message": answer()})
    headers = {"content-type": "text/event-stream", "request-id": "req_1"}
    with pytest.raises(ConnectionFailed, match="before the reply did") as caught:
        await heard(Server(httpx2.Response(200, headers=headers, content=begun)).model(), asking())
    assert caught.value.request_id == "req_1"
