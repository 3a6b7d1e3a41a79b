"""Bedrock over HTTP, in the manner of the vendors' SDKs: AWS's own for Python is not asynchronous."""

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
from .errors import Refused, told_error, translated

PATIENCE = httpx2.Timeout(600.0, connect=5.0)
"""How long an answer, or the next event of one, may take unless `timeout` or the client says."""
_HASTY = httpx2.Timeout(5.0)  # what a client has if nobody says


def connection(
    name: str, http: object, base_url: str | None, api_key: str | None, session: Any, region: str | None
) -> Connection:
    """The connection of a model: over the HTTP client that was passed in, or over one of our own."""
    if http is not None and not isinstance(http, httpx2.AsyncClient):
        kind = f"{type(http).__module__.partition('.')[0]}'s {type(http).__name__}"
        hint = "pass an httpx2.AsyncClient, and as session=… one of botocore or boto3, for credentials and region"
        raise ConfigError(f"client of {name!r} is {kind}; {hint}")
    access = Access(name, session, region, base_url, api_key)
    return Connection(Sdk(Events, translated, _told), None, lambda: Client(access, http))


class Client:
    """Asks Bedrock over one HTTP client; one that it made itself it closes."""

    def __init__(self, access: Access, http: httpx2.AsyncClient | None) -> None:
        self._access = access
        self._given = http is not None
        self._http = http or httpx2.AsyncClient(timeout=PATIENCE)
        self.timeout = PATIENCE if self._http.timeout == _HASTY else self._http.timeout
        self.base_url = access.address

    async def post(
        self, path: str, *, cast_to: object, body: dict[str, Any], options: Mapping[str, Any], stream: bool = False,
        stream_cls: object = None,
    ) -> Events | Answer:  # fmt: skip
        """Post a body; the answer is one, or a stream of events."""
        content, url = _encoded(body), self.base_url + path
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
        """Close what is ours."""
        if not self._given:
            await self._http.aclose()


class Answer:
    """A whole answer. Its JSON says, as AWS's tools do, under `ResponseMetadata` what only the headers say."""

    def __init__(self, response: httpx2.Response) -> None:
        self.headers = response.headers
        self.status_code = response.status_code
        self.text = response.text

    def json(self) -> Any:
        """What it says; raises ValueError for what is no JSON."""
        said = _decoded(self.text)
        return {**said, METADATA: _metadata(self)} if isinstance(said, dict) else said


class Events:
    """The events of a stream, each as its kind and its data. The first one says what only the headers say."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._pieces: Any = response.aiter_bytes()
        self._buffer = EventStreamBuffer()
        self._begun = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # What is behind the pieces is closed first: closing them would leave it to the garbage collector.
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
        """The next event, if all of it is there."""
        try:
            message = next(self._buffer, None)
            return None if message is None else _event(message)
        except (KeyError, struct.error) as error:
            raise ParserError(f"headers that nobody knows ({error!r})") from error


def _event(message: Any) -> tuple[str, Any]:
    """The kind and the data of a message; raises if it tells of an error."""
    headers = message.headers
    if headers.get(":message-type", "event") == "event":
        return headers[":event-type"], _decoded(message.payload or b"{}")
    kind = headers.get(":exception-type") or headers.get(":error-code") or ""
    raise Refused(None, kind, headers.get(":error-message") or message.payload)


def _metadata(response: httpx2.Response | Answer) -> dict[str, Any]:
    return {"RequestId": request_id(response.headers)}


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate
        return msgspec.json.encode(readable(body))


def _decoded(said: bytes | str) -> Any:
    try:
        return msgspec.json.decode(said)
    except msgspec.DecodeError as error:  # a lone surrogate, or no JSON at all
        try:
            return json.loads(said)
        except ValueError:
            raise error from None


def _told(body: Any, response: Any) -> ModelError | None:
    if isinstance(body, Mapping) and "output" not in body and body.keys() & {"message", "Message", "__type"}:
        return told_error("", body, response.status_code, response.headers)
    return None


__all__ = ["Client", "Events", "connection"]
