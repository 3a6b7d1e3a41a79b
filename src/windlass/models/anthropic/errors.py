"""What can go wrong with Anthropic, in our words."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import Any

import anthropic
import httpx2

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
    # What Bedrock says inside a stream:
    "modelTimeoutException": ModelTimeout,
    "serviceUnavailableException": Overloaded,
    "throttlingException": RateLimited,
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
CODES: dict[str, type[ModelError]] = {
    "enforced_spend_limit_reached": QuotaExceeded,
    "request_body_too_large_after_decoding": ContextOverflow,
}
"""What the details of an error say more precisely than its type."""
PHRASES: dict[str, type[ModelError]] = {
    "prompt is too long": ContextOverflow,
    "input is too long": ContextOverflow,
    "exceed context limit": ContextOverflow,
    "context window": ContextOverflow,
    "credit balance is too low": QuotaExceeded,
    "usage limits": QuotaExceeded,
    "content filtering policy": ContentFiltered,
}
"""What an error about the request says when it means something else."""

RETRYABLE = (RateLimited, Overloaded, ServerError, ConnectionFailed, ModelTimeout)
_ABOUT_REQUESTS = ("invalid_request_error", "validationException")


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


@contextmanager
def understood() -> Generator[None]:
    """What has not the shape that it should have leaves as a bad reply."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadReply(f"the answer cannot be understood: {error!r}") from error


def translated(error: Exception) -> ModelError | None:
    """Our error for one of the SDK's; None for one that is none."""
    if isinstance(error, anthropic.APIStatusError):
        return told_error(error.body, error.status_code, error.response.headers, error.message)
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException) or type(error) is TimeoutError:
        return ModelTimeout(str(error) or "the model did not answer in time", retryable=True)
    if isinstance(error, anthropic.APIConnectionError | httpx2.HTTPError | httpx2.StreamError):
        return ConnectionFailed(_reason(error), retryable=True)
    if isinstance(error, anthropic.CredentialsError) or "resolve authentication method" in str(error):
        return AuthFailed(f"no key for anthropic: set ANTHROPIC_API_KEY, or pass api_key=… ({error})")
    if isinstance(error, UnicodeDecodeError | JSONDecodeError):
        return ConnectionFailed(f"the answer is garbled: {error}", retryable=True)
    return None


def _reason(error: Exception) -> str:
    """What the SDK says, and what lies below it."""
    text = str(error) or type(error).__name__
    return f"{text} ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else text


def told_error(
    body: Any, status: int = 200, headers: Mapping[str, str] = {}, otherwise: str = "the vendor reports an error"
) -> ModelError:
    """Our error for one that the vendor tells, be it inside a stream that began well."""
    told = body if isinstance(body, Mapping) else {}
    said = told["error"] if isinstance(told.get("error"), Mapping) else told
    message = str(said.get("message") or otherwise)
    code = said["details"].get("error_code") if isinstance(said.get("details"), Mapping) else None
    kind = CODES.get(str(code)) or _kind(str(said.get("type") or ""), status, message)
    return kind(
        message,
        retryable=issubclass(kind, RETRYABLE) and kind is not QuotaExceeded,
        retry_after=retry_after(headers),
        status=status,
        request_id=request_id(headers) or told.get("request_id"),
    )


def request_id(headers: Mapping[str, str]) -> str | None:
    """The vendor's name of a request, by which it can be asked about it."""
    ids = (headers.get(name) for name in ("request-id", "x-request-id", "x-amzn-requestid"))
    return next((id for id in ids if id), None)


def _kind(named: str, status: int, message: str) -> type[ModelError]:
    lowered = message.lower()
    if named in _ABOUT_REQUESTS or (named not in KINDS and status == 400):
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


__all__ = [
    "CODES",
    "KINDS",
    "PHRASES",
    "STATUSES",
    "retry_after",
    "told_error",
    "translated",
    "translating",
    "understood",
]
