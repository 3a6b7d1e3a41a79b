"""What can go wrong with Bedrock, in our words."""

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
"""What an error is called, without the word Exception at its end."""
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
"""What an error about the request says when it means something else."""


class Refused(Exception):
    """Bedrock answers with an error: by a response, or by an event of that kind inside a stream."""

    def __init__(self, response: httpx2.Response | None, kind: str = "", said: bytes | str = b"") -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = 200 if response is None else response.status_code
        self.headers: Mapping[str, str] = {} if response is None else response.headers
        self.said = said if response is None else response.content


def translated(error: Exception) -> ModelError | None:
    """Our error for one of Bedrock, of AWS's credentials or of the connection; None for one that is none."""
    if isinstance(error, Refused):
        return told_error(error.kind, _plain(error.said), error.status, error.headers)
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
        return BadReply(f"an event is no JSON: {error}", retryable=True)
    return of_connection(error)


def told_error(kind: str, body: Any, status: int = 200, headers: Mapping[str, str] = {}) -> ModelError:
    """Our error for one that Bedrock tells, be it inside a stream that began well."""
    told: Mapping[str, Any] = body if isinstance(body, Mapping) else {"message": body}
    told = told["Output"] if isinstance(told.get("Output"), Mapping) else told
    named = kind or headers.get("x-amzn-errortype") or told.get("__type") or told.get("code") or ""
    message = str(told.get("message") or told.get("Message") or named or f"status {status}")
    if original := told.get("originalMessage"):
        message = f"{message} ({original})"
    found = _kind(str(named), status, message)
    return found(
        message,
        retry_after=retry_after(headers),
        status=status,
        request_id=request_id(headers),
    )


def _plain(said: bytes | str) -> Any:
    try:
        return msgspec.json.decode(said)
    except msgspec.DecodeError:
        return said if isinstance(said, str) else said.decode(errors="replace")[:500]


def _kind(named: str, status: int, message: str) -> Kind:
    name = named.partition(":")[0].rpartition("#")[2].removesuffix("Exception")
    kind = KINDS.get(name[:1].upper() + name[1:]) or (BadRequest if name.lower() == "validation" else of_status(status))
    lowered = message.lower()
    if kind is BadRequest:
        return next((meant for phrase, meant in PHRASES.items() if phrase in lowered), kind)
    return QuotaExceeded if kind is RateLimited and "per day" in lowered else kind


__all__ = ["KINDS", "PHRASES", "Refused", "told_error", "translated"]
