"""The events of a stream of Anthropic as deltas and, at the end, the whole reply."""

from __future__ import annotations

from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply, Part

from .decode import decode_block, make_reply, usage_numbers
from .encode import arguments


class Assembly:
    """Puts a reply together from its events. Blocks come one after another; `feed` says what each event adds."""

    def __init__(self) -> None:
        self._message: Any = None
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, int] = {}
        self._stop: str | None = None
        self._details: Any = None
        self._ended = False

    def feed(self, event: Any) -> AnyDelta | None:
        """Take an event; unknown ones are passed over."""
        kind = event.type
        if kind == "content_block_delta":
            block = self._blocks.get(event.index)
            return block.add(event.delta) if block is not None else None
        if kind == "content_block_start":
            return self._start(event)
        if kind == "content_block_stop":
            block = self._blocks.get(event.index)
            return block.stop() if block is not None else None
        if kind == "message_start":
            self._message = event.message
            self._usage.update(usage_numbers(event.message.usage))
        elif kind == "message_delta":
            self._usage.update(usage_numbers(event.usage))
            self._stop = event.delta.stop_reason or self._stop
            self._details = getattr(event.delta, "stop_details", None) or self._details
        elif kind == "message_stop":
            self._ended = True
        return None

    def reply(self) -> ModelReply:
        """The whole reply, or an error if the stream ended before it did."""
        if self._message is None or not self._ended:
            raise ConnectionFailed("the stream ended before the reply did", retryable=True)
        parts: list[Part] = [part for block in self._blocks.values() for part in block.parts()]
        return make_reply(parts, self._message, self._stop, self._details, self._usage)

    def _start(self, event: Any) -> AnyDelta | None:
        place = sum(len(block.parts()) for block in self._blocks.values())
        block = _Block(event.content_block.to_dict(), place)
        self._blocks[event.index] = block
        return block.begin()


class _Block:
    """One block while it is being said: its fields, and the pieces of what grows in it."""

    __slots__ = ("data", "kind", "name", "pieces", "place")

    def __init__(self, data: dict[str, Any], place: int) -> None:
        self.data = data
        self.kind = data.get("type")
        self.name: str = data.get("name") or ""
        self.place = place
        self.pieces: list[str] = []

    def begin(self) -> AnyDelta | None:
        """What the block has from the start."""
        if self.kind == "text" and self.data.get("text"):
            self.pieces.append(self.data["text"])
            return TextDelta(self.pieces[0], self.place)
        if self.kind == "thinking" and self.data.get("thinking"):
            self.pieces.append(self.data["thinking"])
            return ThinkingDelta(self.pieces[0], self.place)
        return None

    def add(self, delta: Any) -> AnyDelta | None:
        """A piece of the block."""
        kind = delta.type
        if kind == "text_delta":
            self.pieces.append(delta.text)
            return TextDelta(delta.text, self.place)
        if kind == "thinking_delta":
            self.pieces.append(delta.thinking)
            return ThinkingDelta(delta.thinking, self.place)
        if kind == "input_json_delta":
            return self._written(delta.partial_json)
        if kind == "signature_delta":
            self.data["signature"] = (self.data.get("signature") or "") + delta.signature
        elif kind == "citations_delta":
            self.data["citations"] = [*(self.data.get("citations") or ()), delta.citation.to_dict()]
        else:
            self._grow(delta.to_dict())
        return None

    def stop(self) -> AnyDelta | None:
        """A call whose arguments came at once, or has none, says so at its end."""
        if self.kind != "tool_use" or self.pieces:
            return None
        (call, *_) = decode_block(self.data)
        return self._written(call.json)  # type: ignore[union-attr]

    def parts(self) -> list[Part]:
        """The parts that the block has become."""
        text = "".join(self.pieces)
        if self.kind == "text":
            return decode_block({**self.data, "text": text})
        if self.kind == "thinking":
            return decode_block({**self.data, "thinking": text})
        if self.kind == "tool_use" or not text:
            return decode_block(self.data, text)
        return decode_block({**self.data, "input": arguments(text)})

    def _written(self, text: str) -> AnyDelta | None:
        if not text:
            return None
        self.pieces.append(text)
        return ArgumentsDelta(text, self.place, name=self.name) if self.kind == "tool_use" else None

    def _grow(self, fields: dict[str, Any]) -> None:
        """A kind of piece that we do not know: texts and lists grow, anything else is replaced."""
        fields.pop("type", None)
        for name, value in fields.items():
            grows = type(value) in (str, list) and type(self.data.get(name)) is type(value)
            self.data[name] = self.data[name] + value if grows else value


__all__ = ["Assembly"]
