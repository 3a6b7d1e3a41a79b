"""Connections to a vendor through its SDK: requests are never retried, and every wait has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import httpx2

from windlass.deltas import AnyDelta
from windlass.errors import BadReply, ConnectionFailed, ModelError, ModelTimeout
from windlass.messages import ModelReply
from windlass.prices import costed

from .errors import reading_reply, request_id, translating
from .limits import limits_in
from .parts import readable

Client = TypeVar("Client")
_END = object()


class Clients(Generic[Client]):
    """A client for each event loop. Clients of closed loops are dropped.

    A client's own connections must not close themselves when they are garbage collected: another loop might run then.
    """

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        self._make = make
        self._close = close
        self._own: dict[asyncio.AbstractEventLoop, Client] = {}

    def current(self) -> Client:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            self._own = {loop: own for loop, own in self._own.items() if not loop.is_closed()}
            client = self._own[loop] = self._make()
        return client

    async def close(self) -> None:
        """Close the client of the running event loop, if there is one."""
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)

    def __del__(self) -> None:
        """Close the remaining clients, each in its own loop."""
        for loop, client in self._own.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close(client), loop)


class Posted(NamedTuple):
    """The decoded JSON of an answer, and its headers."""

    body: Any
    headers: Mapping[str, str]


class StreamReader(Protocol):
    """Turns the events of a stream into deltas and a whole reply."""

    @property
    def complete(self) -> bool: ...
    def feed(self, event: Any) -> Iterable[AnyDelta]: ...
    def end(self) -> None: ...
    def reply(self) -> ModelReply: ...


class Sdk(NamedTuple):
    """The differences between the SDKs of OpenAI and Anthropic, and others like them.

    `events` is its stream class, which may know when the server is `done`; `translate` turns an error of the SDK into
    ours; `error_in` returns the error that the JSON of an answer reports instead of a reply.
    """

    events: type[Any]
    translate: Callable[[Exception], ModelError | None]
    error_in: Callable[[Any, httpx2.Response], ModelError | None]


class Connection:
    """A client of the SDK that never retries: the one passed in, or our own for each event loop.

    The timeout applies to a whole answer, and to each event of a stream.
    """

    def __init__(self, sdk: Sdk, client: Any, make: Callable[[], Any]) -> None:
        self._sdk = sdk
        self._client = None if client is None else client.with_options(max_retries=0)
        self._own: Clients[Any] = Clients(make, lambda client: client.close())

    def client(self) -> Any:
        """The client for the running event loop."""
        return self._own.current() if self._client is None else self._client

    async def post(self, path: str, body: dict[str, Any], **options: Any) -> Posted:
        """Post a body, and return the answer."""
        return await self._request("post", path, options, body=body)

    async def get(self, path: str, **options: Any) -> Posted:
        """Get an answer."""
        return await self._request("get", path, options)

    async def _request(self, method: str, path: str, options: dict[str, Any], **body: Any) -> Posted:
        client = self.client()
        options = _without_none(options)
        with translating(self._sdk.translate):
            async with asyncio.timeout(_timeout(client, options)):
                response = await _send(getattr(client, method), path, cast_to=httpx2.Response, options=options, **body)
        return Posted(self._read(response), response.headers)

    async def stream(
        self, path: str, body: dict[str, Any], reader: StreamReader, model: str, **options: Any
    ) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Post a body, and yield the deltas of the answer as they come, then the whole reply."""
        client = self.client()
        options = _without_none(options)
        timeout = _timeout(client, options)
        with translating(self._sdk.translate):
            async with asyncio.timeout(timeout):
                how = {"cast_to": object, "options": options, "stream": True, "stream_cls": self._sdk.events}
                events = await _send(client.post, path, body=body, **how)
        async with events:
            try:
                await self._refuse_other_than_events(events.response)
                while (event := await self._next(events, timeout, reader)) is not _END:
                    with reading_reply():
                        deltas = list(reader.feed(event))
                    for delta in deltas:
                        yield delta
                if getattr(events, "done", False):
                    reader.end()
                with reading_reply():
                    reply = self.finished(reader.reply(), model, events.response.headers)
            except ModelError as error:
                error.request_id = error.request_id or request_id(events.response.headers)
                raise
        yield reply

    def finished(self, reply: ModelReply, model: str, headers: Mapping[str, str]) -> ModelReply:
        """A reply with its cost, if the price of the model at this address is known, and with the rate limits that the
        headers report."""
        reply = costed(reply, str(self.client().base_url), model)
        limits = limits_in(headers)
        return reply if limits is None else reply.replace(limits=limits)

    async def close(self) -> None:
        """Close our own client of the running event loop."""
        await self._own.close()

    async def _next(self, events: Any, timeout: float | None, reader: StreamReader) -> object:
        """The next event, or the end. If the reply is complete, a broken connection is the end, too."""
        try:
            with translating(self._sdk.translate):
                async with asyncio.timeout(timeout):
                    return await anext(events, _END)
        except (ConnectionFailed, ModelTimeout):
            if reader.complete:
                return _END
            raise

    async def _refuse_other_than_events(self, response: httpx2.Response) -> None:
        """Raise if a server answers with plain JSON: it reports an error, or it cannot stream."""
        if "application/json" in (response.headers.get("content-type") or ""):
            with translating(self._sdk.translate):
                await response.aread()
            self._read(response)
            raise BadReply("the server was asked for a stream, but answered with plain JSON")

    def _read(self, response: httpx2.Response) -> Any:
        """The decoded JSON of an answer; raises if it only reports an error."""
        try:
            body = response.json()
        except (RecursionError, ValueError) as error:
            text = f"the answer is not JSON: {response.text[:200]!r}"
            raise BadReply(text, retryable=True, request_id=request_id(response.headers)) from error
        if (reported := self._sdk.error_in(body, response)) is not None:
            raise reported
        return body


async def _send(send: Callable[..., Any], path: str, **request: Any) -> Any:
    """Send a request. If it contains lone surrogates, which models and tools may write, SDKs cannot encode it: then it
    is sent without them."""
    try:
        return await send(path, **request)
    except UnicodeEncodeError as error:
        if error.encoding == "ascii" or "body" not in request:  # the text is in a header
            raise
        return await send(path, **{**request, "body": readable(request["body"])})


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _timeout(client: Any, options: dict[str, Any]) -> float | None:
    """The timeout of a whole answer in seconds. The client itself only limits the time between two bytes."""
    timeout = options.get("timeout", client.timeout)
    seconds: float | None = timeout.read if isinstance(timeout, httpx2.Timeout) else timeout
    return seconds


__all__ = ["Clients", "Connection", "Posted", "Sdk", "StreamReader"]
