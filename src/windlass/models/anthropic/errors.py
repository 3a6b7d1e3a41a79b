"""What can go wrong with Anthropic, in our words."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

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

KINDS: dict[str, type[ModelError]] = {
    "api_error": ServerError,
    "authentication_error": AuthFailed,
    "billing_error": QuotaExceeded,
    "not_found_error": ModelNotFound,
    "overloaded_error": Overloaded,
    "permission_error": AuthFailed,
    "rate_limit_error": RateLimited,
    "request_too_large": ContextOverflow,
    "timeout_error": ModelTimeout,
}
STATUSES: dict[int, type[ModelError]] = {
    401: AuthFailed,
    402: QuotaExceeded,
    403: AuthFailed,
    404: ModelNotFound,
    408: ModelTimeout,
    409: ServerError,
    413: ContextOverflow,
    429: RateLimited,
    503: Overloaded,
    504: ModelTimeout,
    529: Overloaded,
}
PHRASES: dict[str, type[ModelError]] = {
    "prompt is too long": ContextOverflow,
    "exceed context limit": ContextOverflow,
    "context window": ContextOverflow,
    "credit balance is too low": QuotaExceeded,
    "usage limits": QuotaExceeded,
    "content filtering policy": ContentFiltered,
}
"""What an `invalid_request_error` says when it means something else."""

RETRYABLE = (RateLimited, Overloaded, ServerError, ConnectionFailed, ModelTimeout)


@contextmanager
def translating() -> Generator[None]:
    """Errors of the SDK, and of the connection below it, leave as ours."""
    try:
        yield
    except Exception as error:
        ours = translated(error)
        if ours is None:
            raise
        raise ours from error


def translated(error: Exception) -> ModelError | None:
    """Our error for one of the SDK's; None for one that is none."""
    import anthropic
    import httpx2

    if isinstance(error, anthropic.APIStatusError):
        return _refused(error)
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
        return ModelTimeout(str(error) or "the model did not answer in time", retryable=True)
    if isinstance(error, anthropic.APIConnectionError | httpx2.HTTPError | httpx2.StreamError):
        return ConnectionFailed(_reason(error), retryable=True)
    if isinstance(error, anthropic.APIResponseValidationError):
        return BadReply(str(error), status=error.status_code)
    if isinstance(error, anthropic.CredentialsError) or "resolve authentication method" in str(error):
        return AuthFailed(str(error))
    if isinstance(error, UnicodeDecodeError) or type(error).__name__ == "JSONDecodeError":
        return ConnectionFailed(f"the answer is garbled: {error}", retryable=True)
    return None


def _reason(error: Exception) -> str:
    """What the SDK says, and what lies below it."""
    text = str(error) or type(error).__name__
    return f"{text} ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else text


def _refused(error: Any) -> ModelError:
    """Our error for an answer of the vendor's that is an error, be it inside a stream that began well."""
    status: int = error.status_code
    said = _said(error.body)
    message = str(said.get("message") or error.message)
    kind = _kind(str(said.get("type") or ""), status, message)
    headers = error.response.headers
    body = error.body if isinstance(error.body, Mapping) else {}
    return kind(
        message,
        retryable=issubclass(kind, RETRYABLE) and kind is not QuotaExceeded,
        retry_after=retry_after(headers),
        status=status,
        request_id=headers.get("request-id") or body.get("request_id"),
    )


def _said(body: Any) -> Mapping[str, Any]:
    said = body.get("error") if isinstance(body, Mapping) else None
    return said if isinstance(said, Mapping) else {}


def _kind(named: str, status: int, message: str) -> type[ModelError]:
    lowered = message.lower()
    if named == "invalid_request_error" or (not named and status == 400):
        return next((kind for phrase, kind in PHRASES.items() if phrase in lowered), BadRequest)
    if named in KINDS:
        return KINDS[named]
    if status in STATUSES:
        return STATUSES[status]
    return BadRequest if 400 <= status < 500 else ServerError


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that the vendor asks us to wait; it may name them, or a moment."""
    if (thousandths := _number(headers.get("retry-after-ms"))) is not None:
        return thousandths / 1000
    given = headers.get("retry-after")
    if (seconds := _number(given)) is not None:
        return seconds
    moment, now = _moment(given), _moment(headers.get("date"))
    return None if moment is None else max(0.0, moment - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _moment(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


__all__ = ["KINDS", "PHRASES", "STATUSES", "retry_after", "translated", "translating"]
