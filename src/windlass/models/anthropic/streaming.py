"""Turns the events of an Anthropic stream into deltas and, at the end, the whole reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed
from windlass.messages import ModelReply, Part, ToolCallPart
from windlass.models.parts import arguments, text_in

from .decode import FALLBACK, decode_block, make_reply, refusal, usage_numbers
from .errors import error_from

Event = Mapping[str, Any]


class Assembly:
    """Builds a reply from its events. Blocks come one after another; `feed` returns what each event adds.

    It is `complete` once the vendor has reported its end.
    """

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, _Block] = {}
        self._last: _Block | None = None
        self._usage: dict[str, int] = {}
        self._ending: dict[str, Any] = {}
        self.complete = False

    def feed(self, event: Event) -> tuple[AnyDelta, ...]:
        """The deltas of an event; unknown events are ignored."""
        kind = event.get("type")
        if kind == "content_block_delta":
            block = self._blocks.get(event["index"])
            delta = block.add(event["delta"]) if block is not None else None
        elif kind == "message_start":
            return self._begin(event["message"])
        else:
            delta = self._take(kind, event)
        return () if delta is None else (delta,)

    def end(self) -> None:
        """Nothing to do: the end of an Anthropic stream is an event."""

    def _take(self, kind: Any, event: Event) -> AnyDelta | None:
        if kind == "content_block_start":
            return self._start(event["index"], event["content_block"])
        if kind == "content_block_stop":
            block = self._blocks.get(event["index"])
            return block.stop() if block is not None else None
        if kind == "message_delta":
            return self._end(event)
        elif kind == "message_stop":
            self.complete = True
        elif kind == "error":
            raise error_from(event)
        return None

    def reply(self) -> ModelReply:
        """The whole reply, or an error if the stream ended before it did."""
        if self._message is None or not self.complete:
            raise ConnectionFailed("the stream ended before the reply did", retryable=True)
        parts: list[Part] = [part for block in self._blocks.values() for part in block.parts()]
        return make_reply(parts, self._message, self._ending, self._usage)

    def _begin(self, message: Event) -> tuple[AnyDelta, ...]:
        """Begin a message. One that continues after calls inside the vendor's code may have all its blocks and its end
        from the start; later blocks have their own numbers."""
        if self._message is not None:
            return self._begin_again(message)
        self._message = dict(message)
        self._usage.update(usage_numbers(message.get("usage")))
        self._ending |= _present(message, "stop_reason", "stop_details")
        deltas: list[AnyDelta | None] = []
        for place, data in enumerate(message.get("content") or (), 1):
            deltas += [self._start(-place, data), self._blocks[-place].stop()]
        return tuple([delta for delta in deltas if delta is not None])

    def _begin_again(self, message: Event) -> tuple[AnyDelta, ...]:
        """A proxy may repeat the beginning, which is ignored, or mix two streams, which is an error."""
        if self._message and message.get("id") not in (None, self._message.get("id")):
            raise BadReply("a message began inside another", retryable=True)
        return ()

    def _start(self, index: int, data: Event) -> AnyDelta | None:
        block = self._blocks[index] = _Block(dict(data), self._place())
        self._last = block
        if block.kind == FALLBACK and self._message is not None:
            self._message |= _present(data.get("to") or {}, "model")
        return block.begin()

    def _place(self) -> int:
        """The place of the next part: after the parts of the last block."""
        return 0 if self._last is None else self._last.place + len(self._last.parts())

    def _end(self, event: Event) -> AnyDelta | None:
        """Note why the reply ends; a refusal may have an explanation instead of a text."""
        self._usage.update(usage_numbers(event.get("usage")))
        self._ending |= _present(event.get("delta") or {})
        explanation = refusal(self._ending)
        spoken = any(block.kind == "text" for block in self._blocks.values())
        return TextDelta(explanation, self._place()) if explanation and not spoken else None


class _Block:
    """One block while it is streamed: its fields, and the pieces of its growing text."""

    __slots__ = ("_parts", "data", "kind", "name", "pieces", "place")

    def __init__(self, data: dict[str, Any], place: int) -> None:
        self.data = data
        self.kind = data.get("type")
        self.name = text_in(data, "name")
        self.place = place
        self.pieces: list[str] = []
        self._parts: list[Part] | None = None

    def begin(self) -> AnyDelta | None:
        """The delta for the text that the block starts with."""
        if self.kind == "text" and self.data.get("text"):
            self.pieces.append(text_in(self.data, "text"))
            return TextDelta(self.pieces[0], self.place)
        if self.kind == "thinking" and self.data.get("thinking"):
            self.pieces.append(text_in(self.data, "thinking"))
            return ThinkingDelta(self.pieces[0], self.place)
        return None

    def add(self, delta: Event) -> AnyDelta | None:
        """Add a piece to the block."""
        kind = delta.get("type")
        if kind == "text_delta" and self.kind == "text":
            text = text_in(delta, "text")
            self.pieces.append(text)
            return TextDelta(text, self.place) if text else None
        if kind == "thinking_delta" and self.kind == "thinking":
            thought = text_in(delta, "thinking")
            self.pieces.append(thought)
            return ThinkingDelta(thought, self.place) if thought else None
        if kind == "input_json_delta":
            return self._written(text_in(delta, "partial_json"))
        if kind == "signature_delta":
            self.data["signature"] = (self.data.get("signature") or "") + text_in(delta, "signature")
        elif kind == "citations_delta":
            self.data["citations"] = [*(self.data.get("citations") or ()), delta["citation"]]
        else:
            self._grow(delta)
        return None

    def stop(self) -> AnyDelta | None:
        """End the block. If the arguments of a call came whole, or there are none, their delta is returned now."""
        delta = None
        if self.kind == "tool_use" and not self.pieces:
            call = decode_block(self.data)[0]
            delta = self._written(call.json) if type(call) is ToolCallPart else None
        self._parts = self.parts()
        return delta

    def parts(self) -> list[Part]:
        """The parts of the block."""
        if self._parts is not None:
            return self._parts
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

    def _grow(self, fields: Event) -> None:
        """Add a piece of an unknown kind: texts and lists grow, other values are replaced."""
        for name, value in fields.items():
            if name != "type" and value is not None:
                grows = type(value) in (str, list) and type(self.data.get(name)) is type(value)
                self.data[name] = self.data[name] + value if grows else value


def _present(fields: Event, *names: str) -> dict[str, Any]:
    """The fields that are not null: these names, or all."""
    return {name: fields[name] for name in names or fields if fields.get(name) is not None}


__all__ = ["Assembly"]
