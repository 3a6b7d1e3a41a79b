"""Encoded messages, kept so that a request costs what is new in it. All adapters share this."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from windlass.messages import Message, Messages, ToolCallPart, ToolResultPart

Wire: TypeAlias = dict[str, Any]
WireId: TypeAlias = Callable[[str, str | None], str]
IdOf: TypeAlias = Callable[[ToolCallPart | ToolResultPart], str]
Encode: TypeAlias = Callable[[Message, IdOf], list[Wire]]
Join: TypeAlias = Callable[[list[Wire], list[Wire]], None]

CONVERSATIONS = 64


class History:
    """The encodings of the latest conversations; one is known by its first message.

    `encode` makes the wire form of one message and is given the wire ids of calls, which results refer to; `wire_id`
    makes such an id of our id and the vendor's, or of ours alone where another call has that one; and `join` adds a
    message to those before it: a vendor that wants roles to alternate replaces the last one there (and never changes
    it: it may be in use).
    """

    def __init__(self, encode: Encode, wire_id: WireId, join: Join = list.extend) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._join = join
        self._kept: OrderedDict[int, _Conversation] = OrderedDict()

    def encoded(self, messages: Iterable[Message], before: Iterable[Wire] = ()) -> list[Wire]:
        """What comes before, and the messages as the vendor wants them."""
        current = messages if type(messages) is Messages else Messages(messages)
        if not len(current):
            return list(before)
        items, _, tail = current.shared
        key = id((items or tail)[0])
        # Taken out while in use: another thread with the same first message starts afresh.
        kept = self._kept.pop(key, None) or _Conversation(self._encode, self._wire_id, self._join)
        wire = [*before, *kept.encoded(current)]
        self._kept[key] = kept
        while len(self._kept) > CONVERSATIONS:
            self._kept.popitem(last=False)
        return wire


class _Kept(NamedTuple):
    """A message, its encoding with the wire ids it was made with, and what the row was before: length and last item."""

    message: Message
    wire: list[Wire]
    ids: list[str]
    length: int
    last: Wire | None


class _Conversation:
    """One conversation as it was last sent: its messages, the encoding of each and all of them in a row."""

    def __init__(self, encode: Encode, wire_id: WireId, join: Join) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._join = join
        self._messages: list[Message] = []
        self._kept: list[_Kept] = []
        self._row: list[Wire] = []
        self._ids: dict[str, str] = {}
        self._callers: dict[str, str] = {}
        self._list: list[Message] | None = None
        self._settled = 0
        self._overlaid: Iterable[int] = ()

    def encoded(self, messages: Messages) -> list[Wire]:
        """The conversation, which is still ours: whoever asks makes a copy."""
        start, current = self._unsettled(messages)
        before = self._messages[start:]
        known = len(before)
        if current[:known] != before:
            pairs = zip([*current, None], before, strict=False)
            known = next(at for at, (new, old) in enumerate(pairs) if new is not old)
        dropped = {id(kept.message): kept for kept in self._drop(start + known)}
        for message in current[known:]:
            self._add(message, dropped.get(id(message)))
        return self._row

    def _unsettled(self, messages: Messages) -> tuple[int, list[Message]]:
        """How many messages are surely those of before, as views of one list that only grows, and those after them."""
        items, length, tail = messages.shared
        overlay = messages.overlay or {}
        start = min(self._settled, length) if items is self._list else 0
        for at in (*overlay, *self._overlaid):
            if at < start and messages[at] != self._messages[at]:
                start = at
        self._list, self._settled, self._overlaid = items, length, overlay
        current = items[start:length]
        for at, message in overlay.items():
            if at >= start:
                current[at - start] = message
        return start, [*current, *tail]

    def _drop(self, known: int) -> list[_Kept]:
        """Forget all from a message on; what that was can be used again."""
        dropped = self._kept[known:]
        if dropped:
            del self._row[dropped[0].length :]
            if dropped[0].last is not None:
                self._row[-1] = dropped[0].last
            del self._messages[known:], self._kept[known:]
            if any(kept.message.tool_calls for kept in dropped):
                self._ids, self._callers = {}, {}
                for message in self._messages:
                    self._learn(message)
        return dropped

    def _add(self, message: Message, known: _Kept | None) -> None:
        self._learn(message)
        ids = [self._id_of(part) for part in message.parts if isinstance(part, ToolCallPart | ToolResultPart)]
        wire = known.wire if known and known.ids == ids else self._encode(message, self._id_of)
        self._messages.append(message)
        self._kept.append(_Kept(message, wire, ids, len(self._row), self._row[-1] if self._row else None))
        self._join(self._row, wire)

    def _learn(self, message: Message) -> None:
        """Note the wire ids of the calls of a message. A server may give an id again, in another reply."""
        for part in message.parts:
            if type(part) is ToolCallPart:
                caller = part.id or part.vendor_id or ""
                id = self._wire_id(part.id, part.vendor_id)
                if self._callers.setdefault(id, caller) != caller:
                    id = self._wire_id(part.id, None)
                self._ids[caller] = id

    def _id_of(self, part: ToolCallPart | ToolResultPart) -> str:
        if isinstance(part, ToolCallPart):
            return self._ids[part.id or part.vendor_id or ""]
        return self._ids.get(part.call_id) or self._wire_id(part.call_id, part.call_id)


__all__ = ["Encode", "History", "IdOf", "Join", "Wire", "WireId"]
