"""Errors of all vendors: the meaning of a status, how long to wait, and which errors are ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import TypeAlias

from windlass import errors

Kind: TypeAlias = type[errors.ModelError]

_BY_STATUS: dict[int, Kind] = {
    401: errors.AuthFailed,
    402: errors.QuotaExceeded,
    403: errors.AuthFailed,
    404: errors.ModelNotFound,
    408: errors.ModelTimeout,
    409: errors.ServerError,
    413: errors.ContextOverflow,
    424: errors.ServerError,
    429: errors.RateLimited,
    498: errors.Overloaded,
    499: errors.ConnectionFailed,
    503: errors.Overloaded,
    504: errors.ModelTimeout,
    529: errors.Overloaded,
}
_REQUEST_IDS = (
    "x-goog-request-id", "request-id", "x-request-id", "x-amzn-requestid", "apim-request-id", "x-generation-id",
    "mistral-correlation-id", "x-ds-trace-id", "cf-ray",
)  # fmt: skip


@contextmanager
def translating(translate: Callable[[Exception], errors.ModelError | None]) -> Generator[None]:
    """Turn errors of an SDK, or of the connection below it, into errors of ours; others propagate."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


@contextmanager
def reading_reply() -> Generator[None]:
    """Turn errors in reading a reply into `BadReply`: the server does not follow the protocol."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise errors.BadReply(f"the answer does not follow the protocol: {error!r}", retryable=True) from error


def of_connection(error: Exception) -> errors.ModelError | None:
    """Our error for an error of the connection. Errors are matched by name: SDKs use several HTTP libraries."""
    if _in_a_header(error):
        text = "the request cannot be sent: a header, most likely the key, has a character that is not allowed"
        return errors.AuthFailed(text)
    if isinstance(error, RecursionError):
        return errors.BadReply("the answer is nested too deeply", retryable=True)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return errors.ModelTimeout("the model did not answer in time")
    if names & {"APIConnectionError", "HTTPError", "StreamError", "TransportError", "ClientError", "OSError"}:
        return errors.ConnectionFailed(f"the connection failed: {_reason(error)}")
    if isinstance(error, JSONDecodeError | UnicodeError):
        return errors.ConnectionFailed(f"the answer broke off: {error}")
    return None


def _in_a_header(error: Exception) -> bool:
    """Whether a header could not be sent. The original message quotes the header, which may be a secret."""
    below = error.__cause__ or error
    if isinstance(below, UnicodeEncodeError):
        return below.encoding == "ascii"
    return "Illegal header value" in str(below)


def _reason(error: Exception) -> str:
    """The message of the underlying error, which says more than the SDK's."""
    return str(error.__cause__ or "") or str(error) or type(error).__name__


def of_status(status: int) -> Kind:
    """The kind of error for a status; any status below 400 means an error inside an answer."""
    return _BY_STATUS.get(status) or (errors.BadRequest if 400 <= status < 500 else errors.ServerError)


def request_id(headers: Mapping[str, str]) -> str | None:
    """The vendor's id of a request."""
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds to wait, in any of the forms that servers use."""
    if (milliseconds := seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (number := seconds(text)) is not None:
        return number
    moment, now = _moment(text), _moment(headers.get("date"))
    return None if moment is None else max(0.0, moment - (time.time() if now is None else now))


def seconds(text: str | None) -> float | None:
    """A number of seconds; None if the text is not a number."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if abs(number) < float("inf") else None


def _moment(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


__all__ = [
    "Kind",
    "of_connection",
    "of_status",
    "request_id",
    "reading_reply",
    "retry_after",
    "seconds",
    "translating",
]
