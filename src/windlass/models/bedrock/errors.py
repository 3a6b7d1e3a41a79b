"""Translates errors of Bedrock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import msgspec
from botocore.eventstream import ParserError
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from botocore.exceptions import ConnectionError as NotConnected

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
from windlass.models.errors import Kind, of_connection, of_status, request_id, retry_after

KINDS: dict[str, Kind] = {
    "AccessDenied": AuthFailed,
    "ExpiredToken": AuthFailed,
    "IncompleteSignature": AuthFailed,
    "InternalFailure": ServerError,
    "InternalServer": ServerError,
    "InvalidClientTokenId": AuthFailed,
    "InvalidSignature": AuthFailed,
    "MissingAuthenticationToken": AuthFailed,
    "ModelError": ServerError,
    "ModelNotReady": Overloaded,
    "ModelStreamError": ServerError,
    "ModelTimeout": ModelTimeout,
    "ResourceNotFound": ModelNotFound,
    "ServiceQuotaExceeded": QuotaExceeded,
    "ServiceUnavailable": Overloaded,
    "Throttling": RateLimited,
    "TooManyRequests": RateLimited,
    "UnrecognizedClient": AuthFailed,
}
"""Errors by name, without the suffix `Exception`."""
PHRASES: dict[str, Kind] = {
    "is too long": ContextOverflow,
    "too many input tokens": ContextOverflow,
    "too many total text bytes": ContextOverflow,
    "exceed context limit": ContextOverflow,
    "maximum context length": ContextOverflow,
    "context window": ContextOverflow,
    "exceeds the maximum number of tokens": ContextOverflow,
    "model identifier is invalid": ModelNotFound,
    "content filtering policy": ContentFiltered,
}
"""Phrases in the message of a bad request that mean another kind of error."""


class Refused(Exception):
    """Bedrock answers with an error: in a response, or in an event of a stream."""

    def __init__(self, response: httpx2.Response | None, kind: str = "", content: bytes | str = b"") -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = 200 if response is None else response.status_code
        self.headers: Mapping[str, str] = {} if response is None else response.headers
        self.content = content if response is None else response.content


def translate_error(error: Exception) -> ModelError | None:
    """Our error for an error of Bedrock, of AWS's credentials or of the connection; None for any other error."""
    if isinstance(error, Refused):
        return error_from(error.kind, _plain(error.content), error.status, error.headers)
    if isinstance(error, ParserError):
        return BadReply(f"the stream is damaged: {error}", retryable=True)
    if isinstance(error, NoCredentialsError):
        remedy = "set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return AuthFailed(f"no credentials for bedrock: {remedy}, or pass api_key=… or session=…")
    if isinstance(error, HTTPClientError | NotConnected):
        return ConnectionFailed(f"the credentials could not be fetched: {error}")
    if isinstance(error, BotoCoreError | ClientError):
        return AuthFailed(f"the credentials could not be fetched: {error}")
    if isinstance(error, msgspec.DecodeError):
        return BadReply(f"an event is not JSON: {error}", retryable=True)
    return of_connection(error)


def error_from(kind: str, body: Any, status: int = 200, headers: Mapping[str, str] = {}) -> ModelError:
    """Our error for one that Bedrock reports, also inside a stream."""
    error: Mapping[str, Any] = body if isinstance(body, Mapping) else {"message": body}
    error = error["Output"] if isinstance(error.get("Output"), Mapping) else error
    name = kind or headers.get("x-amzn-errortype") or error.get("__type") or error.get("code") or ""
    message = str(error.get("message") or error.get("Message") or name or f"status {status}")
    if original := error.get("originalMessage"):
        message = f"{message} ({original})"
    found = _kind(str(name), status, message)
    return found(
        message,
        retry_after=retry_after(headers),
        status=status,
        request_id=request_id(headers),
    )


def _plain(content: bytes | str) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content if isinstance(content, str) else content.decode(errors="replace")[:500]


def _kind(named: str, status: int, message: str) -> Kind:
    name = named.partition(":")[0].rpartition("#")[2].removesuffix("Exception")
    kind = KINDS.get(name[:1].upper() + name[1:]) or (BadRequest if name.lower() == "validation" else of_status(status))
    lowered = message.lower()
    if kind is BadRequest:
        return next((meant for phrase, meant in PHRASES.items() if phrase in lowered), kind)
    return QuotaExceeded if kind is RateLimited and "per day" in lowered else kind


__all__ = ["KINDS", "PHRASES", "Refused", "error_from", "translate_error"]
