"""Turns the events of a Bedrock stream into deltas and, at the end, the whole reply."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply, Part, ToolCallPart
from windlass.models.parts import arguments, text_in

from .decode import METADATA, OURS, decode_block, make_reply

Data = Mapping[str, Any]


class Assembly:
    """Builds a reply from its events, each a kind and its data. `feed` returns what each event adds.

    It is `complete` once the vendor has reported why it ended; after that only the usage may come.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._about: dict[str, Any] = {}
        self.complete = False

    def feed(self, event: tuple[str, Data]) -> tuple[AnyDelta, ...]:
        """The deltas of an event; unknown events are ignored."""
        kind, data = event
        delta: AnyDelta | None = None
        if kind == "contentBlockDelta":
            delta = self._add(data["contentBlockIndex"], data["delta"])
        elif kind == "contentBlockStart":
            for name, start in (data["start"] or {}).items():
                if start is not None:
                    self._begin(data["contentBlockIndex"], name, start)
        elif kind == "contentBlockStop":
            block = self._open.pop(data["contentBlockIndex"], None)
            delta = block.stop() if block is not None else None
        elif kind in ("messageStop", "metadata"):
            self._about |= {name: value for name, value in data.items() if value is not None}
            self.complete = self.complete or kind == "messageStop"
        elif kind == METADATA:
            self._about[METADATA] = data
        return () if delta is None else (delta,)

    def end(self) -> None:
        """Nothing to do: the end of a Bedrock stream is an event."""

    def reply(self) -> ModelReply:
        """The whole reply, or an error if the stream ended before it did."""
        if not self.complete:
            raise ConnectionFailed("the stream ended before the reply did", retryable=True)
        return make_reply([part for block in self._blocks for part in block.parts()], self._about, self._model)

    def _add(self, index: int, delta: Data) -> AnyDelta | None:
        """Add a piece. Only calls and the vendor's own blocks have a start event; others start with a piece."""
        block = self._open.get(index)
        for kind, piece in delta.items():
            if piece is None:
                continue
            if block is None or (block.kind != kind and kind != "citation"):
                block = self._begin(index, "text" if kind == "citation" else kind, {})
            added = PIECES[kind](block, piece) if kind in PIECES else block.grow(piece)
            if added is not None:
                return added
        return None

    def _begin(self, index: int, kind: str, data: Any) -> _Block:
        last = self._blocks[-1] if self._blocks else None
        block = _Block(kind, data, 0 if last is None else last.place + len(last.parts()))
        self._blocks.append(block)
        self._open[index] = block
        return block


class _Block:
    """One block while it is streamed: its kind, its fields, and the pieces of its growing text."""

    __slots__ = ("_parts", "data", "kind", "name", "pieces", "place")

    def __init__(self, kind: str, data: Any, place: int) -> None:
        self.kind = kind
        self.data: Any = dict(data) if isinstance(data, Mapping) else data
        self.name = text_in(data, "name") if kind == "toolUse" else ""
        self.place = place
        self.pieces: list[str] = []
        self._parts: list[Part] | None = None

    def text(self, piece: Any) -> AnyDelta | None:
        """Add a piece of text."""
        text = piece if type(piece) is str else text_in({"text": piece}, "text")
        self.pieces.append(text)
        return TextDelta(text, self.place) if text else None

    def citation(self, piece: Data) -> AnyDelta | None:
        """Add a citation of the text."""
        self.data.setdefault("citations", []).append(piece)
        return None

    def reasoning(self, piece: Data) -> AnyDelta | None:
        """Add a piece of a thought, of its signature, or of a hidden thought."""
        thought = text_in(piece, "text")
        self.pieces.append(thought)
        if signature := text_in(piece, "signature"):
            self.data["signature"] = self.data.get("signature", "") + signature
        if hidden := text_in(piece, "redactedContent"):
            self.data["redactedContent"] = _join_base64(self.data.get("redactedContent"), hidden)
        return ThinkingDelta(thought, self.place) if thought else None

    def input(self, piece: Data) -> AnyDelta | None:
        """Add a piece of a call's arguments."""
        text = text_in(piece, "input")
        if not text:
            return None
        self.pieces.append(text)
        return ArgumentsDelta(text, self.place, name=self.name) if self.data.get("type") in OURS else None

    def result(self, piece: list[Data]) -> AnyDelta | None:
        """Add a piece of the result of the vendor's own tool; texts grow."""
        content = self.data.setdefault("content", [])
        for item in piece:
            if "text" in item and content and "text" in content[-1]:
                content[-1] = {"text": content[-1]["text"] + item["text"]}
            else:
                content.append(dict(item))
        return None

    def image(self, piece: Data) -> AnyDelta | None:
        """Add a piece of an image."""
        source = piece.get("source") or {}
        if data := text_in(source, "bytes"):
            before = (self.data.get("source") or {}).get("bytes")
            self.data["source"] = {"bytes": _join_base64(before, data)}
            return None
        return self.grow(piece)

    def grow(self, piece: Any) -> AnyDelta | None:
        """Add a piece of an unknown kind: texts and lists grow, other values are replaced."""
        if not isinstance(piece, Mapping) or not isinstance(self.data, dict):
            self.data = self.data + piece if type(piece) in (str, list) and type(self.data) is type(piece) else piece
            return None
        for name, value in piece.items():
            grows = type(value) in (str, list) and type(self.data.get(name)) is type(value)
            self.data[name] = self.data[name] + value if grows else value
        return None

    def stop(self) -> AnyDelta | None:
        """End the block. For a call without arguments, their delta is returned now."""
        delta = None
        if self.kind == "toolUse" and not self.pieces:
            call = decode_block({"toolUse": self.data})[0]
            delta = self.input({"input": call.json}) if type(call) is ToolCallPart else None
        self._parts = self.parts()
        return delta

    def parts(self) -> list[Part]:
        """The parts of the block, the same as for a block that comes whole."""
        if self._parts is not None:
            return self._parts
        text = "".join(self.pieces)
        if self.kind == "text" and self.data.get("citations"):
            return decode_block({"citationsContent": {"content": [{"text": text}], **self.data}})
        if self.kind == "text":
            return decode_block({"text": text})
        if self.kind == "reasoningContent":
            thought = {name: self.data[name] for name in ("signature",) if name in self.data}
            hidden = [] if "redactedContent" not in self.data else decode_block({"reasoningContent": self.data})
            visible = bool(text or thought or not hidden)
            reasoning = {self.kind: {"reasoningText": {"text": text, **thought}}}
            return [*(decode_block(reasoning) if visible else ()), *hidden]
        if self.kind == "toolUse":
            decoded = {"input": arguments(text)} if text and self.data.get("type") not in OURS else {}
            return decode_block({self.kind: {**self.data, **decoded}}, text)
        return decode_block({self.kind: self.data})


def _join_base64(before: str | None, piece: str) -> str:
    """Join two pieces of bytes, each in base64."""
    return piece if before is None else b64encode(b64decode(before) + b64decode(piece)).decode()


PIECES: dict[str, Callable[[_Block, Any], AnyDelta | None]] = {
    "text": _Block.text,
    "citation": _Block.citation,
    "reasoningContent": _Block.reasoning,
    "toolUse": _Block.input,
    "toolResult": _Block.result,
    "image": _Block.image,
}

__all__ = ["Assembly"]
