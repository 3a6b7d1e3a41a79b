"""The models: encode a request, send it with OpenAI's SDK, and decode the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from openai import AsyncOpenAI

from windlass.deltas import AnyDelta
from windlass.messages import ModelReply, ModelRequest, ToolSpec
from windlass.models.connections import Posted, StreamReader
from windlass.models.errors import reading_reply
from windlass.models.history import Wire
from windlass.models.media import refuse_unsupported
from windlass.models.settings import merged, narrow_tools, refuse_lacking
from windlass.models.tokens import Countable, as_request, cannot_count, count_in
from windlass.prices import context_window, is_listed

from .chat.decode import decode as decode_chat
from .chat.encode import ChatEncoder
from .chat.streaming import ChatStream
from .chat.tags import checked_tags
from .client_tools import client_tools
from .connection import connection
from .dialects import ELSEWHERE, OPENAI, Dialect, chat_dialect, responses_dialect
from .responses.background import wait_until_done
from .responses.decode import decode as decode_response
from .responses.encode import ResponsesEncoder
from .responses.streaming import ResponseStream

_COUNTED = ("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text")
"""The fields of a request that count."""


class _Encoder(Protocol):
    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire: ...


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the request besides its body."""
    return {"headers": settings.get("headers"), "timeout": settings.get("timeout")}


class _Model:
    """The common part of OpenAI's two APIs."""

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
        self._dialect = dialect
        self._settings = settings
        self.check_settings({})
        self._vendor = dialect.vendor
        self._model = model
        self._encoder = encoder
        self._connection = connection(self.name, client, base_url, api_key, dialect)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        refuse_lacking(self.name, (*self._dialect.lacks, "cache"), merged(self._settings, settings))

    @property
    def knows_cost(self) -> bool:
        """Whether the cost of replies is known."""
        return self._dialect.states_cost or is_listed(str(self._connection.client().base_url), self._model)

    @property
    def context_window(self) -> int | None:
        """The size of the context window in tokens, if it is known."""
        listed = self._dialect.listed or self._vendor
        return None if self._vendor.endswith(ELSEWHERE) else context_window(listed, self._model)

    def takes_output(self, request: ModelRequest) -> bool:
        """Whether the vendor can be given the schema of an answer."""
        return self._dialect.schemas

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        body, settings = self._request(request)
        answer = await self._post(body, _options(settings))
        with reading_reply():
            return self._connection.finished(self._decode(answer.body, request.tools), body["model"], answer.headers)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Send a request, and yield the reply piece by piece. Closing the generator closes the connection."""
        body, settings = self._request(request, streaming=True)
        reader = self._reader(request.tools)
        stream = self._connection.stream(self._path, body, reader, body["model"], **_options(settings))
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                yield piece

    async def count_tokens(self, request: Countable) -> int:
        """The number of tokens in a request, or in one message, as the vendor counts them."""
        hint = ", but openai-responses:… can" if self._vendor == OPENAI.vendor else ""
        raise cannot_count(self.name, hint)

    async def aclose(self) -> None:
        """Close the connections that this model has opened on the running event loop."""
        await self._connection.close()

    def _request(self, request: ModelRequest, *, streaming: bool = False) -> tuple[Wire, dict[str, Any]]:
        """The body of a request, and its settings."""
        refuse_unsupported(request.messages, self._dialect.accepts, self.name, self._dialect.media)
        request, settings = narrow_tools(request, merged(self._settings, request.settings))
        return self._encoder.body(request, settings, streaming=streaming), settings

    async def _post(self, body: Wire, options: dict[str, Any]) -> Posted:
        return await self._connection.post(self._path, body, **options)

    def _decode(self, answer: Any, tools: tuple[ToolSpec, ...]) -> ModelReply:
        raise NotImplementedError

    def _reader(self, tools: tuple[ToolSpec, ...]) -> StreamReader:
        raise NotImplementedError


class OpenAIChat(_Model):
    """A model of Chat Completions, at OpenAI or at any compatible server with this `base_url`.

    Settings are merged with those of each request, which win. The caller must close a client that it passes in. The
    server's dialect is recognised by its address; for an unknown address, pass `dialect`. Some servers put thoughts
    between `<think>` and `</think>` at the beginning of an answer. They become thinking parts, except at OpenAI itself;
    `think_tags` is True or False to change that, or the pair of tags.
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
        think_tags: bool | tuple[str, str] | None = None,
    ) -> None:
        address = base_url or getattr(client, "base_url", None)
        own = dialect or chat_dialect(str(address) if address else None, model)
        if think_tags is not None:
            own = own.replace(tags=checked_tags(think_tags))
        super().__init__(model, client, base_url, api_key, settings, name, own, ChatEncoder(model, own))

    def _decode(self, answer: Any, tools: tuple[ToolSpec, ...]) -> ModelReply:
        return decode_chat(answer, self._vendor, self._dialect.tags)

    def _reader(self, tools: tuple[ToolSpec, ...]) -> StreamReader:
        return ChatStream(self._vendor, self._dialect.tags)


class OpenAIResponses(_Model):
    """A model of OpenAI's Responses. Nothing is stored there: each request contains everything the model needs.

    With `extra={"background": True}` the reply is made in the background, and stored; the model polls for it every
    `poll_every` seconds. If the wait is cancelled, so is the reply.
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
        self._responses.check_settings(merged(self._settings, settings))
        super().check_settings(settings)

    async def count_tokens(self, request: Countable) -> int:
        """The number of tokens in a request, or in one message, as the vendor counts them."""
        body, settings = self._request(as_request(request))
        counted = {name: body[name] for name in _COUNTED if name in body}
        answer = await self._connection.post(f"{self._path}/input_tokens", counted, **_options(settings))
        with reading_reply():
            return count_in(answer.body, "input_tokens")

    async def _post(self, body: Wire, options: dict[str, Any]) -> Posted:
        answer = await super()._post(body, options)
        return await wait_until_done(answer, self._connection, body.get("include"), self._poll_every, options)

    def _decode(self, answer: Any, tools: tuple[ToolSpec, ...]) -> ModelReply:
        own = client_tools(tools, self._dialect.name)
        return decode_response(answer, self._vendor, states_cost=self._states_cost, tools=own)

    def _reader(self, tools: tuple[ToolSpec, ...]) -> StreamReader:
        own = client_tools(tools, self._dialect.name)
        return ResponseStream(self._vendor, states_cost=self._states_cost, tools=own)
