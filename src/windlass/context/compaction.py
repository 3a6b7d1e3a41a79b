"""Compaction: what a strategy sees, what it gives, and where a history may be cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from windlass.events import Compaction
from windlass.messages import Message, Messages, Part, ToolCallPart, ToolResultPart
from windlass.protocols import Model
from windlass.states import Shown
from windlass.turns import Turn

from .budget import Meter


class Window(Struct, frozen=True):
    """What the next request would show of the history, and how much room there is.

    `tokens` is about what that request has, before hooks inject anything, and `limit` what it may have: the context
    window of the model, less the answer and what hooks may inject; None if nobody knows. `place` is where the message
    that opened the turn stands, `going` says whether that turn is under way, and `compactions` are those there were.
    `models` has those of the agent by name, and `model` is the one that is asked.
    """

    session: str
    messages: Messages
    place: int
    going: bool
    compactions: tuple[Shown, ...]
    tokens: int
    limit: int | None
    meter: Meter
    model: str = ""
    models: Mapping[str, Model] = {}

    def size(self, messages: Sequence[Message]) -> int:
        """About how many tokens some messages have."""
        return self._theirs(sum([self.meter.counter.message(message) for message in messages]))

    def parts(self, parts: Sequence[Part]) -> int:
        """About how many tokens some parts have."""
        return self._theirs(sum([self.meter.counter.part(part) for part in parts]))

    def text(self, text: str) -> int:
        """About how many tokens a text has."""
        return self._theirs(self.meter.counter.text(text))

    def _theirs(self, ours: int) -> int:
        return self.meter.theirs(ours, self.model)

    def safe(self, start: int, end: int) -> tuple[int, int] | None:
        """The largest range within this one that parts no call from its result; None if there is none."""
        return safe_range(self.messages, start, end)

    def cuts(self) -> list[int]:
        """Before which messages the history may be cut, its end included: no call is parted from its result there."""
        return [at for at, whole in enumerate(_whole(self.messages)) if whole]

    def stays(self, at: int) -> bool:
        """Whether a message stays whatever is compacted: it opened the turn that is under way."""
        return at == self.place and self.going

    def window(self, model: Model) -> int | None:
        """The context window of a model; None if nobody knows."""
        window: int | None = self.meter.budget.windows.get(model.name, getattr(model, "context_window", None))
        return window


class Compactor(Protocol):
    """A strategy. `plan` says what it would replace now, if anything (`forced`: due or not), the hooks on `Compacting`
    may change or deny that, then `replace` gives what takes its place. Whatever it raises, nothing has changed; nothing
    changes either if that would be no smaller.

    Messages that stay are given as they are, the very same objects. The message that opened the turn always stays. One
    strategy serves all sessions of its agent, many at once; `plan` is asked before every request, so it should be quick
    to say no. One with a method `prepare(turn)` is called when a turn of a session has ended, to have something written
    that will soon be due: the guards look at what `turn.ask` sends there, nothing of it is recorded or charged, so ask
    again by the same request in `replace`. One with a method `explained(window)` is asked by `agent.explain()` what
    there is to say of it, as plain data; `window` is the context window of the agent's model, if it is known.
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


def parted(old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether some messages that take the place of others have a call without its result, or a result without it."""
    called = {part.id for message in old for part in message.parts if type(part) is ToolCallPart}
    answered = {part.call_id for message in old for part in message.parts if type(part) is ToolResultPart}
    waiting: set[str] = set()
    for message in new:
        for part in message.parts:
            if type(part) is ToolCallPart and part.id in answered:
                waiting.add(part.id)
            elif type(part) is ToolResultPart and part.call_id in called:
                if part.call_id not in waiting:
                    return True
                waiting.remove(part.call_id)
    return bool(waiting)


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


__all__ = ["Compaction", "Compactor", "Window", "parted", "safe_range"]
