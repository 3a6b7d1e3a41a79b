"""LoopGuard: warns a model that repeats a call, then blocks the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass.decisions import Deny, Halt, Says
from windlass.errors import ConfigError, ToolError
from windlass.events import ToolCalling
from windlass.messages import Message, ToolCallPart
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

WARNING = "You have made this call {count} times in this turn, with the same arguments. Try something else."
BLOCKED = "this call was made {count} times in this turn with the same arguments, so it is not made again"
Call: TypeAlias = tuple[str, str]


class LoopGuard:
    """Warn a model beside the result when it makes a call for the `warn`-th time in a turn, and deny it from the
    `block`-th time on. With `halt`, the turn ends at the `halt`-th time.

    Calls are the same if they have the same tool and arguments, in whatever order and with defaults written out or not.
    Calls of one step count, too. Tools that `ignore` names, such as one that polls, may be called as often as you like.
    """

    @check_types
    def __init__(
        self,
        warn: int | None = 3,
        block: int | None = 5,
        *,
        halt: int | None = None,
        ignore: str | Sequence[str] = (),
        name: str = "loop_guard",
    ) -> None:
        require_name("LoopGuard", name)
        stages = {"warn": warn, "block": block, "halt": halt}
        counts = [count for count in stages.values() if count is not None]
        for stage, count in stages.items():
            if count is not None:
                require_count("LoopGuard", stage, count, least=2)
        if not counts or counts != sorted(set(counts)):
            raise ConfigError("LoopGuard: warn, block and halt must grow, and one of them must be given")
        self.name = name
        self.warn, self.block, self.halt = warn, block, halt
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)

    def install(self, registrar: Hooks) -> None:
        """Register the hook."""
        registrar.hook(ToolCalling, name=self.name)(self._judge)

    def summary(self) -> str:
        """The stages, for `explain`."""
        stages = {"warns at": self.warn, "blocks at": self.block, "halts at": self.halt}
        return ", ".join([f"{words} call {count}" for words, count in stages.items() if count])

    def _judge(self, event: ToolCalling) -> Says | None:
        if self.ignore and any(fnmatchcase(event.call.name, pattern) for pattern in self.ignore):
            return None
        count = self._count(event)
        if self.halt and count >= self.halt:
            return Says(decision=Halt(f"{event.call.name!r}: {BLOCKED.format(count=count - 1)}"))
        if self.block and count >= self.block:
            return Says(decision=Deny(BLOCKED.format(count=count - 1)))
        return Says(inject=WARNING.format(count=count)) if self.warn and count >= self.warn else None

    def _count(self, event: ToolCalling) -> int:
        """How often the turn has made this call, this time included. It is counted from the log."""
        turn, call = event.turn, event.call
        mine = (call.name, call.json)
        count = 1 + turn.memo(self, _Made).counted(turn)[mine]
        if call.id.endswith("/1"):  # the first call of its step
            return count
        step = turn.state.open
        for sibling in step.calls if step is not None else ():
            if sibling.proposed.id == call.id:
                break
            count += _normal(sibling.proposed.name, sibling.proposed.json, turn) == mine
        return count


class _Made:
    """The calls in the messages of a turn, counted up to `_end`."""

    __slots__ = ("_calls", "_end", "_last")

    def __init__(self) -> None:
        self._end = -1
        self._last: Message | None = None
        self._calls: Counter[Call] = Counter()

    def counted(self, turn: Turn[Any]) -> Counter[Call]:
        """The calls, with those of new messages. After a rewind they are counted anew."""
        messages, end = turn.context, self._end
        length = len(messages)
        if end < 0 or end > length or (self._last is not None and messages[end - 1] is not self._last):
            state = turn.state.turn
            end, self._calls = state.start if state is not None else 0, Counter()
        for at in range(end, length):
            if (message := messages[at]).role == "assistant":
                for part in message.parts:
                    if type(part) is ToolCallPart:
                        self._calls[_normal(part.name, part.json, turn)] += 1
        if end != length or self._end < 0:
            self._end, self._last = length, messages[-1] if length else None
        return self._calls


def _normal(name: str, json: str, turn: Turn[Any]) -> Call:
    """A call as hooks see it: arguments in order, with the defaults."""
    tool = turn.tools.get(name)
    try:
        return name, json if tool is None else tool.complete(json)
    except ToolError:
        return name, json
