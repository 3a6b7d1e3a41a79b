"""The events of a stream of Bedrock as deltas and, at the end, the whole reply."""

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
    """Puts a reply of a model together from its events, each a kind and its data. `feed` says what each event adds.

    It is `complete` once the vendor has said why it has ended; after that it only counts.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._about: dict[str, Any] = {}
        self.complete = False

    def feed(self, event: tuple[str, Data]) -> tuple[AnyDelta, ...]:
        """What an event adds; unknown ones are passed over."""
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
        """The server says that it is done, which here is an event."""

    def reply(self) -> ModelReply:
        """The whole reply, or an error if the stream ended before it did."""
        if not self.complete:
            raise ConnectionFailed("the stream ended before the reply did", retryable=True)
        return make_reply([part for block in self._blocks for part in block.parts()], self._about, self._model)

    def _add(self, index: int, delta: Data) -> AnyDelta | None:
        """A piece. Only calls and what the vendor made say that they begin; the kind of others is that of a piece."""
        block = self._open.get(index)
        for kind, piece in delta.items():
            if piece is None:
                continue
            if block is None or (block.kind != kind and kind != "citation"):
                block = self._begin(index, "text" if kind == "citation" else kind, {})
            added = ADDED[kind](block, piece) if kind in ADDED else block.grow(piece)
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
    """One block while it is being said: its kind, its fields, and the pieces of what grows in it."""

    __slots__ = ("_parts", "data", "kind", "name", "pieces", "place")

    def __init__(self, kind: str, data: Any, place: int) -> None:
        self.kind = kind
        self.data: Any = dict(data) if isinstance(data, Mapping) else data
        self.name = text_in(data, "name") if kind == "toolUse" else ""
        self.place = place
        self.pieces: list[str] = []
        self._parts: list[Part] | None = None

    def text(self, piece: Any) -> AnyDelta | None:
        """A piece of the answer."""
        text = piece if type(piece) is str else text_in({"text": piece}, "text")
        self.pieces.append(text)
        return TextDelta(text, self.place) if text else None

    def citation(self, piece: Data) -> AnyDelta | None:
        """Something that the text cites."""
        self.data.setdefault("citations", []).append(piece)
        return None

    def reasoning(self, piece: Data) -> AnyDelta | None:
        """A piece of a thought, or of its signature, or of one that is hidden."""
        thought = text_in(piece, "text")
        self.pieces.append(thought)
        if signature := text_in(piece, "signature"):
            self.data["signature"] = self.data.get("signature", "") + signature
        if hidden := text_in(piece, "redactedContent"):
            self.data["redactedContent"] = _added(self.data.get("redactedContent"), hidden)
        return ThinkingDelta(thought, self.place) if thought else None

    def input(self, piece: Data) -> AnyDelta | None:
        """A piece of the arguments of a call."""
        text = text_in(piece, "input")
        if not text:
            return None
        self.pieces.append(text)
        return ArgumentsDelta(text, self.place, name=self.name) if self.data.get("type") in OURS else None

    def result(self, piece: list[Data]) -> AnyDelta | None:
        """A piece of what a tool of the vendor's found; texts grow."""
        content = self.data.setdefault("content", [])
        for item in piece:
            if "text" in item and content and "text" in content[-1]:
                content[-1] = {"text": content[-1]["text"] + item["text"]}
            else:
                content.append(dict(item))
        return None

    def image(self, piece: Data) -> AnyDelta | None:
        """A piece of a picture."""
        source = piece.get("source") or {}
        if data := text_in(source, "bytes"):
            before = (self.data.get("source") or {}).get("bytes")
            self.data["source"] = {"bytes": _added(before, data)}
            return None
        return self.grow(piece)

    def grow(self, piece: Any) -> AnyDelta | None:
        """A kind of piece that we do not know: texts and lists grow, anything else is replaced."""
        if not isinstance(piece, Mapping) or not isinstance(self.data, dict):
            self.data = self.data + piece if type(piece) in (str, list) and type(self.data) is type(piece) else piece
            return None
        for name, value in piece.items():
            grows = type(value) in (str, list) and type(self.data.get(name)) is type(value)
            self.data[name] = self.data[name] + value if grows else value
        return None

    def stop(self) -> AnyDelta | None:
        """The block is whole. A call that has no arguments says so now."""
        told = None
        if self.kind == "toolUse" and not self.pieces:
            call = decode_block({"toolUse": self.data})[0]
            told = self.input({"input": call.json}) if type(call) is ToolCallPart else None
        self._parts = self.parts()
        return told

    def parts(self) -> list[Part]:
        """The parts that the block has become: those of a block that was said at once."""
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
            told = bool(text or thought or not hidden)
            return [*(decode_block({self.kind: {"reasoningText": {"text": text, **thought}}}) if told else ()), *hidden]
        if self.kind == "toolUse":
            given = {"input": arguments(text)} if text and self.data.get("type") not in OURS else {}
            return decode_block({self.kind: {**self.data, **given}}, text)
        return decode_block({self.kind: self.data})


def _added(before: str | None, piece: str) -> str:
    """Two pieces of bytes, each in base64, as one."""
    return piece if before is None else b64encode(b64decode(before) + b64decode(piece)).decode()


ADDED: dict[str, Callable[[_Block, Any], AnyDelta | None]] = {
    "text": _Block.text,
    "citation": _Block.citation,
    "reasoningContent": _Block.reasoning,
    "toolUse": _Block.input,
    "toolResult": _Block.result,
    "image": _Block.image,
}

__all__ = ["Assembly"]
