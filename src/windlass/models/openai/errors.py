"""What can go wrong with OpenAI and its like, as errors of ours."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import Any

import httpx2
import openai

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

_BY_CODE: dict[str, tuple[type[ModelError], bool]] = {
    "insufficient_quota": (QuotaExceeded, False),
    "billing_hard_limit_reached": (QuotaExceeded, False),
    "billing_not_active": (QuotaExceeded, False),
    "insufficient_balance": (QuotaExceeded, False),
    "context_length_exceeded": (ContextOverflow, False),
    "exceed_context_size_error": (ContextOverflow, False),
    "content_filter": (ContentFiltered, False),
    "content_policy_violation": (ContentFiltered, False),
    "moderation_blocked": (ContentFiltered, False),
    "image_content_policy_violation": (ContentFiltered, False),
    "model_not_found": (ModelNotFound, False),
    "invalid_api_key": (AuthFailed, False),
    "rate_limit_exceeded": (RateLimited, True),
    "rate_limit_error": (RateLimited, True),
    "tokens": (RateLimited, True),
    "requests": (RateLimited, True),
    "overloaded_error": (Overloaded, True),
    "server_overloaded": (Overloaded, True),
    "engine_overloaded": (Overloaded, True),
    "server_error": (ServerError, True),
    "internal_server_error": (ServerError, True),
    "vector_store_timeout": (ServerError, True),
    "tool_use_failed": (BadRequest, True),
    "invalid_prompt": (BadRequest, False),
    "invalid_request_error": (BadRequest, False),
}
_BY_STATUS: dict[int, tuple[type[ModelError], bool]] = {
    401: (AuthFailed, False),
    402: (QuotaExceeded, False),
    403: (AuthFailed, False),
    404: (ModelNotFound, False),
    408: (ModelTimeout, True),
    409: (ServerError, True),
    413: (ContextOverflow, False),
    429: (RateLimited, True),
    498: (Overloaded, True),
    503: (Overloaded, True),
    504: (ModelTimeout, True),
    529: (Overloaded, True),
}
# Only these say more than the status does.
_BEFORE_STATUS = (QuotaExceeded, ContextOverflow, ContentFiltered, ModelNotFound)
_TOO_LONG = ("maximum context length", "context window", "context size", "context_length", "prompt is too long")


@contextmanager
def translated() -> Generator[None, None, None]:
    """Raise errors of the SDK as errors of ours."""
    try:
        yield
    except openai.APITimeoutError as error:
        raise ModelTimeout("the model did not answer in time", retryable=True) from error
    except openai.APIConnectionError as error:
        cause = error.__cause__
        raise ConnectionFailed(f"the connection failed: {cause or error}", retryable=True) from error
    except openai.APIStatusError as error:
        raise _of_status(error) from error
    except openai.APIError as error:
        raise said(error.body, error.message) from error
    except openai.OpenAIError as error:
        raise AuthFailed(str(error)) from error
    except (httpx2.TimeoutException, TimeoutError) as error:
        raise ModelTimeout("the model did not answer in time", retryable=True) from error
    except httpx2.HTTPError as error:
        raise ConnectionFailed(f"the connection failed: {error}", retryable=True) from error
    except (JSONDecodeError, UnicodeError) as error:
        raise ConnectionFailed(f"the answer broke off: {error}", retryable=True) from error


@contextmanager
def understood() -> Generator[None, None, None]:
    """Raise what our own reading stumbles over as a bad reply: the server said something that is not the protocol."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadReply(f"the answer is not as it should be: {error!r}", retryable=True) from error


def said(body: object, message: str = "", **facts: Any) -> ModelError:
    """The error that a body tells of."""
    told: Mapping[str, Any] = body if isinstance(body, Mapping) else {"message": body}
    code, kind = told.get("code"), told.get("type")
    text = _text(told) or message or str(body)
    if _flagged(told):
        code = "content_filter"
    status = facts.pop("status", None) or _status(told)
    error, retryable = _kind(status, (str(code), str(kind)), text)
    return error(text, retryable=retryable, status=status, **facts)


def _of_status(error: openai.APIStatusError) -> ModelError:
    headers = error.response.headers
    facts = {"retry_after": retry_after(headers), "request_id": request_id_of(headers)}
    ours = said(error.body, error.message, status=error.status_code, **facts)
    if (advice := headers.get("x-should-retry")) in ("true", "false"):
        ours.retryable = advice == "true"
    return ours


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """By what the vendor finds a request again."""
    names = ("x-request-id", "request-id", "apim-request-id", "x-generation-id", "cf-ray")
    return next((headers[name] for name in names if headers.get(name)), None)


def _flagged(told: Mapping[str, Any]) -> bool:
    """Whether a router tells of content that somebody flagged."""
    metadata = told.get("metadata")
    return isinstance(metadata, Mapping) and "flagged_input" in metadata


def _text(told: Mapping[str, Any]) -> str:
    """The message, and behind it what a router was told by the server it asked."""
    text = told.get("message") or told.get("detail") or ""
    metadata = told.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{text}: {raw}" if isinstance(raw, str) and raw else str(text)


def _status(told: Mapping[str, Any]) -> int | None:
    for name in ("status_code", "status", "code"):
        if isinstance(value := told.get(name), int) and 400 <= value < 600:
            return value
    return None


def _kind(status: int | None, names: tuple[str, ...], text: str) -> tuple[type[ModelError], bool]:
    if status in (None, 400, 413, 422, 500) and any(words in text.lower() for words in _TOO_LONG):
        return ContextOverflow, False
    named = next((_BY_CODE[name] for name in names if name in _BY_CODE), None)
    if named is not None and (status in (None, 400) or named[0] in _BEFORE_STATUS):
        return named
    if status is None:
        return ServerError, True
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return (ServerError, True) if status >= 500 else (BadRequest, False)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds to wait, from any of the forms in which servers say so."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after") or ""
    if (seconds := _number(value)) is not None:
        return seconds
    if (moment := _moment(value)) is None:
        return None
    now = _moment(headers.get("date") or "")
    return max(0.0, moment - (time.time() if now is None else now))


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else math.nan
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _moment(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None
