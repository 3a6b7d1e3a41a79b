"""Turns the chunks of a Chat Completions stream into deltas and, at the end, the whole reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart
from windlass.models.openai.errors import error_from
from windlass.models.parts import text_in

from .decode import (
    KNOWN_FIELDS,
    SEARCH_FIELDS,
    arguments_of,
    content_of,
    custom_function,
    extra_fields,
    first_choice,
    is_complete,
    opaque_parts,
    refuse_error,
    reply,
    thinking_field,
    thinking_of,
)
from .tags import TagSplitter

_GROW = ("text", "summary", "data", "signature", "transcript")
"""The texts that come in pieces; all others, such as the name of a format, are repeated in each piece."""


class _OpenPart:
    """A part that is still being streamed."""

    __slots__ = ("kind", "more", "name", "part", "pieces", "vendor_id")

    def __init__(self, kind: str, part: int, name: str = "", vendor_id: str | None = None) -> None:
        self.kind = kind
        self.part = part
        self.name = name
        self.vendor_id = vendor_id
        self.pieces: list[Any] = []
        self.more: dict[str, Any] = {}


class ChatStream:
    """Reads one chunk after another; `reply` is the whole reply."""

    def __init__(self, vendor: str, tags: tuple[str, str] | None = None) -> None:
        self._vendor = vendor
        self._splitter = TagSplitter(tags)
        self._parts: list[_OpenPart] = []
        self._said: dict[str, _OpenPart] = {}
        self._calls: dict[int | None, _OpenPart] = {}
        self._last_call: _OpenPart | None = None
        self._fields: dict[str, Any] = {}
        self._about: dict[str, Any] = {}
        self._finish: str | None = None
        self._refused = False
        self._done = False

    @property
    def complete(self) -> bool:
        """Whether nothing is missing: the server has reported its end, or the finish and the usage have come.

        Some servers report the end, but never a finish.
        """
        if self._finish is None:
            return self._done and bool(self._parts)
        return self._done or "usage" in self._about

    def end(self) -> None:
        """Called when the server reports the end."""
        self._done = True

    def feed(self, event: Mapping[str, Any]) -> Iterator[AnyDelta]:
        """The deltas of a chunk."""
        for name in ("id", "model", "usage", "service_tier"):
            if event.get(name):
                self._about[name] = event[name]
        if (groq := event.get("x_groq")) and groq.get("usage"):
            self._about["usage"] = groq["usage"]
        choice = first_choice(event.get("choices"))
        if choice is None:
            refuse_error(event)
            self._keep_beside(event)
            return
        if choice.get("error"):
            raise error_from(choice["error"])
        if delta := choice.get("delta"):
            yield from self._delta(delta)
        if choice.get("logprobs"):
            self._keep("logprobs", choice["logprobs"])
        if choice.get("finish_reason"):
            yield from self._rest()
            yield from self._end_custom()
            self._finish = text_in(choice, "finish_reason")
            self._keep_beside(event)
        if choice.get("usage"):
            self._about["usage"] = choice["usage"]

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[AnyDelta]:
        if thinking := thinking_of(delta):
            if "thinking" not in self._said:
                self._fields |= thinking_field(delta, self._vendor)
            yield self._say("thinking", thinking)
        if content := delta.get("content"):
            for kind, data in content_of(content):
                if kind == "opaque":
                    self._grow("opaque").pieces.append(data)
                elif kind == "text":
                    for piece, text in self._splitter.feed(data):
                        yield self._say(piece, text)
                elif data:
                    yield self._say(kind, data)
        if refusal := text_in(delta, "refusal"):
            self._refused = True
            yield self._say("text", refusal)
        for piece in delta.get("tool_calls") or ():
            yield from self._rest()
            if piece.get("custom"):
                self._custom(piece)
            else:
                yield from self._call(piece)
        for name in delta:
            if name not in KNOWN_FIELDS:
                self._keep(name, delta[name])

    def _rest(self) -> Iterator[AnyDelta]:
        """The text that was held back, because it may have been the beginning of a tag."""
        for kind, text in self._splitter.end():
            yield self._say(kind, text)

    def _custom(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a call of a custom tool. Its input is not JSON, so its delta comes at the end."""
        custom = piece["custom"]
        growing = self._calling(piece.get("index"), text_in(piece, "id") or None, text_in(custom, "name"))
        growing.kind = "custom"
        growing.pieces.append(text_in(custom, "input"))

    def _end_custom(self) -> Iterator[AnyDelta]:
        """The arguments of the calls of custom tools."""
        for growing in self._parts:
            if growing.kind == "custom":
                custom = {"name": growing.name, "input": "".join(growing.pieces)}
                growing.kind, growing.more = "call", {**growing.more, "custom": custom}
                growing.pieces = [arguments_of(custom_function(custom))]
                yield ArgumentsDelta(growing.pieces[0], growing.part, name=growing.name)

    def _grow(self, kind: str, name: str = "", vendor_id: str | None = None) -> _OpenPart:
        growing = _OpenPart(kind, len(self._parts), name, vendor_id)
        self._parts.append(growing)
        return growing

    def _say(self, kind: str, text: str) -> AnyDelta:
        growing = self._said.get(kind)
        if growing is None:
            growing = self._said[kind] = self._grow(kind)
        growing.pieces.append(text)
        return TextDelta(text, growing.part) if kind == "text" else ThinkingDelta(text, growing.part)

    def _call(self, piece: Mapping[str, Any]) -> Iterator[AnyDelta]:
        function = piece.get("function") or {}
        growing = self._calling(piece.get("index"), text_in(piece, "id") or None, text_in(function, "name"))
        growing.more.update(extra_fields(piece))
        if text := arguments_of(function):
            growing.pieces.append(text)
            yield ArgumentsDelta(text, growing.part, name=growing.name)

    def _calling(self, index: int | None, vendor_id: str | None, name: str) -> _OpenPart:
        """The call that a piece belongs to. Some servers send no index, a wrong one, or the same for each call.

        A piece with neither an id nor a name continues the previous one.
        """
        growing = self._calls.get(index)
        if growing is None and not name:
            growing = self._known(vendor_id) if vendor_id else self._last_call
        elif growing is not None and vendor_id not in (None, growing.vendor_id):
            growing = self._known(vendor_id) or growing
        if growing is None or (name and _another(growing, vendor_id, name)):
            growing = self._last_call = self._calls[index] = self._grow("call", name, vendor_id)
        growing.name = growing.name or name
        growing.vendor_id = growing.vendor_id or vendor_id
        return growing

    def _known(self, vendor_id: str | None) -> _OpenPart | None:
        return next((growing for growing in self._parts if growing.vendor_id == vendor_id), None)

    def _keep(self, name: str, value: Any) -> None:
        if value:
            before = self._fields.get(name)
            self._fields[name] = value if before is None else _merge(before, value)

    def _keep_beside(self, event: Mapping[str, Any]) -> None:
        """Keep the fields beside an answer; servers send all of them at the end."""
        self._fields |= {name: event[name] for name in SEARCH_FIELDS if event.get(name)}

    def reply(self) -> ModelReply:
        """The whole reply; raises if the stream broke off."""
        list(self._rest())
        list(self._end_custom())
        if not self.complete:
            raise ConnectionFailed("the answer broke off before its end", retryable=True)
        calls = {growing.vendor_id or "": growing.more for growing in self._parts if growing.more}
        parts = (*map(self._part, self._parts), *opaque_parts({**self._fields, "calls": calls}, self._vendor))
        return reply(self._about, parts, self._finish, self._refused, self._vendor)

    def _part(self, growing: _OpenPart) -> Part:
        if growing.kind == "opaque":
            return OpaquePart(self._vendor, growing.pieces[0])
        text = "".join(growing.pieces)
        if growing.kind == "call":
            return ToolCallPart(growing.name, text, vendor_id=growing.vendor_id)
        if growing.kind == "tagged":
            return ThinkingPart(text)
        return TextPart(text) if growing.kind == "text" else ThinkingPart(text, vendor=self._vendor)


def _another(growing: _OpenPart, vendor_id: str | None, name: str) -> bool:
    """Whether a piece with a name starts a new call: it has another id, or no id and another name, or the previous call
    is complete."""
    if vendor_id or growing.vendor_id:
        return bool(vendor_id) and growing.vendor_id not in (None, vendor_id)
    if growing.name not in ("", name):
        return True
    return bool(growing.pieces) and growing.pieces[-1].endswith("}") and is_complete("".join(growing.pieces))


def _merge(before: Any, piece: Any) -> Any:
    """Merge a value of the vendor with its next piece: lists and growing texts are joined."""
    if isinstance(before, list) and isinstance(piece, list):
        return _merge_lists(before, piece)
    if isinstance(before, Mapping) and isinstance(piece, Mapping):
        return {**before, **{name: _merge_field(name, before.get(name), value) for name, value in piece.items()}}
    return before if piece is None else piece


def _merge_field(name: str, before: Any, piece: Any) -> Any:
    if name in _GROW and isinstance(before, str) and isinstance(piece, str):
        return before + piece
    return _merge(before, piece)


def _merge_lists(before: list[Any], pieces: list[Any]) -> list[Any]:
    """A list of details; pieces with the same index and type as the last one are merged into it."""
    details = list(before)
    for piece in pieces:
        if details and isinstance(piece, Mapping) and piece.get("index") is not None and _same(details[-1], piece):
            details[-1] = _merge(details[-1], piece)
        else:
            details.append(piece)
    return details


def _same(last: Any, piece: Mapping[str, Any]) -> bool:
    return isinstance(last, Mapping) and all(last.get(name) == piece.get(name) for name in ("index", "type"))
