"""The models: they encode a request, send it with OpenAI's SDK and decode what comes back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, AsyncStream

from windlass.deltas import AnyDelta
from windlass.errors import AuthFailed, ConfigError
from windlass.messages import ModelReply, ModelRequest

from .chat.decode import decode as decode_chat
from .chat.encode import ChatEncoder
from .chat.streaming import ChatStream
from .dialects import COMPATIBLE, OPENAI, RESPONSES, Dialect
from .errors import translated, understood
from .responses.decode import decode as decode_response
from .responses.encode import ResponsesEncoder
from .responses.streaming import ResponseStream
from .settings import merged


class _Connection:
    """A client of the SDK that never retries: the one passed in, or one of our own for each event loop."""

    def __init__(self, client: object, base_url: str | None, api_key: str | None, dialect: Dialect) -> None:
        if client is not None and not isinstance(client, AsyncOpenAI):
            raise ConfigError(f"client is a {type(client).__name__}; pass an AsyncOpenAI, or one made from it")
        self._given = client.with_options(max_retries=0) if client is not None else None
        self._address = base_url or dialect.base_url
        self._api_key = api_key
        self._dialect = dialect
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()

    def client(self) -> AsyncOpenAI:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            client = self._own[loop] = AsyncOpenAI(api_key=self._key(), base_url=self._address, max_retries=0)
        return client

    def _key(self) -> str:
        variable = self._dialect.key
        key = self._api_key or (os.environ.get(variable) if variable else None)
        if key:
            return key
        if variable:
            raise AuthFailed(f"no key for {self._dialect.vendor}: set {variable}, or pass api_key=…")
        return "none"

    async def post(self, path: str, body: dict[str, Any], timeout: Any) -> object:
        with translated():
            return await self.client().post(path, cast_to=object, body=body, options=_options(timeout))

    async def stream(self, path: str, body: dict[str, Any], timeout: Any) -> AsyncGenerator[dict[str, Any], None]:
        with translated(streaming=True):
            stream = await self.client().post(
                path, cast_to=object, body=body, options=_options(timeout), stream=True, stream_cls=AsyncStream[object]
            )
            async with stream:
                async for event in stream:
                    if isinstance(event, dict):
                        yield cast("dict[str, Any]", event)

    async def close(self) -> None:
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _options(timeout: Any) -> Any:
    return {} if timeout is None else {"timeout": timeout}


class OpenAIChat:
    """A model behind Chat Completions: OpenAI's, or that of any compatible server by its `base_url`.

    Settings are merged with those of each request, which win. A client that is passed in stays the caller's to close.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        merged(settings, {})
        own = dialect or (OPENAI if base_url is None else _compatible())
        self.name = name or f"{own.vendor}:{model}"
        self._settings = settings
        self._vendor = own.vendor
        self._encoder = ChatEncoder(model, own)
        self._connection = _Connection(client, base_url, api_key, own)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings)
        answer = await self._connection.post("/chat/completions", body, settings.get("timeout"))
        with understood():
            return decode_chat(answer, self._vendor)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings, streaming=True)
        heard = ChatStream(self._vendor)
        async with aclosing(self._connection.stream("/chat/completions", body, settings.get("timeout"))) as chunks:
            async for chunk in chunks:
                with understood():
                    deltas = list(heard.feed(chunk))
                for delta in deltas:
                    yield delta
        with understood():
            reply = heard.reply()
        yield reply

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()


class OpenAIResponses:
    """A model behind OpenAI's Responses. Nothing is stored there: what the model needs again is sent again."""

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
    ) -> None:
        merged(settings, {})
        dialect = RESPONSES if base_url is None else RESPONSES.replace(key=_spare_key())
        self.name = name or f"{dialect.vendor}:{model}"
        self._settings = settings
        self._encoder = ResponsesEncoder(model, dialect)
        self._connection = _Connection(client, base_url, api_key, dialect)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings)
        answer = await self._connection.post("/responses", body, settings.get("timeout"))
        with understood():
            return decode_response(answer)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings, streaming=True)
        heard = ResponseStream()
        async with aclosing(self._connection.stream("/responses", body, settings.get("timeout"))) as events:
            async for event in events:
                with understood():
                    deltas = list(heard.feed(event))
                for delta in deltas:
                    yield delta
        with understood():
            reply = heard.reply()
        yield reply

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()


def _spare_key() -> str | None:
    """A server of one's own may want no key: the variable counts only where it is set."""
    return OPENAI.key if os.environ.get(OPENAI.key or "") else None


def _compatible() -> Dialect:
    return COMPATIBLE.replace(key=_spare_key())
