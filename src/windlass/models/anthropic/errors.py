"""What can go wrong with Anthropic, in our words."""

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
    # What Bedrock says inside a stream:
    "modelTimeoutException": ModelTimeout,
    "serviceUnavailableException": Overloaded,
    "throttlingException": RateLimited,
}
CODES: dict[str, Kind] = {
    "enforced_spend_limit_reached": QuotaExceeded,
    "request_body_too_large_after_decoding": ContextOverflow,
}
"""What the details of an error say more precisely than its type."""
PHRASES: dict[str, Kind] = {
    "prompt is too long": ContextOverflow,
    "input is too long": ContextOverflow,
    "exceed context limit": ContextOverflow,
    "context window": ContextOverflow,
    "credit balance is too low": QuotaExceeded,
    "usage limits": QuotaExceeded,
    "content filtering policy": ContentFiltered,
}
"""What an error about the request says when it means something else."""

_ABOUT_REQUESTS = ("invalid_request_error", "validationException")


def translated(error: Exception) -> ModelError | None:
    """Our error for one of the SDK's; None for one that is none."""
    if isinstance(error, anthropic.APIStatusError):
        return told_error(error.body, error.status_code, error.response.headers, error.message)
    if isinstance(error, anthropic.CredentialsError) or "resolve authentication method" in str(error):
        return AuthFailed(f"no key for anthropic: set ANTHROPIC_API_KEY, or pass api_key=… ({error})")
    return of_connection(error)


def told_error(
    body: Any, status: int = 200, headers: Mapping[str, str] = {}, otherwise: str = "the vendor reports an error"
) -> ModelError:
    """Our error for one that the vendor tells, be it inside a stream that began well."""
    body = body[0] if isinstance(body, list) and body else body  # as Google's cloud has it
    told = body if isinstance(body, Mapping) else {}
    said = told["error"] if isinstance(told.get("error"), Mapping) else told
    message = str(said.get("message") or otherwise)
    code = said["details"].get("error_code") if isinstance(said.get("details"), Mapping) else None
    kind = CODES.get(str(code)) or _kind(str(said.get("type") or ""), status, message)
    return kind(
        message,
        retry_after=retry_after(headers),
        status=status,
        request_id=request_id(headers) or told.get("request_id"),
    )


def _kind(named: str, status: int, message: str) -> Kind:
    lowered = message.lower()
    if named in _ABOUT_REQUESTS or (named not in KINDS and status == 400):
        return next((kind for phrase, kind in PHRASES.items() if phrase in lowered), BadRequest)
    return KINDS.get(named) or of_status(status)


__all__ = ["CODES", "KINDS", "PHRASES", "told_error", "translated"]
