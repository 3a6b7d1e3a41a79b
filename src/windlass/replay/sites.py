"""Where hooks are asked again: the log answers in place of models, tools, people and the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import field

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._kernel.active_time import ActiveTime
from windlass._kernel.audience import Audience
from windlass._kernel.cancellation import Cancellation
from windlass._kernel.handing_over import key_of
from windlass._kernel.journal import Journal
from windlass._kernel.limits import Limits
from windlass._kernel.program import Program
from windlass._kernel.side_calls import SideCall, SideCalls
from windlass._kernel.site import Site
from windlass.decisions import Answer, Ask, Halt
from windlass.errors import HookError
from windlass.events import ModelCalling
from windlass.messages import ModelReply, as_reply
from windlass.ownership import Claim
from windlass.records import CancelRequested, Delegated, HookFailed, MessageHeld, Record, SideReplied
from windlass.states import Fold, fold_log, over
from windlass.turns import Asker, BackgroundTask, Invocation, Turn, Writes

ReadLog = Callable[[str], Awaitable[Sequence[Record]]]
"""Reads the log of a session."""


class RecordedClock:
    """The clock of a replay: the time is that of the record at hand, and nobody waits.

    `monotonic` is real, so that the time limits of hooks work.
    """

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """The time of the record at hand."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Return at once."""

    async def alarm(self, seconds: float) -> None:
        """Return after some real seconds: a hook that hangs is still ended."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """A time-out in real seconds."""
        return asyncio.timeout(seconds)


class RecordedAnswers:
    """What a log has for hooks that ask: replies to side calls by key and fingerprint, the sessions of agents that
    hooks gave tasks by key, the messages that hooks added, and whether a turn was cancelled."""

    __slots__ = ("cancelled", "children", "messages", "replies")

    def __init__(self, records: Sequence[Record]) -> None:
        self.replies: dict[tuple[str, str], ModelReply] = {}
        self.children: dict[str, str] = {}
        self.messages: set[tuple[str, str, str]] = set()
        self.cancelled = False
        for record in records:
            kind = type(record)
            if kind in _ANSWERS:
                self._add(record)

    def _add(self, record: Record) -> None:
        match record:
            case SideReplied(key=key, fingerprint=fingerprint, reply=reply):
                self.replies.setdefault((key, fingerprint), reply)
            case Delegated(key=key, session=session):
                self.children.setdefault(key, session)
            case MessageHeld(stage=stage, by=by, message=message):
                self.messages.add((stage, by, message.text))
            case _:
                self.cancelled = True


_ANSWERS = frozenset([SideReplied, Delegated, MessageHeld, CancelRequested])


class Lack(HookError):
    """A hook asked for something that the log does not have."""


class RecordedSite(Site):
    """Hooks run here. What they ask for comes from the log; what it lacks is noted in `lacks`, with the hook.

    What they write to slots counts from here on. `failed` has the errors of hooks that have failed since the last
    verdict, by their names.
    """

    __slots__ = ("_log", "_read", "_recorded_calls", "failed", "lacks")

    def __init__(self, program: Program, fold: Fold, scope: Any, log: RecordedAnswers, read: ReadLog) -> None:
        time_ = ActiveTime(program.monotonic, None)
        audience = Audience(program.hooks, program.observers, fold, scope, time_, program.now, program.tools)
        journal = Journal(program, fold, audience, time_, Claim(fold.session, 0))
        limits = Limits(journal, None, None)
        super().__init__(program.hooks, journal, Cancellation(journal), limits, scope, resumed=True)
        self._log = log
        self._read = read
        self.lacks: list[tuple[str, str]] = []
        self.failed: dict[str, str] = {}
        self._recorded_calls = RecordedSideCalls(journal, limits, program.hooks, True, {}, log.replies, self.lacks)

    def lack(self, hook: str, what: str) -> Lack:
        """Note what the log lacks for a hook. Returns the error for the hook."""
        self.lacks.append((hook, what))
        return Lack(f"replay: {hook!r} {what}, and the log does not have that", hook=hook)

    # ------------------------------------------------------------ what hooks write

    def record(self, record: Record) -> None:
        """Forget it, but for who failed: the log has its records already."""
        if type(record) is HookFailed and record.effect != "blocked the loop":
            self.failed[record.hook] = f"{record.error.type}: {record.error.message}"

    def keep(self, writes: Writes, stage: str = "") -> None:
        """Slots count. A message would be in the next request, which was made without it."""
        if any((stage, writes.by, message.text) not in self._log.messages for message in writes.messages):
            self.lack(writes.by, "adds a message to the conversation")
        writes.messages = []
        super().keep(writes, stage)

    def note(self, asker: Asker, kind: str, data: Any) -> None:
        """Notes are facts for observers, and these do not run."""

    def progress(self, asker: Asker, done: float, total: float | None, text: str) -> None:
        """Nobody watches."""

    def beside(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Nothing runs beside a replay."""
        coroutine.close()

    def cancel(self, reason: str = "") -> bool:
        """The turn that was recorded cannot be cancelled any more."""
        if not self._log.cancelled:
            self.lack("a hook", "cancels the turn")
        return True

    # ------------------------------------------------------------ what hooks ask for

    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> Any:
        """A side call: the recorded reply to the same question."""
        return await self._recorded_calls.ask(self, asker, model, messages, options)

    async def delegate(self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]) -> Any:
        """A task for another agent: the recorded result."""
        tool = agent.as_tool(**options)
        return await self._result(asker, agent, tool.agent, self._child(asker, run, tool.agent, task))

    def _child(self, asker: Asker, run: Invocation, agent: str, task: str) -> str:
        """The session of the agent that was given this task."""
        session = self._log.children.get(key_of(self, asker, run, agent, task))
        if session is None:
            raise self.lack(asker.by, f"gives agent {agent.partition(':')[0]!r} a task")
        return session

    async def _result(self, asker: Asker, agent: Any, name: str, session: str) -> Any:
        records = await self._read(session)
        fold = fold_log(session, records) if records else None
        if fold is None or fold.turn is None or not over(fold):
            raise self.lack(asker.by, f"needs the result of agent {name!r}")
        return agent._child_result(fold.state, {}, None, records)

    async def delegate_in_background(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any:
        """A task for an agent in the background: the one that was given then."""
        tool = agent.as_tool(**options)
        session = self._child(asker, run, f"{tool.agent}:background", task)
        return BackgroundTask(session, tool.agent, task, lambda: self._result(asker, agent, tool.agent, session))


class RecordedSideCalls(SideCalls, eq=False):
    """Side calls that only the log answers."""

    _replies: Mapping[tuple[str, str], ModelReply] = field(default_factory=dict[tuple[str, str], ModelReply])
    _lacks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def _recorded_reply(self, key: str, fingerprint: str) -> ModelReply | None:
        return None  # the guards are asked first

    async def _make(self, call: SideCall, fingerprint: str) -> ModelReply:
        by, reply = call.asker.by, self._replies.get((call.key, fingerprint))
        if reply is None:
            self._lacks.append((by, f"asks model {call.model.name!r}"))
            raise Lack(f"replay: the log has no reply to {by!r}", hook=by)
        if call.point is not None and await self._is_refused(call, call.point, reply):
            self._lacks.append((by, f"asks model {call.model.name!r}, which a guard does not let pass as it did"))
        return reply

    async def _is_refused(self, call: SideCall, point: Point, reply: ModelReply) -> bool:
        """Whether a guard refuses the request of a side call now, or answers it otherwise."""
        event = ModelCalling(call.request, Turn(call.site, asker=call.asker))
        verdict = await Passage(point, event, call.site, call.about).judge()
        if isinstance(verdict, Answer):
            return as_reply(verdict.value).text != reply.text
        return isinstance(verdict, Halt | Ask)
