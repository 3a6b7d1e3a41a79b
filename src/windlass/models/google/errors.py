"""What goes wrong with Gemini, in our words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.genai.errors import APIError, UnknownApiResponseError

from windlass.errors import (
    AuthFailed,
    BadReply,
    BadRequest,
    ConnectionFailed,
    ContextOverflow,
    ModelError,
    QuotaExceeded,
    RateLimited,
)
from windlass.models.errors import Kind, of_connection, of_status, request_id, retry_after, seconds

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
SPENT = re.compile(r"per ?day|per ?month|credits are depleted|limit: 0\b(?!\.)", re.I)


def translated(error: Exception) -> ModelError | None:
    """Our error for one of the SDK, or of the connection below it; None for one that is none."""
    if isinstance(error, APIError):
        said: Any = error.details
        said = said[0] if isinstance(said, list) and said else said
        said = said.get("error", said) if isinstance(said, dict) else said
        return said_error(said, error.code, getattr(error.response, "headers", None) or {})
    if isinstance(error, UnknownApiResponseError):
        return BadReply(f"the answer of Gemini is no JSON: {error}", retryable=True)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "GoogleAuthError" in names and "TransportError" not in names:
        return AuthFailed(str(error))
    return of_connection(error)


def translated_in_stream(error: Exception) -> ModelError | None:
    """The same inside a stream, where half a JSON is one that broke off."""
    if isinstance(error, UnknownApiResponseError):
        return ConnectionFailed("the answer of Gemini broke off")
    return translated(error)


def said_error(said: Any, status: int | None = None, headers: Mapping[str, str] = {}) -> ModelError:
    """The error that an answer, or a chunk of a stream, tells of."""
    told: dict[str, Any] = said if isinstance(said, dict) else {"message": str(said)}
    status = status or _status(told)
    text = str(told.get("message") or told.get("status") or f"status {status}")
    details = told.get("details") or ()
    kind = _kind(status, text, details)
    after, id = _retry_after(details, headers), request_id(headers)
    return kind(text, retry_after=after, status=status, request_id=id)


def _status(told: Mapping[str, Any]) -> int:
    code = told.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return BY_NAME.get(str(told.get("status")), 500)


def _kind(status: int, text: str, details: Any) -> Kind:
    kind = of_status(status)
    if kind is RateLimited and SPENT.search(f"{text} {details}"):
        return QuotaExceeded
    if kind is BadRequest and OVERFLOW.search(text):
        return ContextOverflow
    if kind is BadRequest and ("API_KEY_INVALID" in str(details) or "API key" in text):
        return AuthFailed
    return kind


def _retry_after(details: Any, headers: Mapping[str, str]) -> float | None:
    for detail in details:
        if isinstance(detail, dict) and "retryDelay" in detail:
            return seconds(str(detail["retryDelay"]).removesuffix("s"))
    return retry_after(headers)
