"""Translates errors of Gemini."""

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

# Inside a stream the code may be missing, or be a gRPC code.
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


def translate_error(error: Exception) -> ModelError | None:
    """Our error for an error of the SDK, or of the connection below it; None for any other error."""
    if isinstance(error, APIError):
        body: Any = error.details
        body = body[0] if isinstance(body, list) and body else body
        body = body.get("error", body) if isinstance(body, dict) else body
        return error_from(body, error.code, getattr(error.response, "headers", None) or {})
    if isinstance(error, UnknownApiResponseError):
        return BadReply(f"Gemini's answer is not JSON: {error}", retryable=True)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "GoogleAuthError" in names and "TransportError" not in names:
        return AuthFailed(str(error))
    return of_connection(error)


def translate_stream_error(error: Exception) -> ModelError | None:
    """The same inside a stream, where incomplete JSON means that the stream broke off."""
    if isinstance(error, UnknownApiResponseError):
        return ConnectionFailed("Gemini's answer broke off")
    return translate_error(error)


def error_from(body: Any, status: int | None = None, headers: Mapping[str, str] = {}) -> ModelError:
    """Our error for one that an answer, or a chunk of a stream, reports."""
    error: dict[str, Any] = body if isinstance(body, dict) else {"message": str(body)}
    status = status or _status(error)
    text = str(error.get("message") or error.get("status") or f"status {status}")
    details = error.get("details") or ()
    kind = _kind(status, text, details)
    after, id = _retry_after(details, headers), request_id(headers)
    return kind(text, retry_after=after, status=status, request_id=id)


def _status(error: Mapping[str, Any]) -> int:
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return BY_NAME.get(str(error.get("status")), 500)


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
