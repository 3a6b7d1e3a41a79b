"""Translates errors of OpenAI and compatible servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import openai

from windlass.errors import (
    AuthFailed,
    BadRequest,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServerError,
)
from windlass.models.errors import Kind, of_connection, of_status, request_id, retry_after

_BY_CODE: dict[str, Kind] = {
    "insufficient_quota": QuotaExceeded,
    "billing_hard_limit_reached": QuotaExceeded,
    "billing_not_active": QuotaExceeded,
    "insufficient_balance": QuotaExceeded,
    "insufficient_credits": QuotaExceeded,
    "exceeded_current_quota_error": QuotaExceeded,
    "Arrearage": QuotaExceeded,
    "1113": QuotaExceeded,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "moderation_blocked": ContentFiltered,
    "image_content_policy_violation": ContentFiltered,
    "misalignment_policy_violation": ContentFiltered,
    "bio_policy": ContentFiltered,
    "data_inspection_failed": ContentFiltered,
    "model_not_found": ModelNotFound,
    "invalid_api_key": AuthFailed,
    "authentication_error": AuthFailed,
    "permission_error": AuthFailed,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "tokens": RateLimited,
    "requests": RateLimited,
    "overloaded_error": Overloaded,
    "server_overloaded": Overloaded,
    "engine_overloaded": Overloaded,
    "server_error": ServerError,
    "internal_server_error": ServerError,
    "vector_store_timeout": ServerError,
    "tool_use_failed": BadRequest,
    "invalid_prompt": BadRequest,
    "invalid_request_error": BadRequest,
    "bad_request_error": BadRequest,
    "BadRequestError": BadRequest,
    "data_residency_mismatch": BadRequest,
}
# Only these are more precise than the status.
_BEFORE_STATUS = (QuotaExceeded, ContextOverflow, ContentFiltered, ModelNotFound)
_TOO_LONG = re.compile(
    r"context[ _]length|context (?:window|size)|(?:prompt|input) (?:is )?too long|prompt exceeds max"
    r"|maximum (?:prompt|model|allowed input) length|exceeded model token limit|reduce the length of the"
    r"|token count.{,20} exceeds|range of input length|`inputs` (?:tokens|must have)"
)
_TOO_LARGE = "request too large"
_BAD_KEY = re.compile(r"(?:incorrect|invalid) api key|api key not valid")
_WAIT = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)? ?(?:milli|ms|s|m|h)[a-z]* ?)+)")
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(milli|ms|s|m|h)")
_SECONDS = {"milli": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def translate_error(error: Exception) -> ModelError | None:
    """Our error for an error of the SDK; None for any other error."""
    if isinstance(error, openai.APIStatusError):
        return _of_status(error)
    if (ours := of_connection(error)) is not None:
        return ours
    if isinstance(error, openai.APIError):
        return error_from(error.body, error.message)
    return AuthFailed(str(error)) if isinstance(error, openai.OpenAIError) else None


def error_from(body: object, message: str = "", **facts: Any) -> ModelError:
    """Our error for one that a body reports."""
    if isinstance(body, list) and body and isinstance(body[0], Mapping):
        body = body[0].get("error") or body[0]
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {"message": body}
    code, kind = fields.get("code"), fields.get("type")
    text = _text(fields) or message or str(body)
    if _is_flagged(fields):
        code = "content_filter"
    status = facts.pop("status", None) or _status(fields)
    names = (str(code), str(kind))
    error = _kind(status, names, text.lower())
    retryable = True if error is BadRequest and "tool_use_failed" in names else None
    if error is RateLimited and facts.get("retry_after") is None:
        facts["retry_after"] = _wait(text.lower())
    return error(text, retryable=retryable, status=status, **facts)


def _wait(text: str) -> float | None:
    """The seconds to wait, according to a message."""
    found = _WAIT.search(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in _TIME.findall(found[1])) if found else None


def _of_status(error: openai.APIStatusError) -> ModelError:
    headers = error.response.headers
    facts = {"retry_after": retry_after(headers), "request_id": request_id(headers)}
    ours = error_from(error.body, error.message, status=error.status_code, **facts)
    if (advice := headers.get("x-should-retry")) in ("true", "false"):
        ours.retryable = advice == "true"
    return ours


def _is_flagged(error: Mapping[str, Any]) -> bool:
    """Whether a router reports flagged content."""
    metadata = error.get("metadata")
    return isinstance(metadata, Mapping) and "flagged_input" in metadata


def _text(error: Mapping[str, Any]) -> str:
    """The message, followed by the message of the server behind a router."""
    text = error.get("message") or error.get("detail") or ""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{text}: {raw}" if isinstance(raw, str) and raw else str(text)


def _status(error: Mapping[str, Any]) -> int | None:
    for name in ("status_code", "status", "http_code", "code"):
        if re.fullmatch(r"[45]\d\d", str(error.get(name))):
            return int(error[name])
    return None


def _kind(status: int | None, names: tuple[str, ...], text: str) -> Kind:
    if text.startswith(_TOO_LARGE) or (status in (None, 400, 413, 422, 500) and _TOO_LONG.search(text)):
        return ContextOverflow
    if status == 400 and _BAD_KEY.search(text):
        return AuthFailed
    named = next((_BY_CODE[name] for name in names if name in _BY_CODE), None)
    if named is None and status is None and "image" in names[0]:
        return BadRequest
    if named is not None and (status in (None, 400) or named in _BEFORE_STATUS):
        return named
    return of_status(status or 500)
