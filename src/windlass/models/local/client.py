"""The model: encodes a request, runs llama.cpp in this process, and decodes its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from windlass.deltas import AnyDelta
from windlass.errors import ConfigError
from windlass.messages import ModelReply, ModelRequest, ToolSpec
from windlass.models.errors import reading_reply
from windlass.models.media import refuse_unsupported
from windlass.models.openai.chat.streaming import ChatStream
from windlass.models.openai.errors import error_from
from windlass.models.settings import merged, narrow_tools, refuse_lacking
from windlass.models.tokens import Countable

from .calls import CallReader
from .encode import DIALECT, LocalEncoder
from .engine import Chunk, How, engine
from .weights import KNOWN, locate

CONTEXT = 8192


class LocalModel:
    """A model that runs in this process: `smollm2`, or any GGUF file by its path.

    The first request loads the weights, once for all models of a process that share them. They serve one request at a
    time. `threads` is the number of computing threads, `context` the size of the window (0: as the model was trained),
    and `template` a chat template instead of the model's own. Settings are merged with those of each request, which
    win.
    """

    knows_cost = True

    def __init__(
        self,
        model: str,
        *,
        settings: Mapping[str, Any] = {},
        name: str | None = None,
        threads: int = 1,
        context: int = CONTEXT,
        template: str | None = None,
    ) -> None:
        if threads < 1 or context < 0:
            text = "a local model needs at least 1 thread and a context of 0 or more"
            raise ConfigError(f"threads={threads}, context={context}: {text}")
        path, weights = locate(model), KNOWN.get(model)
        self.name = name or f"local:{model}"
        self._settings = merged({**(weights.settings if weights else {}), **settings}, {})
        self.check_settings({})
        self._encoder = LocalEncoder(path.stem, weights is not None and weights.small)
        self._engine = engine(path, weights.name if weights else path.stem, How(threads, context, template))

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        all_settings = merged(self._settings, settings)
        refuse_lacking(self.name, (*DIALECT.lacks, "cache"), all_settings)
        if all_settings.get("headers"):
            raise ConfigError("headers: a local model runs in this process, so it cannot use HTTP headers")

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        async with aclosing(self.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    return piece
        raise AssertionError("the stream ended without a reply")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Send a request, and yield the reply piece by piece. Closing the generator stops the model."""
        refuse_unsupported(request.messages, DIALECT.accepts, self.name, DIALECT.media)
        request, settings = narrow_tools(request, merged(self._settings, request.settings))
        await self._engine.start()
        body, tools = self._encoder.body(request, settings, self._engine.knows_tools)
        reader = _ReplyReader(tools)
        async with aclosing(self._engine.chunks(body, settings.get("timeout"))) as chunks:
            async for chunk in chunks:
                with reading_reply():
                    deltas = list(reader.feed(chunk))
                for delta in deltas:
                    yield delta
        yield reader.reply()

    async def count_tokens(self, request: Countable) -> int:
        """Not supported."""
        raise ConfigError(f"model={self.name!r} cannot count tokens: llama.cpp counts them in a reply's usage only")


class _ReplyReader:
    """Turns chunks into deltas and a reply, and finds calls in the text."""

    def __init__(self, tools: tuple[ToolSpec, ...]) -> None:
        self._stream = ChatStream("local", DIALECT.tags)
        self._reader = CallReader(tools) if tools else None

    def feed(self, chunk: Chunk) -> Iterator[AnyDelta]:
        """The deltas of a chunk."""
        if chunk.get("error"):
            raise error_from(chunk["error"])
        if self._reader is not None and chunk.get("choices"):
            chunk = {**chunk, "choices": [self._read(self._reader, chunk["choices"][0])]}
        return self._stream.feed(chunk)

    def _read(self, reader: CallReader, choice: dict[str, Any]) -> dict[str, Any]:
        delta = {**choice["delta"]}
        words = delta.pop("content", None)
        found = reader.read(words) if words else {}
        if choice.get("finish_reason"):
            found = found or reader.rest()
        return {**choice, "delta": {**delta, **found}}

    def reply(self) -> ModelReply:
        """The whole reply. Its cost is known: nothing."""
        reply = self._stream.reply()
        return reply.replace(usage=reply.usage.replace(cost=0.0))
