"""Compaction: what a strategy receives, what it returns, and where a history may be cut."""

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
    """The history as the next request would show it, and the room there is for it.

    `tokens` estimates the size of that request before hooks inject anything. `limit` is its maximum size: the context
    window of the model, less the room for the answer and for injected parts; None if the window is unknown. `place` is
    the index of the message that opened the turn, `going` whether that turn is under way, and `compactions` are the
    earlier ones. `models` has the agent's models by name; `model` is the name of the one in use.
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
        """Estimate the tokens of some messages."""
        return self._theirs(sum([self.meter.counter.message(message) for message in messages]))

    def parts(self, parts: Sequence[Part]) -> int:
        """Estimate the tokens of some parts."""
        return self._theirs(sum([self.meter.counter.part(part) for part in parts]))

    def text(self, text: str) -> int:
        """Estimate the tokens of a text."""
        return self._theirs(self.meter.counter.text(text))

    def _theirs(self, ours: int) -> int:
        return self.meter.theirs(ours, self.model)

    def safe(self, start: int, end: int) -> tuple[int, int] | None:
        """The largest range within this one that separates no call from its result; None without such a range."""
        return safe_range(self.messages, start, end)

    def cuts(self) -> list[int]:
        """The indexes where the history may be cut, its end included: no cut separates a call from its result."""
        return [at for at, whole in enumerate(_whole(self.messages)) if whole]

    def stays(self, at: int) -> bool:
        """Whether a message must not be compacted: it opened the turn that is under way."""
        return at == self.place and self.going

    def window(self, model: Model) -> int | None:
        """The context window of a model; None if it is unknown."""
        window: int | None = self.meter.budget.windows.get(model.name, getattr(model, "context_window", None))
        return window


class Compactor(Protocol):
    """A compaction strategy.

    `plan` returns the range that it would replace now, or None; with `forced`, even if it is not due. Hooks on
    `Compacting` may change or deny the plan. Then `replace` returns the messages that take its place. If it raises, or
    if the result is not smaller, nothing changes.

    Return messages that stay as the same objects. The message that opened the turn always stays. One strategy serves
    all sessions of its agent, many at once. `plan` is called before every request, so it should be fast when nothing is
    due.

    Two methods are optional. `prepare(turn)` is called when a turn has ended, to prepare work that will soon be due.
    Guards check what `turn.ask` sends there, but nothing is recorded or charged, so send the same request again in
    `replace`. `explained(window)` returns plain data for `agent.explain()`; `window` is the context window of the
    agent's model, if it is known.
    """

    @property
    def name(self) -> str:
        """The name in records and in `explain`, unique in an agent."""
        ...

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        """The range that it would replace now, or None."""
        ...

    async def replace(self, plan: Compaction, window: Window, turn: Turn[Any]) -> Sequence[Message]:
        """The messages that take the place of the range."""
        ...


def safe_range(messages: Sequence[Message], start: int, end: int) -> tuple[int, int] | None:
    """The largest range within (start, end) whose ends separate no call from its result."""
    whole = _whole(messages)
    end = min(end, len(messages))
    first = next((at for at in range(max(start, 0), end) if whole[at]), None)
    if first is None:
        return None
    last = next(at for at in range(end, first - 1, -1) if whole[at])
    return (first, last) if last > first else None


def parted(old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether messages that replace others would separate a call from its result."""
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
    """For each message, and for the end, whether all calls before it have their results."""
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
