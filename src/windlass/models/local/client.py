"""The model: it encodes a request, has llama.cpp answer it in this process, and decodes what is said."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from windlass.deltas import AnyDelta
from windlass.errors import ConfigError
from windlass.messages import ModelReply, ModelRequest, ToolSpec
from windlass.models.errors import understood
from windlass.models.openai.chat.streaming import ChatStream
from windlass.models.openai.errors import said
from windlass.models.openai.settings import merged
from windlass.models.settings import narrowed

from .calls import CallReader
from .encode import LocalEncoder
from .engine import Chunk, How, engine
from .weights import KNOWN, locate

CONTEXT = 8192


class LocalModel:
    """A model that runs in this process: `smollm2`, or any GGUF file by its path.

    The weights are loaded by the first request, once for all models of a process that share them, and serve one request
    at a time. `threads` are those that compute, `context` is the size of the window (0: what the model was trained
    with), `template` a chat template to use instead of the model's own. Settings are merged with those of each request,
    which win.
    """

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
            raise ConfigError(f"threads={threads}, context={context}: a local model needs a thread and a context")
        path, weights = locate(model), KNOWN.get(model)
        self.name = name or f"local:{model}"
        self._settings = merged({**(weights.settings if weights else {}), **settings}, {})
        self.check_settings({})
        self._encoder = LocalEncoder(path.stem, weights is not None and weights.small)
        self._engine = engine(path, weights.name if weights else path.stem, How(threads, context, template))

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for settings that a request to this model cannot have."""
        if merged(self._settings, settings).get("headers"):
            raise ConfigError("headers: a local model is asked in this process, so there is nobody to send them to")

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Ask, and wait for the whole answer."""
        async with aclosing(self.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    return piece
        raise AssertionError("a stream ends with a reply")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Ask, and hear the answer piece by piece; closing the generator stops the model."""
        request, settings = narrowed(request, merged(self._settings, request.settings))
        await self._engine.start()
        body, tools = self._encoder.body(request, settings, self._engine.knows_tools)
        heard = _Heard(tools)
        async with aclosing(self._engine.chunks(body, settings.get("timeout"))) as chunks:
            async for chunk in chunks:
                with understood():
                    deltas = list(heard.feed(chunk))
                for delta in deltas:
                    yield delta
        yield heard.reply()


class _Heard:
    """What was said so far, and the calls that were found in it."""

    def __init__(self, tools: tuple[ToolSpec, ...]) -> None:
        self._stream = ChatStream("local")
        self._reader = CallReader(tools) if tools else None

    def feed(self, chunk: Chunk) -> Iterator[AnyDelta]:
        """The deltas of a chunk."""
        if chunk.get("error"):
            raise said(chunk["error"])
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
        """The whole reply. Nobody is to be paid for it, and that is known."""
        reply = self._stream.reply()
        return reply.replace(usage=reply.usage.replace(cost=0.0))
