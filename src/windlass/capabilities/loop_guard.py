"""LoopGuard: warns a model that repeats a call, then blocks the call."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass.decisions import Deny, Halt, Says
from windlass.errors import ConfigError, ToolError
from windlass.events import ToolCalling
from windlass.messages import Message, ToolCallPart
from windlass.states import State
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

WARNING = "You have made this call {count} times in this turn, with the same arguments. Try something else."
BLOCKED = "this call was made {count} times in this turn with the same arguments, so it is not made again"
SESSIONS = 1024
"""For how many sessions the calls of the current turn are remembered; for others they are counted anew."""

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
        self._made: OrderedDict[str, _Made] = OrderedDict()

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
        state = turn.state
        made = self._made_in(state).counted(state, turn)
        mine = (call.name, call.json)
        count = 1 + made[mine]
        for sibling in state.open.calls if state.open is not None and len(state.open.calls) > 1 else ():
            if sibling.proposed.id == call.id:
                break
            count += _normal(sibling.proposed.name, sibling.proposed.json, turn) == mine
        return count

    def _made_in(self, state: State) -> _Made:
        """The calls of the current turn of a session that were counted so far."""
        made = self._made.pop(state.session, None)
        if made is None or not made.belongs_to(state):
            made = _Made(state.turns, state.turn.start if state.turn is not None else 0)
            if len(self._made) >= SESSIONS:
                self._made.popitem(last=False)
        self._made[state.session] = made
        return made


class _Made:
    """The calls in the messages of a turn, counted up to `end`."""

    __slots__ = ("calls", "end", "last", "turn")

    def __init__(self, turn: int, start: int) -> None:
        self.turn = turn
        self.end = start
        self.last: Message | None = None
        self.calls: Counter[Call] = Counter()

    def belongs_to(self, state: State) -> bool:
        """Whether it counts this turn, and no rewind or other store has changed what was counted."""
        if self.turn != state.turns or self.end > len(state.messages):
            return False
        return self.last is None or state.messages[self.end - 1] is self.last

    def counted(self, state: State, turn: Turn[Any]) -> Counter[Call]:
        """The calls, with those of new messages."""
        messages = state.messages
        for at in range(self.end, len(messages)):
            for part in messages[at].parts if messages[at].role == "assistant" else ():
                if type(part) is ToolCallPart:
                    self.calls[_normal(part.name, part.json, turn)] += 1
        if self.end != len(messages):
            self.end, self.last = len(messages), messages[-1]
        return self.calls


def _normal(name: str, json: str, turn: Turn[Any]) -> Call:
    """A call as hooks see it: arguments in order, with the defaults."""
    tool = turn.tools.get(name)
    try:
        return name, json if tool is None else tool.complete(json)
    except ToolError:
        return name, json
