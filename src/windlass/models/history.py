"""Encoded messages, kept so that a request costs what is new in it. All adapters share this."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from windlass.messages import Message, Messages, ToolCallPart, ToolResultPart

Wire: TypeAlias = dict[str, Any]
WireId: TypeAlias = Callable[[str, str | None], str]
Encode: TypeAlias = Callable[[Message, Callable[[ToolResultPart], str]], list[Wire]]
Join: TypeAlias = Callable[[list[Wire], list[Wire]], None]

CONVERSATIONS = 64


class History:
    """The encodings of the latest conversations; one is known by its first message.

    `encode` makes the wire form of one message and is given the wire id of the call that a result belongs to,
    `wire_id` makes that id of our id and the vendor's, and `join` adds a message to those before it: a vendor that
    wants roles to alternate replaces the last one there (and never changes it: it may be in use).
    """

    def __init__(self, encode: Encode, wire_id: WireId, join: Join = list.extend) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._join = join
        self._kept: OrderedDict[int, _Conversation] = OrderedDict()

    def encoded(self, messages: Iterable[Message], before: Iterable[Wire] = ()) -> list[Wire]:
        """What comes before, and the messages as the vendor wants them."""
        current = messages if type(messages) is Messages else list(messages)
        if not len(current):
            return list(before)
        key = id(current[0])
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
        self._list: list[Message] | None = None
        self._settled = 0

    def encoded(self, messages: Sequence[Message]) -> list[Wire]:
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

    def _unsettled(self, messages: Sequence[Message]) -> tuple[int, list[Message]]:
        """How many messages are surely those of before, as views of one list that only grows, and those after them."""
        if type(messages) is not Messages or messages.overlay:
            self._list, self._settled = None, 0
            return 0, list(messages)
        items, length, tail = messages.shared
        start = min(self._settled, length) if items is self._list else 0
        self._list, self._settled = items, length
        return start, [*items[start:length], *tail]

    def _drop(self, known: int) -> list[_Kept]:
        """Forget all from a message on; what that was can be used again."""
        dropped = self._kept[known:]
        if dropped:
            del self._row[dropped[0].length :]
            if dropped[0].last is not None:
                self._row[-1] = dropped[0].last
            del self._messages[known:], self._kept[known:]
            if any(kept.message.tool_calls for kept in dropped):
                self._ids = {}
                for message in self._messages:
                    self._learn(message)
        return dropped

    def _add(self, message: Message, known: _Kept | None) -> None:
        self._learn(message)
        ids = [self._id_of(part) for part in message.parts if type(part) is ToolResultPart]
        wire = known.wire if known and known.ids == ids else self._encode(message, self._id_of)
        self._messages.append(message)
        self._kept.append(_Kept(message, wire, ids, len(self._row), self._row[-1] if self._row else None))
        self._join(self._row, wire)

    def _learn(self, message: Message) -> None:
        """Note the wire ids of the calls of a message."""
        for part in message.parts:
            if type(part) is ToolCallPart:
                self._ids[part.id or part.vendor_id or ""] = self._wire_id(part.id, part.vendor_id)

    def _id_of(self, result: ToolResultPart) -> str:
        return self._ids.get(result.call_id) or self._wire_id(result.call_id, result.call_id)


def by_role(content: str) -> Join:
    """A join for vendors who want the roles to alternate: what has the role of the message before it goes into that."""

    def join(row: list[Wire], wire: list[Wire]) -> None:
        for one in wire:
            if row and row[-1]["role"] == one["role"]:
                row[-1] = {**row[-1], content: [*row[-1][content], *one[content]]}
            else:
                row.append(one)

    return join


__all__ = ["History", "Join", "Wire", "WireId", "by_role"]
