"""The models: they encode a request, send it with OpenAI's SDK and decode what comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from openai import AsyncOpenAI

from windlass.deltas import AnyDelta
from windlass.messages import ModelReply, ModelRequest
from windlass.prices import context_window

from .chat.decode import decode as decode_chat
from .chat.encode import ChatEncoder
from .chat.streaming import ChatStream
from .connection import Connection
from .dialects import COMPATIBLE, Dialect, chat_dialect, responses_dialect
from .errors import understood
from .responses.background import finished
from .responses.decode import decode as decode_response
from .responses.encode import ResponsesEncoder
from .responses.streaming import ResponseStream
from .settings import merged


class OpenAIChat:
    """A model behind Chat Completions: OpenAI's, or that of any compatible server by its `base_url`.

    Settings are merged with those of each request, which win. A client that is passed in stays the caller's to close.
    How the server's dialect differs from OpenAI's is known by its address; `dialect` says it where it is not.
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
        address = base_url or getattr(client, "base_url", None)
        own = dialect or chat_dialect(str(address) if address else None, model)
        self.name = name or f"{own.name}:{model}"
        self._settings = settings
        self._vendor = own.vendor
        self._model = model
        self._encoder = ChatEncoder(model, own)
        self._connection = Connection(client, base_url, api_key, own)

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can have before it, if that is known."""
        return None if self._vendor == COMPATIBLE.vendor else context_window(self._vendor, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings)
        answer = await self._connection.post("/chat/completions", body, settings.get("timeout"))
        with understood():
            return self._connection.costed(decode_chat(answer, self._vendor), body["model"])

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings, streaming=True)
        hearing = ChatStream(self._vendor)
        heard = self._connection.hear("/chat/completions", body, hearing, settings.get("timeout"))
        async with aclosing(heard) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()


class OpenAIResponses:
    """A model behind OpenAI's Responses. Nothing is stored there: what the model needs again is sent again.

    A reply that is made in the background (`extra={"background": True}`, which stores it) is asked for again every
    `poll_every` seconds until it is there; who stops waiting for it stops it.
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
        poll_every: float = 2.0,
    ) -> None:
        dialect = responses_dialect(base_url)
        self.name = name or f"{dialect.name}:{model}"
        self._settings = settings
        self._vendor = dialect.vendor
        self._model = model
        self._poll_every = poll_every
        self._encoder = ResponsesEncoder(model, dialect)
        self._encoder.checked(merged(settings, {}))
        self._connection = Connection(client, base_url, api_key, dialect)

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can have before it, if that is known."""
        return None if self._vendor == COMPATIBLE.vendor else context_window(self._vendor, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        settings = merged(self._settings, request.settings)
        body, timeout = self._encoder.body(request, settings), settings.get("timeout")
        answer = await self._connection.post("/responses", body, timeout)
        answer = await finished(answer, self._connection, body.get("include"), self._poll_every, timeout)
        with understood():
            return self._connection.costed(decode_response(answer), body["model"])

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        settings = merged(self._settings, request.settings)
        body = self._encoder.body(request, settings, streaming=True)
        heard = self._connection.hear("/responses", body, ResponseStream(), settings.get("timeout"))
        async with aclosing(heard) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()
