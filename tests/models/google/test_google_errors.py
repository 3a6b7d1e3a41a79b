"""Errors of Gemini, as errors of ours."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from google.auth.exceptions import RefreshError

from windlass.errors import (
    AuthFailed,
    BadReply,
    BadRequest,
    ConnectionFailed,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)

from .serving import Pieces, Server, answer, asked, asking, events, facts, heard, taken

KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
PER_DAY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "20"}],
}
PER_MINUTE = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}],
}
WAIT = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."

STATUSES: list[tuple[int, dict[str, Any], type[ModelError], bool, float | None]] = [
    (400, {"message": "bad", "status": "INVALID_ARGUMENT"}, BadRequest, False, None),
    (400, {"message": TOO_LONG, "status": "INVALID_ARGUMENT"}, ContextOverflow, False, None),
    (400, {"message": "Request payload size exceeds the limit: 20971520 bytes."}, ContextOverflow, False, None),
    (400, {"message": "API key not valid. Please pass a valid API key.", "details": [KEY]}, AuthFailed, False, None),
    (400, {"message": "User location is not supported", "status": "FAILED_PRECONDITION"}, BadRequest, False, None),
    (401, {"message": "x", "status": "UNAUTHENTICATED"}, AuthFailed, False, None),
    (403, {"message": "x", "status": "PERMISSION_DENIED"}, AuthFailed, False, None),
    (404, {"message": "models/x is not found", "status": "NOT_FOUND"}, ModelNotFound, False, None),
    (408, {"message": "x"}, ModelTimeout, True, None),
    (413, {"message": "x"}, ContextOverflow, False, None),
    (429, {"message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}, RateLimited, True, None),
    (429, {"message": "You exceeded your current quota", "details": [PER_MINUTE, WAIT]}, RateLimited, True, 36.5),
    (429, {"message": "You exceeded your current quota", "details": [PER_DAY, WAIT]}, QuotaExceeded, False, 36.5),
    (429, {"message": "Quota exceeded for metric: x, limit: 0, model: y"}, QuotaExceeded, False, None),
    (429, {"message": "limit 'Gemini 2.5 Pro Requests per day per user'"}, QuotaExceeded, False, None),
    (429, {"message": "Your prepayment credits are depleted."}, QuotaExceeded, False, None),
    (499, {"message": "x", "status": "CANCELLED"}, ConnectionFailed, True, None),
    (500, {"message": "An internal error has occurred.", "status": "INTERNAL"}, ServerError, True, None),
    (502, {"message": "x"}, ServerError, True, None),
    (503, {"message": "The model is overloaded.", "status": "UNAVAILABLE"}, Overloaded, True, None),
    (504, {"message": "x", "status": "DEADLINE_EXCEEDED"}, ModelTimeout, True, None),
]


@pytest.mark.parametrize(("status", "error", "kind", "retryable", "after"), STATUSES)
async def test_a_status_becomes_an_error_and_is_asked_for_once(
    status: int, error: dict[str, Any], kind: type[ModelError], retryable: bool, after: float | None
) -> None:
    body: Any
    for body in ({"error": {"code": status, **error}}, [{"error": {"code": status, **error}}]):
        for streaming in (False, True):
            server = Server(httpx2.Response(status, json=body, headers={"x-goog-request-id": "req_1"}))
            with pytest.raises(ModelError) as caught:
                await asked(server.model(), streaming=streaming)
            assert facts(caught.value) == (kind, error["message"], status, retryable, "req_1", after)
            assert len(server.requests) == 1


async def test_retries_of_a_client_that_was_passed_in_are_switched_off() -> None:
    failing = [httpx2.Response(503, json={"error": {"message": "busy"}}) for _ in range(3)]
    server = Server(*failing, retry_options={"attempts": 3, "initial_delay": 0.0, "max_delay": 0.0, "jitter": 0.0})
    with pytest.raises(Overloaded):
        await server.model().reply(asking())
    assert len(server.requests) == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_gateway_that_answers_in_html(streaming: bool) -> None:
    server = Server(httpx2.Response(502, html="<html>Bad Gateway</html>"))
    with pytest.raises(ServerError, match="Bad Gateway") as caught:
        await asked(server.model(), streaming=streaming)
    assert (caught.value.status, caught.value.retryable) == (502, True)


NETWORK = [(OSError("unreachable"), ConnectionFailed, True), (RefreshError("no credentials"), AuthFailed, False)]


@pytest.mark.parametrize(("error", "kind", "retryable"), NETWORK)
@pytest.mark.parametrize("streaming", [False, True])
async def test_what_fails_below_the_sdk_is_an_error_of_ours(
    error: Exception, kind: type[ModelError], retryable: bool, streaming: bool
) -> None:
    with pytest.raises(kind) as caught:
        await asked(Server(error).model(), streaming=streaming)
    assert caught.value.retryable is retryable
    assert caught.value.__cause__ is error


async def test_what_is_no_error_of_the_network_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        await Server(ZeroDivisionError()).model().reply(asking())


INSIDE: list[tuple[Any, type[ModelError], int]] = [
    ({"code": 503, "message": "m", "status": "UNAVAILABLE"}, Overloaded, 503),
    ({"code": 8, "message": "m", "status": "RESOURCE_EXHAUSTED"}, RateLimited, 429),
    ({"message": "m", "status": "DEADLINE_EXCEEDED"}, ModelTimeout, 504),
    ({"message": "m"}, ServerError, 500),
    ("m", ServerError, 500),
]


@pytest.mark.parametrize(("error", "kind", "status"), INSIDE)
async def test_an_error_inside_an_answer_is_an_error(error: Any, kind: type[ModelError], status: int) -> None:
    server = Server({"error": error}, events(answer({"text": "Hi"}, finish=None), {"error": error}))
    for streaming in (False, True):
        with pytest.raises(ModelError, match="m") as caught:
            await asked(server.model(), streaming=streaming)
        assert type(caught.value) is kind
        assert (caught.value.status, caught.value.retryable) == (status, True)


async def test_an_error_in_the_lines_of_a_stream_is_an_error() -> None:
    body = events(answer({"text": "Hi"}, finish=None)) + b'{\n "error": {\n  "code": 503,\n  "message": "m"\n }\n}\n'
    with pytest.raises(Overloaded, match="m"):
        await heard(Server(body).model(), asking())


async def test_an_answer_that_is_no_json_is_a_bad_reply() -> None:
    for content in (b'{"candidates": ', b""):
        with pytest.raises(BadReply) as caught:
            await Server(httpx2.Response(200, content=content)).model().reply(asking())
        assert caught.value.retryable


async def test_a_stream_that_breaks_off_shows_what_it_had() -> None:
    pieces = Pieces([events(answer({"text": "Hi"}, finish=None))], httpx2.ReadError("reset"))
    seen: list[Any] = []
    with pytest.raises(ConnectionFailed) as caught:
        await taken(Server(pieces).model().stream(asking()), seen)
    assert [piece.text for piece in seen] == ["Hi"]
    assert (caught.value.retryable, pieces.closed) == (True, True)
