"""The models: they encode a request, send it with OpenAI's SDK and decode what comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from openai import AsyncOpenAI

from windlass.deltas import AnyDelta
from windlass.messages import ModelReply, ModelRequest
from windlass.models.connections import Hearing
from windlass.models.errors import understood
from windlass.models.history import Wire
from windlass.models.settings import narrowed
from windlass.prices import context_window

from .chat.decode import decode as decode_chat
from .chat.encode import ChatEncoder
from .chat.streaming import ChatStream
from .connection import connection
from .dialects import ELSEWHERE, Dialect, chat_dialect, responses_dialect
from .responses.background import finished
from .responses.decode import decode as decode_response
from .responses.encode import ResponsesEncoder
from .responses.streaming import ResponseStream
from .settings import merged


class _Encoder(Protocol):
    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire: ...


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the SDK is told beside the body."""
    return {"headers": settings.get("headers"), "timeout": settings.get("timeout")}


class _Model:
    """What both of OpenAI's ways to ask a model have in common."""

    _path: str

    def __init__(
        self,
        model: str,
        client: AsyncOpenAI | None,
        base_url: str | None,
        api_key: str | None,
        settings: Mapping[str, Any],
        name: str | None,
        dialect: Dialect,
        encoder: _Encoder,
    ) -> None:
        self.name = name or f"{dialect.name}:{model}"
        self._settings = settings
        self.check_settings({})
        self._vendor = dialect.vendor
        self._model = model
        self._encoder = encoder
        self._connection = connection(self.name, client, base_url, api_key, dialect)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        merged(self._settings, settings)

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can have before it, if that is known."""
        return None if self._vendor.endswith(ELSEWHERE) else context_window(self._vendor, self._model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        body = self._encoder.body(request, settings)
        answer = await self._asked(body, _options(settings))
        with understood():
            return self._connection.costed(self._decoded(answer), body["model"])

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator closes the connection."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        body = self._encoder.body(request, settings, streaming=True)
        heard = self._connection.hear(self._path, body, self._hearing(), body["model"], **_options(settings))
        async with aclosing(heard) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the connections that this model has opened in the running event loop."""
        await self._connection.close()

    async def _asked(self, body: Wire, options: dict[str, Any]) -> Any:
        return await self._connection.post(self._path, body, **options)

    def _decoded(self, answer: Any) -> ModelReply:
        raise NotImplementedError

    def _hearing(self) -> Hearing:
        raise NotImplementedError


class OpenAIChat(_Model):
    """A model behind Chat Completions: OpenAI's, or that of any compatible server by its `base_url`.

    Settings are merged with those of each request, which win. A client that is passed in stays the caller's to close.
    How the server's dialect differs from OpenAI's is known by its address; `dialect` says it where it is not.
    """

    _path = "/chat/completions"

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
        address = base_url or getattr(client, "base_url", None)
        own = dialect or chat_dialect(str(address) if address else None, model)
        super().__init__(model, client, base_url, api_key, settings, name, own, ChatEncoder(model, own))

    def _decoded(self, answer: Any) -> ModelReply:
        return decode_chat(answer, self._vendor)

    def _hearing(self) -> Hearing:
        return ChatStream(self._vendor)


class OpenAIResponses(_Model):
    """A model behind OpenAI's Responses. Nothing is stored there: what the model needs again is sent again.

    A reply that is made in the background (`extra={"background": True}`, which stores it) is asked for again every
    `poll_every` seconds until it is there; who stops waiting for it stops it.
    """

    _path = "/responses"

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
        address = base_url or getattr(client, "base_url", None)
        dialect = responses_dialect(str(address) if address else None)
        self._responses = ResponsesEncoder(model, dialect)
        super().__init__(model, client, base_url, api_key, settings, name, dialect, self._responses)
        self._poll_every = poll_every
        self._states_cost = dialect.states_cost

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        self._responses.checked(merged(self._settings, settings))

    async def _asked(self, body: Wire, options: dict[str, Any]) -> Any:
        answer = await super()._asked(body, options)
        return await finished(answer, self._connection, body.get("include"), self._poll_every, options)

    def _decoded(self, answer: Any) -> ModelReply:
        return decode_response(answer, self._vendor, states_cost=self._states_cost)

    def _hearing(self) -> Hearing:
        return ResponseStream(self._vendor, states_cost=self._states_cost)
