"""Translates errors of Anthropic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic

from windlass.errors import (
    AuthFailed,
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
from windlass.models.errors import Kind, of_connection, of_status, request_id, retry_after

KINDS: dict[str, Kind] = {
    "api_error": ServerError,
    "authentication_error": AuthFailed,
    "billing_error": QuotaExceeded,
    "not_found_error": ModelNotFound,
    "overloaded_error": Overloaded,
    "permission_error": AuthFailed,
    "rate_limit_error": RateLimited,
    "request_too_large": ContextOverflow,
    "timeout_error": ModelTimeout,
    # Bedrock's errors inside a stream:
    "modelTimeoutException": ModelTimeout,
    "serviceUnavailableException": Overloaded,
    "throttlingException": RateLimited,
}
CODES: dict[str, Kind] = {
    "enforced_spend_limit_reached": QuotaExceeded,
    "request_body_too_large_after_decoding": ContextOverflow,
}
"""Codes in the details of an error, which are more precise than its type."""
PHRASES: dict[str, Kind] = {
    "prompt is too long": ContextOverflow,
    "input is too long": ContextOverflow,
    "exceed context limit": ContextOverflow,
    "context window": ContextOverflow,
    "credit balance is too low": QuotaExceeded,
    "usage limits": QuotaExceeded,
    "content filtering policy": ContentFiltered,
}
"""Phrases in the message of a bad request that mean another kind of error."""

_ABOUT_REQUESTS = ("invalid_request_error", "validationException")


def translate_error(error: Exception) -> ModelError | None:
    """Our error for an error of the SDK; None for any other error."""
    if isinstance(error, anthropic.APIStatusError):
        return error_from(error.body, error.status_code, error.response.headers, error.message)
    if isinstance(error, anthropic.CredentialsError) or "resolve authentication method" in str(error):
        return AuthFailed(f"no key for anthropic: set ANTHROPIC_API_KEY, or pass api_key=… ({error})")
    return of_connection(error)


def error_from(
    body: Any, status: int = 200, headers: Mapping[str, str] = {}, otherwise: str = "the vendor reports an error"
) -> ModelError:
    """Our error for one that the vendor reports, also inside a stream."""
    body = body[0] if isinstance(body, list) and body else body  # Google's cloud sends a list
    whole = body if isinstance(body, Mapping) else {}
    error = whole["error"] if isinstance(whole.get("error"), Mapping) else whole
    message = str(error.get("message") or otherwise)
    code = error["details"].get("error_code") if isinstance(error.get("details"), Mapping) else None
    kind = CODES.get(str(code)) or _kind(str(error.get("type") or ""), status, message)
    return kind(
        message,
        retry_after=retry_after(headers),
        status=status,
        request_id=request_id(headers) or whole.get("request_id"),
    )


def _kind(named: str, status: int, message: str) -> Kind:
    lowered = message.lower()
    if named in _ABOUT_REQUESTS or (named not in KINDS and status == 400):
        return next((kind for phrase, kind in PHRASES.items() if phrase in lowered), BadRequest)
    return KINDS.get(named) or of_status(status)


__all__ = ["CODES", "KINDS", "PHRASES", "error_from", "translate_error"]
