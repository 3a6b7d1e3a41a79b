"""Errors of OpenAI and its like, as errors of ours."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from windlass.errors import (
    AuthFailed,
    BadReply,
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
from windlass.models.openai import OpenAIChat, OpenAIResponses

from .serving import Server, asking, events, heard

STATUSES: list[tuple[int, dict[str, Any], type[ModelError], bool]] = [
    (400, {"message": "bad"}, BadRequest, False),
    (400, {"message": "x", "code": "context_length_exceeded"}, ContextOverflow, False),
    (400, {"message": "This model's maximum context length is 10 tokens"}, ContextOverflow, False),
    (400, {"message": "x", "type": "exceed_context_size_error"}, ContextOverflow, False),
    (400, {"message": "x", "code": "content_filter"}, ContentFiltered, False),
    (400, {"message": "x", "code": "tool_use_failed"}, BadRequest, True),
    (401, {"message": "x", "code": "invalid_api_key"}, AuthFailed, False),
    (402, {"message": "x"}, QuotaExceeded, False),
    (403, {"message": "x"}, AuthFailed, False),
    (404, {"message": "x", "code": "model_not_found"}, ModelNotFound, False),
    (408, {"message": "x"}, ModelTimeout, True),
    (422, {"message": "x"}, BadRequest, False),
    (429, {"message": "x", "type": "tokens"}, RateLimited, True),
    (429, {"message": "x", "code": "insufficient_quota"}, QuotaExceeded, False),
    (500, {"message": "x", "type": "invalid_request_error"}, ServerError, True),
    (502, {"message": "x"}, ServerError, True),
    (503, {"message": "x"}, Overloaded, True),
    (529, {"message": "x"}, Overloaded, True),
]


@pytest.mark.parametrize(("status", "error", "kind", "retryable"), STATUSES)
@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses])
async def test_a_status_becomes_an_error_and_is_asked_for_once(
    adapter: Any, status: int, error: dict[str, Any], kind: type[ModelError], retryable: bool
) -> None:
    for streaming in (False, True):
        server = Server(httpx2.Response(status, json={"error": error}, headers={"x-request-id": "req_1"}))
        model = adapter("gpt-x", client=server.client)
        with pytest.raises(ModelError) as caught:
            await (heard(model, asking()) if streaming else model.reply(asking()))
        assert type(caught.value) is kind
        assert str(caught.value) == error["message"]
        facts = (caught.value.status, caught.value.retryable, caught.value.request_id, caught.value.retry_after)
        assert facts == (status, retryable, "req_1", None)
        assert len(server.requests) == 1


WAITS = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    ({"retry-after": "Mon, 16 Nov 2026 00:00:30 GMT", "date": "Mon, 16 Nov 2026 00:00:00 GMT"}, 30.0),
    ({"retry-after": "Mon, 16 Nov 2020 00:00:30 GMT"}, 0.0),
    ({"retry-after": "soon"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), WAITS)
async def test_a_server_says_in_many_ways_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    server = Server(httpx2.Response(429, json={"error": {"message": "slow"}}, headers=headers))
    with pytest.raises(RateLimited) as caught:
        await OpenAIChat("gpt-x", client=server.client).reply(asking())
    assert caught.value.retry_after == seconds


NETWORK = [
    (httpx2.ConnectError("refused"), ConnectionFailed),
    (httpx2.ReadTimeout("slow"), ModelTimeout),
    (httpx2.ConnectTimeout("slow"), ModelTimeout),
]


@pytest.mark.parametrize(("error", "kind"), NETWORK)
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_network_that_fails_can_be_tried_again(
    error: Exception, kind: type[ModelError], streaming: bool
) -> None:
    model = OpenAIChat("gpt-x", client=Server(error).client)
    with pytest.raises(kind) as caught:
        await (heard(model, asking()) if streaming else model.reply(asking()))
    assert caught.value.retryable


INSIDE: list[tuple[dict[str, Any], type[ModelError]]] = [
    ({"error": {"message": "m", "type": "server_error"}}, ServerError),
    ({"error": {"message": "m", "code": 429}}, RateLimited),
    ({"error": {"message": "m", "code": 502, "metadata": {"raw": "up"}}}, ServerError),
    ({"error": {"message": "m", "type": "overloaded_error"}}, Overloaded),
    ({"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "m", "code": 503}}]}, Overloaded),
]


@pytest.mark.parametrize(("event", "kind"), INSIDE)
async def test_an_error_inside_a_stream_is_an_error(event: dict[str, Any], kind: type[ModelError]) -> None:
    start = {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
    with pytest.raises(ModelError, match="m") as caught:
        await heard(OpenAIChat("gpt-x", client=Server(events(start, event)).client), asking())
    assert type(caught.value) is kind
    assert caught.value.retryable


async def test_an_error_inside_an_answer_is_an_error() -> None:
    server = Server({"error": {"message": "Provider returned error", "code": 503, "metadata": {"raw": "busy"}}})
    with pytest.raises(Overloaded, match="Provider returned error: busy"):
        await OpenAIChat("gpt-x", client=server.client).reply(asking())


async def test_an_answer_that_is_no_json_is_a_bad_reply() -> None:
    server = Server(httpx2.Response(200, content=b'{"id": ', headers={"content-type": "application/json"}))
    with pytest.raises(BadReply, match="no JSON"):
        await OpenAIChat("gpt-x", client=server.client).reply(asking())
