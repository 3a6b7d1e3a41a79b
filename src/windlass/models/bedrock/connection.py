"""Bedrock over HTTP, with the interface of the other vendors' SDKs: AWS's own SDK for Python is not asynchronous."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Self

import httpx2
import msgspec
from botocore.eventstream import EventStreamBuffer, ParserError

from windlass.errors import ConfigError, ModelError
from windlass.models.connections import Connection, Sdk
from windlass.models.errors import request_id
from windlass.models.parts import readable

from .access import Access
from .decode import METADATA
from .errors import Refused, error_from, translate_error

PATIENCE = httpx2.Timeout(600.0, connect=5.0)
"""The default timeout of an answer, or of the next event of one."""
_CLIENT_DEFAULT = httpx2.Timeout(5.0)


def connection(
    name: str, http: object, base_url: str | None, api_key: str | None, session: Any, region: str | None
) -> Connection:
    """The connection of a model: through the HTTP client that was passed in, or through our own."""
    if http is not None and not isinstance(http, httpx2.AsyncClient):
        kind = f"{type(http).__module__.partition('.')[0]}'s {type(http).__name__}"
        hint = "pass an httpx2.AsyncClient; for credentials and region, pass a botocore or boto3 session as session=…"
        raise ConfigError(f"client of {name!r} is {kind}; {hint}")
    access = Access(name, session, region, base_url, api_key)
    return Connection(Sdk(Events, translate_error, _error_in), None, lambda: Client(access, http))


class Client:
    """Calls Bedrock through one HTTP client, and closes it if it made it."""

    def __init__(self, access: Access, http: httpx2.AsyncClient | None) -> None:
        self._access = access
        self._owns_http = http is None
        self._http = http or httpx2.AsyncClient(timeout=PATIENCE)
        self.timeout = PATIENCE if self._http.timeout == _CLIENT_DEFAULT else self._http.timeout
        self.base_url = access.address

    async def post(
        self, path: str, *, cast_to: object, body: dict[str, Any], options: Mapping[str, Any], stream: bool = False,
        stream_cls: object = None,
    ) -> Events | Answer:  # fmt: skip
        """Post a body; returns a whole answer or a stream of events."""
        content, url = _encode(body), self.base_url + path
        headers = await self._access.headers(url, content, options.get("headers") or {})
        timeout = options.get("timeout", self.timeout)
        request = self._http.build_request("POST", url, content=content, headers=headers, timeout=timeout)
        response = await self._http.send(request, stream=stream)
        if response.status_code != 200:
            try:
                await response.aread()
            finally:
                await response.aclose()
            raise Refused(response)
        return Events(response) if stream else Answer(response)

    async def close(self) -> None:
        """Close the HTTP client if it is ours."""
        if self._owns_http:
            await self._http.aclose()


class Answer:
    """A whole answer. As with AWS's tools, `ResponseMetadata` in its JSON has facts from the headers."""

    def __init__(self, response: httpx2.Response) -> None:
        self.headers = response.headers
        self.status_code = response.status_code
        self.text = response.text

    def json(self) -> Any:
        """The decoded JSON; raises ValueError if it is invalid."""
        body = _decode(self.text)
        return {**body, METADATA: _metadata(self)} if isinstance(body, dict) else body


class Events:
    """The events of a stream, each as its kind and its data. The first event has facts from the headers."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._pieces: Any = response.aiter_bytes()
        self._buffer = EventStreamBuffer()
        self._begun = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # The response is closed first: closing only the pieces would leave it to the garbage collector.
        await self.response.aclose()
        await self._pieces.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        if not self._begun:
            self._begun = True
            return METADATA, _metadata(self.response)
        while (event := self._next()) is None:
            self._buffer.add_data(await anext(self._pieces))
        return event

    def _next(self) -> tuple[str, Any] | None:
        """The next event, if it has arrived completely."""
        try:
            message = next(self._buffer, None)
            return None if message is None else _event(message)
        except (KeyError, struct.error) as error:
            raise ParserError(f"unknown headers ({error!r})") from error


def _event(message: Any) -> tuple[str, Any]:
    """The kind and the data of a message; raises if it reports an error."""
    headers = message.headers
    if headers.get(":message-type", "event") == "event":
        return headers[":event-type"], _decode(message.payload or b"{}")
    kind = headers.get(":exception-type") or headers.get(":error-code") or ""
    raise Refused(None, kind, headers.get(":error-message") or message.payload)


def _metadata(response: httpx2.Response | Answer) -> dict[str, Any]:
    return {"RequestId": request_id(response.headers)}


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate
        return msgspec.json.encode(readable(body))


def _decode(content: bytes | str) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:  # a lone surrogate, or invalid JSON
        try:
            return json.loads(content)
        except ValueError:
            raise error from None


def _error_in(body: Any, response: Any) -> ModelError | None:
    if isinstance(body, Mapping) and "output" not in body and body.keys() & {"message", "Message", "__type"}:
        return error_from("", body, response.status_code, response.headers)
    return None


__all__ = ["Client", "Events", "connection"]
