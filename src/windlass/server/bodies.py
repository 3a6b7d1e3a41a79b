"""What a request brings: JSON of a type, with limits of size and time."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from .errors import Problem

T = TypeVar("T")


async def read_body(request: Request, *, limit: int, patience: float) -> bytes:
    """The body of a request, if it is JSON, not too large, and comes in time."""
    too_large = Problem(413, "body_too_large", f"the body has more than {limit} bytes")
    if (declared := request.headers.get("content-length", "")).isdigit() and int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(patience):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise Problem(408, "body_too_slow", f"the body did not come within {patience:g} seconds") from None
    except ClientDisconnect:
        raise Problem(400, "invalid_request", "the client left before its body was sent") from None
    if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "not_json", "send the body as application/json")
    return bytes(body)


def decode_body(body: bytes, kind: type[T]) -> T:
    """The body as a value of this type. An empty body stands for an empty object."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise Problem(400, "invalid_request", f"the body is not valid: {error}") from None


def decode_query(request: Request, kind: type[T]) -> T:
    """The parameters of the address as a value of this type."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise Problem(400, "invalid_request", f"the query is not valid: {error}") from None
