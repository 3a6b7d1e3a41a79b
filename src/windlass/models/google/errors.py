"""What goes wrong with Gemini, in our words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
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
    429: (RateLimited, True),
    503: (Overloaded, True),
    504: (ModelTimeout, True),
    529: (Overloaded, True),
}
OVERFLOW = re.compile(r"token count.*exceeds|exceeds the maximum number of tokens|context.*too long", re.I)
SPENT = re.compile(r"PerDay|PerMonth|credits are depleted", re.I)


def translated(error: Exception, *, streaming: bool = False) -> Exception:
    """An exception of the SDK, or of the connection below it, as a `ModelError`."""
    if isinstance(error, ModelError):
        return error
    if isinstance(error, APIError):
        said: Any = error.details if isinstance(error.details, dict) else {}
        return said_error(said.get("error", said), error.code, getattr(error.response, "headers", None) or {})
    if isinstance(error, UnknownApiResponseError):
        if streaming:
            return ConnectionFailed("the answer of Gemini broke off", retryable=True)
        return BadReply(str(error), retryable=True)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"TimeoutException", "TimeoutError"}:
        return ModelTimeout(f"Gemini did not answer in time: {error}", retryable=True)
    if names & {"GoogleAuthError"} and "TransportError" not in names:
        return AuthFailed(str(error))
    if names & {"RequestError", "TransportError", "ClientError", "StreamError", "OSError"}:
        return ConnectionFailed(f"Gemini could not be reached, or broke off: {error}", retryable=True)
    return error


def said_error(said: Any, status: int | None = None, headers: Mapping[str, str] = {}) -> ModelError:
    """The error that an answer, or a chunk of a stream, tells of."""
    said = said if isinstance(said, dict) else {"message": str(said)}
    status = int(status or said.get("code") or 500)
    text = str(said.get("message") or said.get("status") or f"status {status}")
    kind, retryable = _kind(status, text, said.get("details") or ())
    request_id = headers.get("x-goog-request-id") or headers.get("x-request-id")
    after = _retry_after(said.get("details") or (), headers)
    return kind(text, retryable=retryable, retry_after=after, status=status, request_id=request_id)


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
    return _seconds(headers.get("retry-after"))


def _seconds(value: str | None) -> float | None:
    """A number of seconds, or a date."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value or "").timestamp() - time.time())
    except ValueError:
        return None
