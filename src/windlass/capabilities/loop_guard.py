"""LoopGuard: warns a model that repeats a call, then blocks the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from windlass.decisions import Deny, Halt
from windlass.errors import ConfigError, ToolError
from windlass.events import ToolCalling
from windlass.messages import ToolCall, ToolCallPart
from windlass.states import State

from .options import require, require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

WARNING = "You have made this call {count} times in this turn, with the same arguments. Try something else."
BLOCKED = "this call was made {count} times in this turn with the same arguments, so it is not made again"


class LoopGuard:
    """Warn a model beside the result when it makes a call for the `warn`-th time in a turn, and deny it from the
    `block`-th time on. With `halt`, the turn ends at the `halt`-th time.

    Calls are the same if they have the same tool and arguments, in whatever order and with defaults written out or not.
    Calls of one step count, too. Tools that `ignore` names, such as one that polls, may be called as often as you like.
    """

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
        stages = [(stage, count) for stage, count in (("warn", warn), ("block", block), ("halt", halt)) if count]
        for stage, count in (("warn", warn), ("block", block), ("halt", halt)):
            if count is not None:
                require_count("LoopGuard", stage, count, least=2)
        counts = [count for _, count in stages]
        if not stages or counts != sorted(set(counts)):
            raise ConfigError("LoopGuard: warn, block and halt must grow, and one of them must be given")
        self.name = name
        self.warn, self.block, self.halt = warn, block, halt
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        require("LoopGuard", "ignore", ignore, all(isinstance(one, str) for one in self.ignore), "names of tools")
        self._first = counts[0]

    def install(self, registrar: Hooks) -> None:
        """Register the gate and the warning."""
        if self.block or self.halt:
            registrar.gate(ToolCalling, name=self.name, when=self._may_be_due)(self._refuse)
        if self.warn:
            registrar.inject(ToolCalling, name=f"{self.name}.warn", when=self._may_be_due)(self._warn)

    def summary(self) -> str:
        """The stages, for `explain`."""
        stages = {"warns at": self.warn, "blocks at": self.block, "halts at": self.halt}
        return ", ".join([f"{words} call {count}" for words, count in stages.items() if count])

    def _may_be_due(self, event: ToolCalling) -> bool:
        """Whether the turn has made enough calls for anything to be due; this must be quick."""
        state = event.turn.state
        first_step = state.turn is None or state.turn.steps == 0
        few = first_step and (state.open is None or len(state.open.calls) < self._first)
        return not few and not any(fnmatchcase(event.call.name, pattern) for pattern in self.ignore)

    def _refuse(self, event: ToolCalling) -> Deny | Halt | None:
        count = self._count(event)
        if self.halt and count >= self.halt:
            return Halt(f"{event.call.name!r}: {BLOCKED.format(count=count - 1)}")
        return Deny(BLOCKED.format(count=count - 1)) if self.block and count >= self.block else None

    def _warn(self, event: ToolCalling) -> str | None:
        count = self._count(event)
        return WARNING.format(count=count) if self.warn and count >= self.warn else None

    def _count(self, event: ToolCalling) -> int:
        """How often the turn has made this call, this time included."""
        tool = event.tool

        def normal(json: str) -> Any:
            try:
                json = json if tool is None else tool.complete(json)
            except ToolError:
                pass
            return ToolCall("", event.call.name, json).arguments or json

        mine = normal(event.call.json)
        earlier = [json for name, json in _earlier(event.turn.state, event.call.id) if name == event.call.name]
        return 1 + [normal(json) for json in earlier].count(mine)


def _earlier(state: State, until: str) -> Iterator[tuple[str, str]]:
    """Name and arguments of the calls of this turn up to a call, as the model wrote them."""
    start = state.turn.start if state.turn is not None else 0
    messages = state.messages
    for at in range(start, len(messages)):
        for part in messages[at].parts if messages[at].role == "assistant" else ():
            if type(part) is ToolCallPart and part.id != until:
                yield part.name, part.json
    for candidate in state.open.calls if state.open is not None else ():
        if candidate.proposed.id == until:
            return
        yield candidate.proposed.name, candidate.proposed.json
