"""A cache of encoded messages, so that only the new messages of a request are encoded. All adapters share it."""

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
    """The encodings of the latest conversations, identified by their first message.

    `encode` makes the wire form of one message; it gets a function for the wire ids of calls, which results refer to.
    `wire_id` makes such an id from our id and the vendor's, or from ours alone if another call has the vendor's. `join`
    adds a message to those before it. For a vendor that wants roles to alternate, it replaces the last message, and
    never changes it, because it may be in use.
    """

    def __init__(self, encode: Encode, wire_id: WireId, join: Join = list.extend) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._join = join
        self._conversations: OrderedDict[int, _Conversation] = OrderedDict()

    def encoded(self, messages: Iterable[Message], before: Iterable[Wire] = ()) -> list[Wire]:
        """The wire forms in `before`, then those of the messages."""
        current = messages if type(messages) is Messages else Messages(messages)
        if not len(current):
            return list(before)
        items, _, tail = current.shared
        key = id((items or tail)[0])
        # Removed while in use: another thread with the same first message starts afresh.
        known = self._conversations.pop(key, None) or _Conversation(self._encode, self._wire_id, self._join)
        wire = [*before, *known.encoded(current)]
        self._conversations[key] = known
        while len(self._conversations) > CONVERSATIONS:
            self._conversations.popitem(last=False)
        return wire


class _Entry(NamedTuple):
    """A message, its encoding with the wire ids it used, and the length and last item of the row before it."""

    message: Message
    wire: list[Wire]
    ids: list[str]
    length: int
    last: Wire | None


class _Conversation:
    """One conversation as it was last sent: its messages, the encoding of each, and the row of all encodings."""

    def __init__(self, encode: Encode, wire_id: WireId, join: Join) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._join = join
        self._messages: list[Message] = []
        self._entries: list[_Entry] = []
        self._row: list[Wire] = []
        self._ids: dict[str, str] = {}
        self._callers: dict[str, str] = {}
        self._list: list[Message] | None = None
        self._stable = 0
        self._overlaid: Iterable[int] = ()

    def encoded(self, messages: Messages) -> list[Wire]:
        """The row of encodings. It is reused, so the caller must copy it."""
        start, current = self._unstable(messages)
        before = self._messages[start:]
        known = len(before)
        if current[:known] != before:
            pairs = zip([*current, None], before, strict=False)
            known = next(at for at, (new, old) in enumerate(pairs) if new is not old)
        dropped = {id(entry.message): entry for entry in self._drop(start + known)}
        for message in current[known:]:
            self._add(message, dropped.get(id(message)))
        return self._row

    def _unstable(self, messages: Messages) -> tuple[int, list[Message]]:
        """How many messages are surely unchanged, because they are views of one growing list, and the others."""
        items, length, tail = messages.shared
        overlay = messages.overlay or {}
        start = min(self._stable, length) if items is self._list else 0
        for at in (*overlay, *self._overlaid):
            if at < start and messages[at] != self._messages[at]:
                start = at
        self._list, self._stable, self._overlaid = items, length, overlay
        current = items[start:length]
        for at, message in overlay.items():
            if at >= start:
                current[at - start] = message
        return start, [*current, *tail]

    def _drop(self, known: int) -> list[_Entry]:
        """Drop all entries from a message on, and return them: they may be used again."""
        dropped = self._entries[known:]
        if dropped:
            del self._row[dropped[0].length :]
            if dropped[0].last is not None:
                self._row[-1] = dropped[0].last
            del self._messages[known:], self._entries[known:]
            if any(entry.message.tool_calls for entry in dropped):
                self._ids, self._callers = {}, {}
                for message in self._messages:
                    self._learn(message)
        return dropped

    def _add(self, message: Message, known: _Entry | None) -> None:
        self._learn(message)
        ids = [self._id_of(part) for part in message.parts if isinstance(part, ToolCallPart | ToolResultPart)]
        wire = known.wire if known and known.ids == ids else self._encode(message, self._id_of)
        self._messages.append(message)
        self._entries.append(_Entry(message, wire, ids, len(self._row), self._row[-1] if self._row else None))
        self._join(self._row, wire)

    def _learn(self, message: Message) -> None:
        """Note the wire ids of a message's calls. A server may use the same id again in another reply."""
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
