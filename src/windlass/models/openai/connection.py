"""The wire to the vendor, through OpenAI's SDK: one request at a time, never repeated, with a limit to our patience."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import httpx2
from openai import AsyncOpenAI, AsyncStream

from windlass.deltas import AnyDelta
from windlass.errors import AuthFailed, BadReply, ConfigError, ConnectionFailed, ModelError, ModelTimeout
from windlass.messages import ModelReply
from windlass.prices import costed

from .dialects import Dialect
from .errors import request_id_of, said, translated, understood

_END = object()


class Hearing(Protocol):
    """Takes the events of a stream and makes deltas and a whole of them."""

    @property
    def complete(self) -> bool: ...
    def feed(self, event: Any) -> Iterable[AnyDelta]: ...
    def end(self) -> None: ...
    def reply(self) -> ModelReply: ...


class _Events(AsyncStream[object]):
    """The SDK's stream, which also knows whether the server has said that it is done."""

    done = False

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            self.done = self.done or event.data.startswith("[DONE]")
            yield event


class Connection:
    """A client of the SDK that never retries: the one passed in, or one of our own for each event loop.

    The timeout is for the whole of an answer, and for each event of a stream.
    """

    def __init__(self, client: object, base_url: str | None, api_key: str | None, dialect: Dialect) -> None:
        self._given = _checked(client).with_options(max_retries=0) if client is not None else None
        self._address = base_url or dialect.base_url
        self._api_key = api_key
        self._dialect = dialect
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()

    def client(self) -> AsyncOpenAI:
        """The client for the running event loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            client = self._own[loop] = AsyncOpenAI(
                api_key=self._key(), base_url=self._address, max_retries=0, default_headers=_headers(self._address)
            )
        return client

    def _key(self) -> str:
        variable = self._dialect.key
        key = self._api_key or (os.environ.get(variable) if variable else None)
        if key:
            return key
        if variable:
            raise AuthFailed(f"no key for {self._dialect.vendor}: set {variable}, or pass api_key=…")
        return "none"

    async def post(self, path: str, body: dict[str, Any], timeout: Any = None) -> Any:
        """Post a body, and return what the JSON of the answer says."""
        return await self._asked("post", path, timeout, body=body)

    async def get(self, path: str, params: dict[str, Any], timeout: Any = None) -> Any:
        """Get what the JSON of an answer says."""
        return await self._asked("get", path, timeout, params=params)

    async def _asked(self, method: str, path: str, timeout: Any, params: Any = None, **body: Any) -> Any:
        client = self.client()
        options = {**_options(timeout), **({"params": params} if params else {})}
        with translated():
            async with asyncio.timeout(_seconds(client, timeout)):
                response = await getattr(client, method)(path, cast_to=httpx2.Response, options=options, **body)
        return _told(response)

    async def hear(
        self, path: str, body: dict[str, Any], hearing: Hearing, timeout: Any = None
    ) -> AsyncGenerator[AnyDelta | ModelReply, None]:
        """Post a body, and yield what is made of the events of the answer as they come, last of all the whole."""
        client = self.client()
        seconds = _seconds(client, timeout)
        with translated():
            async with asyncio.timeout(seconds):
                stream = await client.post(
                    path, cast_to=object, body=body, options=_options(timeout), stream=True, stream_cls=_Events
                )
        async with stream:
            try:
                await _refuse_other_than_events(stream.response)
                while (event := await _next(stream, seconds, hearing)) is not _END:
                    with understood():
                        deltas = list(hearing.feed(event))
                    for delta in deltas:
                        yield delta
                if stream.done:
                    hearing.end()
                with understood():
                    reply = self.costed(hearing.reply(), body["model"])
            except ModelError as error:
                error.request_id = error.request_id or request_id_of(stream.response.headers)
                raise
        yield reply

    def costed(self, reply: ModelReply, model: str) -> ModelReply:
        """A reply with what it costs at this address."""
        return costed(reply, str(self.client().base_url), model)

    async def close(self) -> None:
        """Close our own client of the running event loop."""
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _headers(address: str | None) -> dict[str, str]:
    """A plain server nearby gets a new connection each time, which costs nothing: llama.cpp drops used ones unsaid."""
    return {"Connection": "close"} if address is not None and address.startswith("http://") else {}


def _checked(client: object) -> AsyncOpenAI:
    if isinstance(client, AsyncOpenAI):
        return client
    kind = type(client).__name__
    hint = f"this one is not asynchronous: pass an Async{kind}" if hasattr(client, "chat") else "pass an AsyncOpenAI"
    raise ConfigError(f"client is a {kind}; {hint}, or one made from it (AsyncAzureOpenAI …)")


def _options(timeout: Any) -> Any:
    return {} if timeout is None else {"timeout": timeout}


def _seconds(client: AsyncOpenAI, timeout: Any) -> float | None:
    """How long we wait. The client itself only counts from byte to byte, which may be for ever."""
    patience = client.timeout if timeout is None else timeout
    return patience.read if isinstance(patience, httpx2.Timeout) else patience


async def _next(stream: AsyncStream[object], seconds: float | None, hearing: Hearing) -> object:
    """The next event, or the end, which a break is too if nothing is missing."""
    try:
        with translated():
            async with asyncio.timeout(seconds):
                return await anext(stream, _END)
    except (ConnectionFailed, ModelTimeout):
        if hearing.complete:
            return _END
        raise


async def _refuse_other_than_events(response: httpx2.Response) -> None:
    """A server that answers with a whole instead of a stream has something else to say, or does not stream."""
    if "application/json" in (response.headers.get("content-type") or ""):
        with translated():
            await response.aread()
        _told(response)
        raise BadReply("a stream was asked for, and the answer is one piece of JSON")


def _told(response: httpx2.Response) -> Any:
    """What the JSON of an answer says, unless that is nothing but an error."""
    request_id = request_id_of(response.headers)
    try:
        body = response.json()
    except ValueError as error:
        text = f"the answer is no JSON: {response.text[:200]!r}"
        raise BadReply(text, retryable=True, request_id=request_id) from error
    if isinstance(body, dict) and body.get("error") and not body.keys() & {"choices", "output", "status"}:
        raise said(cast("object", body["error"]), request_id=request_id)
    return body
