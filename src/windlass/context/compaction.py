"""Compaction: what a strategy sees, what it gives, and where a history may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from windlass.events import Compaction
from windlass.messages import Message, Messages, ToolCallPart, ToolResultPart
from windlass.states import State
from windlass.turns import Turn

from .budget import Meter


class Window(Struct, frozen=True):
    """What the next request would show of the history, and how much room there is.

    `tokens` is about what that request has, before hooks inject anything, and `limit` what it may have: the context
    window of the model, less the answer and what hooks may inject; None if nobody knows. `place` is where the message
    that opened the turn stands.
    """

    state: State
    messages: Messages
    place: int
    tokens: int
    limit: int | None
    meter: Meter
    model: str = ""

    def size(self, messages: Sequence[Message]) -> int:
        """About how many tokens some messages have."""
        ours = sum([self.meter.counter.message(message) for message in messages])
        return round(ours * self.meter.budget.factors.get(self.model, 1.0))

    def safe(self, start: int, end: int) -> tuple[int, int] | None:
        """The largest range within this one that parts no call from its result; None if there is none."""
        return safe_range(self.messages, start, end)


class Compactor(Protocol):
    """A strategy. `plan` says what it would replace now, if anything (`forced`: due or not), the hooks on `Compacting`
    may change or deny that, then `replace` gives what takes its place. Whatever it raises, nothing has changed.

    Messages that stay are given as they are, the very same objects. The message that opened the turn always stays.
    """

    @property
    def name(self) -> str: ...
    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None: ...
    async def replace(self, plan: Compaction, window: Window, turn: Turn[Any]) -> Sequence[Message]: ...


def safe_range(messages: Sequence[Message], start: int, end: int) -> tuple[int, int] | None:
    """The largest range within (start, end) at whose ends no call is parted from its result."""
    whole = _whole(messages)
    end = min(end, len(messages))
    first = next((at for at in range(max(start, 0), end) if whole[at]), None)
    if first is None:
        return None
    last = next(at for at in range(end, first - 1, -1) if whole[at])
    return (first, last) if last > first else None


def _whole(messages: Sequence[Message]) -> list[bool]:
    """Before which messages, and whether at the end, every call has its result."""
    waiting: set[str] = set()
    found: list[bool] = []
    answered = {part.call_id for message in messages for part in message.parts if type(part) is ToolResultPart}
    for message in messages:
        found.append(not waiting)
        for part in message.parts:
            if type(part) is ToolCallPart and part.id in answered:
                waiting.add(part.id)
            elif type(part) is ToolResultPart:
                waiting.discard(part.call_id)
    return [*found, not waiting]


__all__ = ["Compaction", "Compactor", "Window", "safe_range"]
