"""What must hold in every simulated session: ours, checked at each record, and the user's own."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from windlass.decisions import Deny, Halt
from windlass.errors import WindlassError
from windlass.messages import ToolSpec
from windlass.records import (
    Delegated,
    ErrorHandled,
    HookFailed,
    ModelReplied,
    Record,
    ToolAttempted,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    encode,
)
from windlass.states import Fold, State, fold
from windlass.testing.transcripts import unpaired
from windlass.tools import Tool

from .worlds import SESSION, SimulatedWorld, Stage


class Moment:
    """A moment of a simulated session, for an invariant: right after a `record` was stored, or the end (None)."""

    __slots__ = ("_fold", "record", "session", "world")

    def __init__(self, world: SimulatedWorld, session: str, record: Record | None, fold: Fold) -> None:
        self.world = world
        self.session = session
        self.record = record
        self._fold = fold

    @property
    def state(self) -> State:
        """The state of the session at this moment."""
        return self._fold.state

    @property
    def at_end(self) -> bool:
        """Whether the session is over: all that was to happen has happened."""
        return self.record is None


Invariant: TypeAlias = Callable[[Moment], object]
"""A function that raises AssertionError, or returns a text that says what is wrong."""


class _Call(Struct):
    """What the log says of one call."""

    name: str
    json: str | None = None
    refused: bool = False
    called: int = 0
    returned: bool = False
    not_done: bool = False


class Watcher:
    """Watches the log of a session, and of those of its sub-agents, as it grows."""

    def __init__(self, world: Stage, invariants: Sequence[Invariant]) -> None:
        self.seen = 0
        self.logs: dict[str, list[Record]] = {}
        self.tools: Mapping[str, Tool[..., Any]] = {}
        self._world = world
        self._invariants = list(invariants)
        self._folds: dict[str, Fold] = {}
        self._calls: dict[str, _Call] = {}
        self._called: Counter[str] = Counter()
        self._started: Counter[str] = Counter()

    def fold_of(self, session: str = SESSION) -> Fold:
        """The fold of what was stored of a session."""
        return self._folds.setdefault(session, Fold(session))

    def spec_of(self, tool: str) -> ToolSpec | None:
        """How models see a tool."""
        found = self.tools.get(tool)
        return None if found is None else found.spec

    def tools_run(self) -> dict[str, bool]:
        """The tools that do their work here, and whether they have."""
        return {name: self._started[name] > 0 for name, tool in self.tools.items() if tool.effect != "resumable"}

    # ------------------------------------------------------------ while it runs

    def appended(self, session: str, records: Sequence[Record], expected: int) -> None:
        """The store has taken records."""
        known = self.logs.setdefault(session, [])
        fold, latest = self.fold_of(session), known[-1].at if known else 0.0
        if len(known) != expected:
            self._world.violate("store", f"it took records of {session!r} for position {expected}, not {len(known)}")
        known += records
        for record in records:
            self.seen += 1
            try:
                fold.add(record)
            except Exception as error:
                self._world.violate("log", f"record {fold.seq + 1} ({_name(record)}) does not fold: {error!r}")
                return
            if record.at < latest:
                self._world.violate("log", f"time goes back at record {fold.seq} ({_name(record)})")
            latest = record.at
            if (check := self._CHECKS.get(type(record))) is not None:
                check(self, session, record)
            if self._invariants:
                self._ask(Moment(self._world, session, record, fold))
        fold.at = max(fold.at, latest)
        fold.acknowledge(len(records))

    def started(self, tool: str, unsafe: bool) -> None:
        """The function of a tool is called."""
        self._started[tool] += 1
        if unsafe and self._started[tool] > self._called[tool]:
            self._world.violate(
                "unsafe tool",
                f"tool {tool!r} was started {self._started[tool]} times, but the log has {self._called[tool]} starts: "
                "an unsafe tool is started once for each start that is stored, and never before it is stored",
            )

    def _replied(self, session: str, record: ModelReplied) -> None:
        for part in record.reply.message.tool_calls:
            if part.id and part.id not in self._calls:
                self._calls[part.id] = _Call(part.name, part.json)

    def _decided(self, session: str, record: ToolDecided) -> None:
        call = self._calls.setdefault(record.call, _Call(record.name))
        call.json = record.json or call.json
        call.refused = isinstance(record.verdict, Deny | Halt)

    def _begun(self, session: str, record: ToolCalled) -> None:
        call = self._calls.setdefault(record.call, _Call(record.name))
        call.called += 1
        call.name, call.json = record.name, record.json or call.json
        self._called[record.name] += 1
        if call.refused:
            self._world.violate("refused call", f"call {record.call} ({record.name}) runs although it was refused")
        if call.returned:
            self._world.violate("call chain", f"call {record.call} ({record.name}) runs although it has its result")
        tool = self.tools.get(record.name)
        may_repeat = tool is None or tool.repeatable or tool.in_doubt == "ask" or call.not_done
        if call.called > 1 and not may_repeat:
            self._world.violate("unsafe tool", f"call {record.call} of the unsafe tool {record.name!r} is made twice")

    def _attempted(self, session: str, record: ToolAttempted) -> None:
        if record.error is not None and record.error.type == "NotDone" and record.call in self._calls:
            self._calls[record.call].not_done = True

    def _handled(self, session: str, record: ErrorHandled) -> None:
        if record.error.type == "NotDone":
            for call in self._calls.values():
                call.not_done = True

    def _hook_failed(self, session: str, record: HookFailed) -> None:
        error = record.error
        self._world.note_raised(f"hook {record.hook!r} on {record.event}", error.type, error.message)

    def _returned(self, session: str, record: ToolReturned) -> None:
        call = self._calls.setdefault(record.call, _Call(record.name))
        if call.returned:
            self._world.violate("call chain", f"call {record.call} ({record.name}) has two results")
        call.returned = True

    def _turn_ended(self, session: str, record: TurnEnded) -> None:
        fold = self.fold_of(session)
        for wrong in unpaired(fold.state.messages):
            self._world.violate("open call", f"a turn of {session!r} has ended, but {wrong}")

    _CHECKS: ClassVar[dict[type[Record], Any]] = {
        ModelReplied: _replied,
        ToolDecided: _decided,
        ToolCalled: _begun,
        ToolAttempted: _attempted,
        ErrorHandled: _handled,
        HookFailed: _hook_failed,
        ToolReturned: _returned,
        TurnEnded: _turn_ended,
    }

    def _ask(self, moment: Moment) -> None:
        for invariant in list(self._invariants):
            try:
                wrong = invariant(moment)
            except Exception as error:
                wrong = _text_of(error)
            if isinstance(wrong, str) and wrong:
                self._invariants.remove(invariant)
                where = "at the end" if moment.record is None else f"after {_name(moment.record)}"
                self._world.violate(getattr(invariant, "__name__", repr(invariant)), f"{wrong} ({where})")

    # ------------------------------------------------------------ at the end

    async def finish(self, final: State | None, *, verify: bool) -> None:
        """Look at everything once more."""
        world, logs = self._world, self.logs
        for session, known in logs.items():
            if list(await world.store.read(session)) != known:
                world.violate("store", f"session {session!r} is not what was stored: the store lost or changed records")
            if verify:
                await self._verify(session, known)
        state = self.fold_of().state
        if final is not None and final.over and final != state:
            differs = _difference(final, state)
            world.violate("state", f"the log does not fold to the state that the agent returned: {differs}")
        for wrong in _left_over(logs):
            world.violate("sub-agent", wrong)
        self._check_effects()
        if self._invariants:
            self._ask(Moment(world, SESSION, None, self.fold_of()))

    def _check_effects(self) -> None:
        """No call has had an effect twice: there are at least as many calls with the same arguments."""
        made = Counter([(call.name, self._values_of(call)) for call in self._calls.values() if call.called])
        for (tool, values, name), count in self._world.effects.items():
            calls = made[tool, values] + made[tool, ""]
            if count > calls:
                self._world.violate("effect", _repeated(tool, values, name, count, calls))

    def _values_of(self, call: _Call) -> str:
        """The arguments of a call as its tool gets them; empty if they cannot be told."""
        tool = self.tools.get(call.name)
        try:
            return "" if tool is None or call.json is None else repr(tool.prepare(call.json))
        except WindlassError:
            return ""

    async def _verify(self, session: str, known: Sequence[Record]) -> None:
        try:
            await self._world.store.verify(session)
            again = fold(session, [_again(record) for record in known])
            if again != self.fold_of(session).state:
                self._world.violate("log", f"session {session!r} folds to another state after it was encoded")
        except WindlassError as error:
            self._world.violate("log", f"session {session!r} does not verify: {error}")


def _repeated(tool: str, values: str, name: str, count: int, calls: int) -> str:
    if calls:
        times = f"{calls} call" if calls == 1 else f"{calls} calls"
        happened = f"{name!r} happened {count} times in tool {tool!r} with {values}, of which the log has {times}"
    else:
        happened = f"{name!r} happened in a run of tool {tool!r} with {values} of which the log knows nothing"
    declares = "what it declares (`effect`, `retry`) lets it run again or before its start is stored"
    remedy = "Declare it unsafe, or use its idempotency key"
    return f"the effect {happened}: its own code repeats it, or {declares}. {remedy}"


def _again(record: Record) -> Record:
    from windlass.records import decode

    return decode(encode(record))


def _left_over(logs: dict[str, list[Record]]) -> list[str]:
    """The sub-agents that have not ended, although the turn that they work for has."""
    started = [(name, record.session) for name, log in logs.items() for record in log if isinstance(record, Delegated)]
    if not started:
        return []
    states = {name: fold(name, log) for name, log in logs.items()}
    return [
        f"session {child!r} has not ended, although {parent!r} has"
        for parent, child in started
        if child in states and states[parent].over and not states[child].over
    ]


def _difference(one: State, other: State) -> str:
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return f"they differ in {', '.join(names)}"


def _name(record: Record) -> str:
    return type(record).__name__


def _text_of(error: Exception) -> str:
    """What an invariant that raised says."""
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    failed = f"`{place.line}` does not hold" if isinstance(error, AssertionError) else f"it raised {error!r}"
    return f"{failed}, {place.filename.rpartition('/')[2]}:{place.lineno}"
