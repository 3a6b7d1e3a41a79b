"""What goes wrong with Gemini, in our words."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

from google.genai.errors import APIError, UnknownApiResponseError

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

BY_STATUS: dict[int, tuple[type[ModelError], bool]] = {
    401: (AuthFailed, False),
    403: (AuthFailed, False),
    404: (ModelNotFound, False),
    408: (ModelTimeout, True),
    413: (ContextOverflow, False),
    429: (RateLimited, True),
    499: (ConnectionFailed, True),
    503: (Overloaded, True),
    504: (ModelTimeout, True),
    529: (Overloaded, True),
}
# Inside a stream the number may be missing, or one of gRPC's.
BY_NAME = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
OVERFLOW = re.compile(r"token count.*exceeds|exceeds the maximum number of tokens|payload size exceeds", re.I)
SPENT = re.compile(r"per ?day|per ?month|credits are depleted", re.I)


@contextmanager
def translating(*, streaming: bool = False) -> Generator[None, None, None]:
    """Raise exceptions of the SDK, or of the connection below it, as errors of ours."""
    try:
        yield
    except Exception as error:
        ours = _translated(error, streaming)
        if ours is None:
            raise
        raise ours from error


def _translated(error: Exception, streaming: bool) -> ModelError | None:
    if isinstance(error, APIError):
        said: Any = error.details
        said = said[0] if isinstance(said, list) and said else said
        said = said.get("error", said) if isinstance(said, dict) else said
        return said_error(said, error.code, getattr(error.response, "headers", None) or {})
    if isinstance(error, UnknownApiResponseError):
        if streaming:
            return ConnectionFailed("the answer of Gemini broke off", retryable=True)
        return BadReply(f"the answer of Gemini is no JSON: {error}", retryable=True)
    # By name, for the SDK may use any of three libraries.
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"TimeoutException", "TimeoutError"}:
        return ModelTimeout(f"Gemini did not answer in time {error}".strip(), retryable=True)
    if "GoogleAuthError" in names and "TransportError" not in names:
        return AuthFailed(str(error))
    if names & {"RequestError", "TransportError", "ClientError", "StreamError", "OSError"}:
        return ConnectionFailed(f"Gemini could not be reached, or broke off: {error!r}", retryable=True)
    return None


def said_error(said: Any, status: int | None = None, headers: Mapping[str, str] = {}) -> ModelError:
    """The error that an answer, or a chunk of a stream, tells of."""
    told: dict[str, Any] = said if isinstance(said, dict) else {"message": str(said)}
    status = status or _status(told)
    text = str(told.get("message") or told.get("status") or f"status {status}")
    details = told.get("details") or ()
    kind, retryable = _kind(status, text, details)
    request_id = headers.get("x-goog-request-id") or headers.get("x-request-id")
    after = _retry_after(details, headers)
    return kind(text, retryable=retryable, retry_after=after, status=status, request_id=request_id)


def _status(told: Mapping[str, Any]) -> int:
    code = told.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return BY_NAME.get(str(told.get("status")), 500)


def _kind(status: int, text: str, details: Any) -> tuple[type[ModelError], bool]:
    if status == 429 and SPENT.search(f"{text} {details}"):
        return QuotaExceeded, False
    if status in BY_STATUS:
        return BY_STATUS[status]
    if status >= 500:
        return ServerError, True
    if OVERFLOW.search(text):
        return ContextOverflow, False
    if "API_KEY_INVALID" in str(details) or "API key" in text:
        return AuthFailed, False
    return BadRequest, False


def _retry_after(details: Any, headers: Mapping[str, str]) -> float | None:
    for detail in details:
        if isinstance(detail, dict) and "retryDelay" in detail:
            return _seconds(str(detail["retryDelay"]).removesuffix("s"))
    return _seconds(headers.get("retry-after"), headers.get("date"))


def _seconds(value: str | None, now: str | None = None) -> float | None:
    """A number of seconds, or the time until a date."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        pass
    moment = _moment(value)
    sent = _moment(now)
    return None if moment is None else max(0.0, moment - (time.time() if sent is None else sent))


def _moment(value: str | None) -> float | None:
    try:
        return parsedate_to_datetime(value or "").timestamp()
    except ValueError:
        return None
