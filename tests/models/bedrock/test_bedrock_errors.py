"""What goes wrong at Bedrock, as one of our errors that says all it knows."""

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
    ModelNotFound,
    ModelTimeout,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)

from .serving import Server, answer, asked, asking, facts, frame, frames, heard, text

LONG = "Input is too long for requested model."
TOLD: list[tuple[int, str, str, Any, bool]] = [
    (400, "ValidationException", "The toolConfig field must be defined.", BadRequest, False),
    (400, "ValidationException", LONG, ContextOverflow, False),
    (400, "ValidationException", "prompt is too long: 3 tokens > 2 maximum", ContextOverflow, False),
    (400, "ValidationException", "Too many input tokens. Max input tokens: 1", ContextOverflow, False),
    (400, "ValidationException", "The provided model identifier is invalid.", ModelNotFound, False),
    (400, "ValidationException", "Output blocked by content filtering policy", ContentFiltered, False),
    (400, "ServiceQuotaExceededException", "spent", QuotaExceeded, False),
    (403, "AccessDeniedException", "You don't have access to the model.", AuthFailed, False),
    (403, "ExpiredTokenException", "The security token is expired", AuthFailed, False),
    (403, "UnrecognizedClientException", "The security token is invalid.", AuthFailed, False),
    (403, "InvalidSignatureException", "Signature expired", AuthFailed, False),
    (404, "ResourceNotFoundException", "Could not resolve the model", ModelNotFound, False),
    (408, "ModelTimeoutException", "The model took too long", ModelTimeout, True),
    (424, "ModelErrorException", "The model failed", ServerError, True),
    (429, "ThrottlingException", "Too many requests, please wait.", RateLimited, True),
    (429, "ThrottlingException", "Too many tokens per day, please wait.", QuotaExceeded, False),
    (429, "ModelNotReadyException", "The model is not ready", Overloaded, True),
    (500, "InternalServerException", "failed", ServerError, True),
    (503, "ServiceUnavailableException", "Bedrock is unable to process your request.", Overloaded, True),
    (418, "", "a teapot", BadRequest, False),
    (502, "", "a gateway", ServerError, True),
]


@pytest.mark.parametrize(("status", "kind", "message", "error", "retryable"), TOLD)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("named_by", ["header", "body"])
async def test_an_error_is_known_by_its_name(
    status: int, kind: str, message: str, error: Any, retryable: bool, streaming: bool, named_by: str
) -> None:
    headers = {"x-amzn-requestid": "r-1", "retry-after": "7"}
    body = {"message": message}
    if kind and named_by == "header":
        headers["x-amzn-errortype"] = f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    elif kind:
        body["__type"] = f"com.amazon.coral.service#{kind}"
    server = Server(httpx2.Response(status, headers=headers, json=body))
    with pytest.raises(error) as caught:
        await asked(server.model(), streaming=streaming)
    assert facts(caught.value) == (error, message, status, retryable, "r-1", 7.0)


async def test_an_error_that_is_no_json_is_told_as_it_is() -> None:
    server = Server(httpx2.Response(502, text="<html>Bad gateway</html>"))
    with pytest.raises(ServerError, match="<html>Bad gateway</html>"):
        await server.model().reply(asking())


async def test_an_error_of_the_gate_before_bedrock_is_known_by_its_name_too() -> None:
    body = {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}, "Version": "1.0"}
    with pytest.raises(ModelNotFound, match="UnknownOperationException"):
        await Server(httpx2.Response(404, json=body)).model().reply(asking())


async def test_an_answer_of_200_that_is_an_error_is_one() -> None:
    told = {"__type": "com.amazon.coral.service#ThrottlingException", "message": "slow"}
    with pytest.raises(RateLimited, match="slow"):
        await Server(told).model().reply(asking())


INSIDE = [
    ("throttlingException", RateLimited, True),
    ("serviceUnavailableException", Overloaded, True),
    ("internalServerException", ServerError, True),
    ("modelStreamErrorException", ServerError, True),
    ("modelTimeoutException", ModelTimeout, True),
    ("validationException", BadRequest, False),
    ("somethingNewException", ServerError, True),
]


@pytest.mark.parametrize(("kind", "error", "retryable"), INSIDE)
async def test_an_error_inside_a_stream_is_one(kind: str, error: Any, retryable: bool) -> None:
    said = {"message": "it failed", "originalStatusCode": 500, "originalMessage": "deep inside"}
    stream = frames(*text(0, "Hel"), (kind, said))
    server = Server(httpx2.Response(200, headers={"x-amzn-requestid": "r-1"}, content=stream))
    with pytest.raises(error) as caught:
        await heard(server.model(), asking())
    assert facts(caught.value) == (error, "it failed (deep inside)", 200, retryable, "r-1", None)


async def test_a_request_that_is_too_long_may_be_told_inside_a_stream() -> None:
    with pytest.raises(ContextOverflow):
        await heard(Server(frame("validationException", {"message": LONG}, as_exception=True)).model(), asking())


async def test_a_whole_answer_to_who_wants_a_stream_is_a_bad_reply() -> None:
    with pytest.raises(BadReply, match="answered with plain JSON"):
        await heard(Server(answer("Hi")).model(), asking())


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_page_is_a_bad_reply(streaming: bool) -> None:
    server = Server(httpx2.Response(200, text="<html>Please log in</html>"))
    with pytest.raises(BadReply) as caught:
        await asked(server.model(), streaming=streaming)
    assert caught.value.retryable


async def test_nothing_is_tried_again() -> None:
    server = Server(httpx2.Response(503, json={"message": "busy"}))
    with pytest.raises(Overloaded):
        await server.model().reply(asking())
    assert len(server.requests) == 1
