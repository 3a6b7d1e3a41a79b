"""Encoded messages, kept so that a request costs what is new in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from windlass.messages import Message, ToolCallPart, ToolResultPart

Wire: TypeAlias = dict[str, Any]
WireId: TypeAlias = Callable[[str, str | None], str]
Encode: TypeAlias = Callable[[Message, Callable[[ToolResultPart], str]], list[Wire]]

CONVERSATIONS = 64


class History:
    """The encodings of the latest conversations; one is known by its first message."""

    def __init__(self, encode: Encode, wire_id: WireId) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._kept: OrderedDict[int, _Conversation] = OrderedDict()

    def encoded(self, messages: Iterable[Message], before: Iterable[Wire] = ()) -> list[Wire]:
        """What comes before, and the messages as the vendor wants them."""
        current = list(messages)
        if not current:
            return list(before)
        key = id(current[0])
        # Taken out while in use: another thread with the same first message starts afresh.
        kept = self._kept.pop(key, None) or _Conversation(self._encode, self._wire_id)
        wire = [*before, *kept.encoded(current)]
        self._kept[key] = kept
        while len(self._kept) > CONVERSATIONS:
            self._kept.popitem(last=False)
        return wire


class _Conversation:
    """One conversation as it was last sent: its messages, the encoding of each and all of them in a row."""

    def __init__(self, encode: Encode, wire_id: WireId) -> None:
        self._encode = encode
        self._wire_id = wire_id
        self._messages: list[Message] = []
        self._pieces: list[list[Wire]] = []
        self._flat: list[Wire] = []
        self._ids: dict[str, str] = {}

    def encoded(self, current: list[Message]) -> list[Wire]:
        """The conversation, which is still ours: whoever asks makes a copy."""
        new = current[len(self._messages) :]
        del current[len(self._messages) :]
        if current != self._messages:
            current += new
            self._change(current)
            new = current[len(self._messages) :]
        for message in new:
            self._add(message)
        return self._flat

    def _change(self, current: list[Message]) -> None:
        """Replace what changed before the end; if that touches calls or the length, begin again."""
        changed = [at for at, (old, new) in enumerate(zip(self._messages, current, strict=False)) if old is not new]
        touched = [message for at in changed for message in (self._messages[at], current[at])]
        if len(current) < len(self._messages) or any(message.tool_calls for message in touched):
            self._messages, self._pieces, self._flat, self._ids = [], [], [], {}
            return
        for at in changed:
            self._messages[at] = current[at]
            self._pieces[at] = self._encode(current[at], self._id_of)
        self._flat = [wire for piece in self._pieces for wire in piece]

    def _add(self, message: Message) -> None:
        for part in message.parts:
            if type(part) is ToolCallPart:
                self._ids[part.id or part.vendor_id or ""] = self._wire_id(part.id, part.vendor_id)
        piece = self._encode(message, self._id_of)
        self._messages.append(message)
        self._pieces.append(piece)
        self._flat.extend(piece)

    def _id_of(self, result: ToolResultPart) -> str:
        return self._ids.get(result.call_id) or self._wire_id(result.call_id, result.call_id)
