"""The wire to a vendor, through its SDK: one request at a time, never repeated, with a limit to our patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import httpx2

from windlass.deltas import AnyDelta
from windlass.errors import BadReply, ConnectionFailed, ModelError, ModelTimeout
from windlass.messages import ModelReply
from windlass.prices import costed

from .errors import request_id, translating, understood
from .parts import readable

Client = TypeVar("Client")
_END = object()


class Clients(Generic[Client]):
    """A client of our own for each event loop; those of loops that are closed are let go.

    What such a client has below it must not close itself when it is collected: that would be in some other loop.
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
        """What nobody has closed is closed when nobody can use it any more, in the loop that it belongs to."""
        for loop, client in self._own.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close(client), loop)


class Hearing(Protocol):
    """Takes the events of a stream and makes deltas and a whole of them."""

    @property
    def complete(self) -> bool: ...
    def feed(self, event: Any) -> Iterable[AnyDelta]: ...
    def end(self) -> None: ...
    def reply(self) -> ModelReply: ...


class Sdk(NamedTuple):
    """How an SDK of the make of OpenAI's and Anthropic's differs from the other.

    `events` is its class of streams, which may say when the server is `done`; `translated` makes our error of one of
    the SDK's; `told` is the error that the JSON of an answer says instead of a reply.
    """

    events: type[Any]
    translated: Callable[[Exception], ModelError | None]
    told: Callable[[Any, httpx2.Response], ModelError | None]


class Connection:
    """A client of the SDK that never retries: the one passed in, or one of our own for each event loop.

    The timeout is for the whole of an answer, and for each event of a stream.
    """

    def __init__(self, sdk: Sdk, given: Any, make: Callable[[], Any]) -> None:
        self._sdk = sdk
        self._given = None if given is None else given.with_options(max_retries=0)
        self._own: Clients[Any] = Clients(make, lambda client: client.close())

    def client(self) -> Any:
        """The client for the running event loop."""
        return self._own.current() if self._given is None else self._given

    async def post(self, path: str, body: dict[str, Any], **options: Any) -> Any:
        """Post a body, and return what the JSON of the answer says."""
        return await self._asked("post", path, options, body=body)

    async def get(self, path: str, **options: Any) -> Any:
        """Get what the JSON of an answer says."""
        return await self._asked("get", path, options)

    async def _asked(self, method: str, path: str, options: dict[str, Any], **body: Any) -> Any:
        client = self.client()
        options = _said(options)
        with translating(self._sdk.translated):
            async with asyncio.timeout(_patience(client, options)):
                response = await _sent(getattr(client, method), path, cast_to=httpx2.Response, options=options, **body)
        return self._read(response)

    async def hear(
        self, path: str, body: dict[str, Any], hearing: Hearing, model: str, **options: Any
    ) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Post a body, and yield what is made of the events of the answer as they come, last of all the whole."""
        client = self.client()
        options = _said(options)
        patience = _patience(client, options)
        with translating(self._sdk.translated):
            async with asyncio.timeout(patience):
                how = {"cast_to": object, "options": options, "stream": True, "stream_cls": self._sdk.events}
                events = await _sent(client.post, path, body=body, **how)
        async with events:
            try:
                await self._refuse_other_than_events(events.response)
                while (event := await self._next(events, patience, hearing)) is not _END:
                    with understood():
                        deltas = list(hearing.feed(event))
                    for delta in deltas:
                        yield delta
                if getattr(events, "done", False):
                    hearing.end()
                with understood():
                    reply = self.costed(hearing.reply(), model)
            except ModelError as error:
                error.request_id = error.request_id or request_id(events.response.headers)
                raise
        yield reply

    def costed(self, reply: ModelReply, model: str) -> ModelReply:
        """A reply with its cost where that is known: the same model may have another price elsewhere."""
        return costed(reply, str(self.client().base_url), model)

    async def close(self) -> None:
        """Close our own client of the running event loop."""
        await self._own.close()

    async def _next(self, events: Any, patience: float | None, hearing: Hearing) -> object:
        """The next event, or the end, which a break is too if nothing is missing."""
        try:
            with translating(self._sdk.translated):
                async with asyncio.timeout(patience):
                    return await anext(events, _END)
        except (ConnectionFailed, ModelTimeout):
            if hearing.complete:
                return _END
            raise

    async def _refuse_other_than_events(self, response: httpx2.Response) -> None:
        """A server that answers with a whole instead of a stream has something else to say, or does not stream."""
        if "application/json" in (response.headers.get("content-type") or ""):
            with translating(self._sdk.translated):
                await response.aread()
            self._read(response)
            raise BadReply("a stream was asked for, and the answer is one piece of JSON")

    def _read(self, response: httpx2.Response) -> Any:
        """What the JSON of an answer says, unless that is nothing but an error."""
        try:
            body = response.json()
        except (RecursionError, ValueError) as error:
            text = f"the answer is no JSON: {response.text[:200]!r}"
            raise BadReply(text, retryable=True, request_id=request_id(response.headers)) from error
        if (told := self._sdk.told(body, response)) is not None:
            raise told
        return body


async def _sent(send: Callable[..., Any], path: str, **request: Any) -> Any:
    """What comes of a request. Halves of characters, which models and tools may write, keep an SDK from sending it and
    vendors from reading it: then it is sent without them."""
    try:
        return await send(path, **request)
    except UnicodeEncodeError as error:
        if error.encoding == "ascii" or "body" not in request:  # it is in a header
            raise
        return await send(path, **{**request, "body": readable(request["body"])})


def _said(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _patience(client: Any, options: dict[str, Any]) -> float | None:
    """How many seconds we wait. The client itself only counts from byte to byte, which may be for ever."""
    timeout = options.get("timeout", client.timeout)
    seconds: float | None = timeout.read if isinstance(timeout, httpx2.Timeout) else timeout
    return seconds


__all__ = ["Clients", "Connection", "Hearing", "Sdk"]
