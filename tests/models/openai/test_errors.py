"""Errors of OpenAI and its like, as errors of ours."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from windlass.errors import (
    AuthFailed,
    BadReply,
    BadRequest,
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

from .serving import Server, asked, asking, events, facts, heard

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
    (403, {"message": "x", "metadata": {"reasons": ["hate"], "flagged_input": "y"}}, ContentFiltered, False),
    (409, {"message": "x"}, ServerError, True),
    (413, {"message": "x"}, ContextOverflow, False),
    (429, {"message": "x", "type": "tokens"}, RateLimited, True),
    (429, {"message": "x", "code": "billing_not_active"}, QuotaExceeded, False),
    (498, {"message": "x"}, Overloaded, True),
    (429, {"message": "x", "code": "insufficient_quota"}, QuotaExceeded, False),
    (500, {"message": "x", "type": "invalid_request_error"}, ServerError, True),
    (502, {"message": "x"}, ServerError, True),
    (503, {"message": "x"}, Overloaded, True),
    (504, {"message": "x"}, ModelTimeout, True),
    (520, {"message": "x"}, ServerError, True),
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
            await asked(model, streaming=streaming)
        assert facts(caught.value) == (kind, error["message"], status, retryable, "req_1", None)
        assert len(server.requests) == 1


async def test_a_server_may_say_itself_whether_to_try_again() -> None:
    for advice, kind, retryable in (("false", 429, False), ("true", 400, True)):
        server = Server(httpx2.Response(kind, json={"error": {"message": "m"}}, headers={"x-should-retry": advice}))
        with pytest.raises(ModelError) as caught:
            await OpenAIChat("gpt-x", client=server.client).reply(asking())
        assert caught.value.retryable is retryable


@pytest.mark.parametrize("header", ["x-request-id", "apim-request-id", "mistral-correlation-id", "x-ds-trace-id"])
async def test_a_request_is_found_again_by_what_its_vendor_calls_it(header: str) -> None:
    failed = httpx2.Response(500, json={"error": {"message": "m"}}, headers={"cf-ray": "ray", header: "req_1"})
    with pytest.raises(ServerError) as caught:
        await OpenAIChat("m", client=Server(failed).client).reply(asking())
    assert caught.value.request_id == "req_1"


BODIES = [
    (httpx2.Response(404, json={"error": "model 'x' not found"}), ModelNotFound, "^model 'x' not found$"),
    (httpx2.Response(404, json={"detail": "Not Found"}), ModelNotFound, "^Not Found$"),
    (httpx2.Response(422, json={"detail": [{"msg": "field required"}]}), BadRequest, "field required"),
    (httpx2.Response(400, json={"object": "error", "message": "bad", "code": 400}), BadRequest, "^bad$"),
    (httpx2.Response(502, text="<html>Bad gateway</html>"), ServerError, "Bad gateway"),
    (httpx2.Response(500, content=b""), ServerError, "500"),
    (httpx2.Response(400, json=["odd"]), BadRequest, "odd"),
    (httpx2.Response(404, json=[{"error": {"code": 404, "message": "no model"}}]), ModelNotFound, "^no model$"),
]


@pytest.mark.parametrize(("response", "kind", "message"), BODIES)
async def test_the_message_is_found_wherever_a_server_puts_it(
    response: httpx2.Response, kind: type[ModelError], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        await OpenAIChat("gpt-x", client=Server(response).client).reply(asking())
    assert type(caught.value) is kind


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses])
async def test_json_instead_of_a_stream_is_what_it_says(adapter: Any) -> None:
    flat = httpx2.Response(200, json={"error": {"message": "m", "code": 429}}, headers={"x-request-id": "req_1"})
    with pytest.raises(RateLimited, match="m") as caught:
        await heard(adapter("gpt-x", client=Server(flat).client), asking())
    assert caught.value.request_id == "req_1"
    with pytest.raises(BadReply, match="answered with plain JSON"):
        await heard(adapter("gpt-x", client=Server({"id": "x"}).client), asking())


async def test_an_error_inside_a_stream_says_which_request_it_was() -> None:
    headers = {"content-type": "text/event-stream", "x-request-id": "req_1"}
    for adapter, event in (
        (OpenAIChat, {"error": {"message": "m"}}),
        (OpenAIResponses, {"type": "response.failed", "response": {"error": {"message": "m"}}}),
    ):
        response = httpx2.Response(200, headers=headers, content=events(event))
        with pytest.raises(ModelError, match="m") as caught:
            await heard(adapter("gpt-x", client=Server(response).client), asking())
        assert caught.value.request_id == "req_1"


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
    error = {"message": "Provider returned error", "code": 503, "metadata": {"raw": "busy"}}
    for adapter in (OpenAIChat, OpenAIResponses):
        server = Server(httpx2.Response(200, json={"error": error}, headers={"x-request-id": "req_1"}))
        with pytest.raises(Overloaded, match="Provider returned error: busy") as caught:
            await adapter("gpt-x", client=server.client).reply(asking())
        assert (caught.value.status, caught.value.request_id) == (503, "req_1")


async def test_an_error_inside_a_choice_is_an_error() -> None:
    choice = {"message": {"content": "I wa"}, "finish_reason": "error", "error": {"message": "lost", "code": 502}}
    with pytest.raises(ServerError, match="lost"):
        await OpenAIChat("gpt-x", client=Server({"choices": [choice]}).client).reply(asking())


RESPONSES: list[tuple[Any, type[ModelError], bool]] = [
    ([1], BadReply, True),
    ({"id": "r", "status": "completed"}, BadReply, True),
    ({"status": "queued"}, BadReply, False),
    ({"id": "r", "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "m"}}, RateLimited, True),
    ({"id": "r", "status": "failed", "error": {"code": "invalid_prompt", "message": "m"}}, BadRequest, False),
    ({"id": "r", "status": "failed"}, ServerError, True),
    ({"id": "r", "status": "cancelled"}, ServerError, True),
    ({"id": "r", "output": ["odd"]}, BadReply, True),
]


@pytest.mark.parametrize(("body", "kind", "retryable"), RESPONSES)
async def test_a_response_without_an_answer_is_an_error(body: Any, kind: type[ModelError], retryable: bool) -> None:
    with pytest.raises(ModelError) as caught:
        await OpenAIResponses("gpt-x", client=Server(body).client).reply(asking())
    assert (type(caught.value), caught.value.retryable) == (kind, retryable)


async def test_an_answer_that_is_no_json_is_a_bad_reply() -> None:
    server = Server(httpx2.Response(200, content=b'{"id": ', headers={"content-type": "application/json"}))
    with pytest.raises(BadReply, match="not JSON"):
        await OpenAIChat("gpt-x", client=server.client).reply(asking())


TOO_LONG = [
    "The decoder prompt (length 10127) is longer than the maximum model length of 8192.",
    "You passed 5000 input tokens. However, the model's context length is only 4096 tokens",
    "The input (300 tokens) is longer than the model's context length (200 tokens).",
    "prompt too long; exceeded max context length by 12 tokens",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "Invalid request: Your request exceeded model token limit: 262144",
    "Range of input length should be [1, 30720]",
    "Prompt exceeds max length",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "prompt token count of 70000 exceeds the limit of 64000",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",
    "the request exceeds the available context size, try increasing it",
]


@pytest.mark.parametrize("text", TOO_LONG)
async def test_a_request_that_is_too_long_is_known_by_the_words_of_many_servers(text: str) -> None:
    server = Server(httpx2.Response(400, json={"object": "error", "message": text}), events({"error": text}))
    model = OpenAIChat("m", client=server.client)
    for streaming in (False, True):
        with pytest.raises(ContextOverflow) as caught:
            await asked(model, streaming=streaming)
        assert str(caught.value) == text


OTHERS: list[tuple[int, dict[str, Any], type[ModelError]]] = [
    (400, {"message": "`max_tokens` must be at most 8192, which is less than the `context_window`"}, BadRequest),
    (429, {"message": "Request too large for gpt-x on tokens per min: Limit 3, Requested 9"}, ContextOverflow),
    (400, {"message": "Incorrect API key provided: xa***."}, AuthFailed),
    (400, {"message": "API key not valid. Please pass a valid API key."}, AuthFailed),
    (429, {"message": "x", "type": "exceeded_current_quota_error"}, QuotaExceeded),
    (429, {"message": "x", "code": "1113"}, QuotaExceeded),
    (400, {"message": "x", "code": "Arrearage"}, QuotaExceeded),
    (400, {"message": "x", "code": "data_inspection_failed"}, ContentFiltered),
]


@pytest.mark.parametrize(("status", "error", "kind"), OTHERS)
async def test_servers_have_other_words_for_what_is_wrong(status: int, error: Any, kind: type[ModelError]) -> None:
    server = Server(httpx2.Response(status, json={"error": error}))
    with pytest.raises(ModelError) as caught:
        await OpenAIChat("m", client=server.client).reply(asking())
    assert type(caught.value) is kind
    assert not caught.value.retryable


WAITS = [
    ("Rate limit reached. Please try again in 20s. Visit the site", 20.0),
    ("Please try again in 6m0.5s.", 360.5),
    ("Please try again in 350ms", 0.35),
    ("Please retry after 55 seconds.", 55.0),
    ("Please try again in 1h3m2s.", 3782.0),
    ("Please retry in 2 minutes.", 120.0),
    ("Please try again later", None),
]


@pytest.mark.parametrize(("text", "wait"), WAITS)
async def test_how_long_to_wait_may_stand_in_the_message_only(text: str, wait: float | None) -> None:
    failed = {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": text}}}
    limited = {"error": {"message": text, "code": "rate_limit_exceeded"}}
    for model, streaming in (
        (OpenAIChat("m", client=Server(httpx2.Response(429, json=limited)).client), False),
        (OpenAIResponses("m", client=Server(events(failed)).client), True),
    ):
        with pytest.raises(RateLimited) as caught:
            await asked(model, streaming=streaming)
        assert caught.value.retry_after == (None if wait is None else pytest.approx(wait))


async def test_a_header_says_better_how_long_to_wait() -> None:
    limited = httpx2.Response(429, json={"error": {"message": "try again in 20s"}}, headers={"retry-after": "3"})
    with pytest.raises(RateLimited) as caught:
        await OpenAIChat("m", client=Server(limited).client).reply(asking())
    assert caught.value.retry_after == 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [("invalid_image_url", BadRequest), ("failed_to_download_image", BadRequest), ("bio_policy", ContentFiltered),
     ("misalignment_policy_violation", ContentFiltered), ("data_residency_mismatch", BadRequest)],
)  # fmt: skip
async def test_a_response_that_can_never_succeed_is_not_tried_again(code: str, kind: type[ModelError]) -> None:
    failed = {"id": "r", "status": "failed", "error": {"code": code, "message": "m"}}
    with pytest.raises(ModelError) as caught:
        await OpenAIResponses("m", client=Server(failed).client).reply(asking())
    assert (type(caught.value), caught.value.retryable) == (kind, False)
