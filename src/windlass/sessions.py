"""The one door to the loop: every way to run a turn enters a session here, drives it, asks approvers and leaves."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from ._hooks.registrar import Registered
from ._kernel.active_time import ActiveTime
from ._kernel.audience import Audience
from ._kernel.cancellation import Cancellation
from ._kernel.channel import Channel
from ._kernel.child_program import check_edit
from ._kernel.contracts import Emit
from ._kernel.entry import Entry
from ._kernel.journal import Journal
from ._kernel.loop import drive_wrapped
from ._kernel.program import Program
from ._kernel.segment import Segment, compaction
from .approvals import CHILD, ask_approver, child_session_error
from .criteria import name_of
from .decisions import AnyResolution
from .deltas import StreamEvent
from .errors import ConfigError, NotSuspended, SessionBusy, SessionError, SessionUnknown, StaleAnswer, StoreError
from .masking import Mask
from .messages import Message
from .outcomes import error_value
from .outputs import Output
from .protocols import Store
from .records import Compacted, Delegated, HookFailed, Record, SessionEnded
from .results import Result, count_asked
from .states import Fold, State, fold_in_slices

OutputT = TypeVar("OutputT")

log = logging.getLogger("windlass")

_NOTHING: Mapping[str, Any] = {}
_KEPT_LOGS = 256
_WHILE_BUSY = {
    "refuse": "wait, or make the agent with busy='queue' or 'steer'",
    "queue": "wait: only messages are queued",
    "steer": "wait: only a message given to run, or to agent.steer, goes into it",
}
"""What can be done about a turn that is running."""

Busy = Literal["refuse", "queue", "steer"]


class TurnRequest(Struct, frozen=True):
    """A turn that is asked for: a message, or a session to resume. `emit` gets every state, `channel` the stream."""

    session: str | None
    message: Message | None = None
    answers: Mapping[str, AnyResolution] | None = None
    scope: Any = None
    slots: Mapping[str, Any] | None = None
    emit: Emit | None = None
    channel: Channel[StreamEvent] | None = None
    steering: str | None = None


class Sessions(Generic[OutputT]):
    """The sessions of an agent: which of them run here, what waits for them, and logs kept for their next turn."""

    def __init__(
        self,
        store: Store,
        output: Output[OutputT],
        busy: Busy,
        registered: Registered,
        mask: Mask | None,
    ) -> None:
        self._store = store
        self._output = output
        self._busy = busy
        self._registered = registered
        self._mask = mask
        self._running: dict[str, RunningTurn] = {}
        self._steering: dict[str, Result[OutputT] | None] = {}
        self._logs: OrderedDict[str, Fold] = OrderedDict()

    # ------------------------------------------------------------ turns

    async def run(self, program: Program, request: TurnRequest) -> Result[OutputT]:
        """A turn, to its outcome: `run`, `resume`, `iterate` and `stream` all come through here."""
        session = request.session
        if session is not None and session in self._running:
            if self._busy == "steer" and request.emit is None and request.channel is None and request.message:
                return await self._steer_running(program, session, request)
            await self._wait_for_turn(session, request.message)
        return await self._take_turn(program, request)

    async def _take_turn(self, program: Program, request: TurnRequest) -> Result[OutputT]:
        """A turn, and what follows as long as approvers answer what it asks."""
        result = await self._pass(program, request)
        if self._registered.approvers and result.waiting_for:
            return await self._ask_and_resume(program, request, result)
        return result

    async def _pass(self, program: Program, request: TurnRequest) -> Result[OutputT]:
        """One pass over a turn: enter, drive, leave."""
        if request.session is None:
            session, token = new_id(), None
            self._running[session] = running = RunningTurn(named=False)
        else:
            session = request.session
            self._running[session] = running = RunningTurn(named=True)
            token = _inside.set((*_inside.get(), running))
        segment: Segment | None = None
        try:
            segment = await self._segment(program, session, request, running)
            if request.steering is not None and request.steering in segment.fold.inbox and segment.state.outcome:
                return self._result(segment, segment.state)  # a turn took it and was cancelled: that is its result
            emit = request.emit
            if emit is not None:
                emit = partial(_paced, segment.journal.time, emit)
            state = await drive_wrapped(segment, emit)
            return self._ended(segment, state)
        finally:
            if token is not None:
                _inside.reset(token)
            if segment is not None:
                if segment.journal.audience.voice is not None:
                    segment.journal.audience.voice.close()
                segment.site.close()
                segment.journal.seal()
                segment.failures.note(None)  # its traceback refers to the parts
            del self._running[session]
            running.end()

    async def _segment(self, program: Program, session: str, request: TurnRequest, running: RunningTurn) -> Segment:
        """The parts of a pass, over the session's log."""
        message, mail = request.message, False
        if running.named:
            fold = await self._log(session)
            _refuse_parented(fold)
            if message is None:
                _check_resumable(fold.state)
            mail = bool(await self._store.take(session, fold.inbox))
        else:
            fold = Fold(session)
        entry = Entry(
            message,
            request.answers or _NOTHING,
            request.scope,
            request.slots or _NOTHING,
            not running.named,
            request.steering,
            message is None,
        )
        segment = Segment(program, fold, entry, channel=request.channel, mail=mail)
        running.enter(segment.cancellation)
        return segment

    def _result(self, segment: Segment, state: State) -> Result[OutputT]:
        failure, mask = segment.failures.latest, segment.program.mask
        if mask is not None:
            failure = mask.error(failure)
        return Result(state, self._output, segment.site.hooks.slots, failure, segment.fold.written)

    def _ended(self, segment: Segment, state: State) -> Result[OutputT]:
        """The result, also for callers whose steering the turn has taken."""
        result = self._result(segment, state)
        if not segment.entry.ephemeral:
            self._keep(segment.journal)
            for key in list(self._steering):
                if key in state.inbox and self._steering.get(key, result) is None:
                    self._steering[key] = result
        return result

    # ------------------------------------------------------------ logs

    async def _log(self, session: str) -> Fold:
        """A session's log, folded: what was kept of it and what came since, or else all of it.

        The caller owns it. A kept one counts only if the store still has the record it ends with.
        """
        if "/" in session:
            await self.refuse_child(session)
        kept = self._logs.pop(session, None)
        if kept is not None:
            since = await self._store.read(session, kept.stored - 1)
            if since and since[0] == kept.written[-1]:
                await kept.extend_in_slices(since[1:])
                return kept
        return await fold_in_slices(session, await self._store.read(session))

    def _keep(self, journal: Journal) -> None:
        """Keep the log of a turn that is over for the next one. What still works for this turn cannot write to it."""
        fold = journal.fold
        if fold.written and not fold.pending and fold.state.over:
            journal.seal()
            self._logs[fold.session] = fold
            if len(self._logs) > _KEPT_LOGS:
                self._logs.popitem(last=False)

    async def refuse_child(self, session: str) -> None:
        """Raise if the session is that of a sub-agent: outside of its call the hooks above would not hold for it."""
        named = CHILD.fullmatch(session)
        above = await self._store.read(named[1]) if named is not None else ()
        if named is not None and any(isinstance(record, Delegated) and record.session == session for record in above):
            raise child_session_error(session, named[1])

    # ------------------------------------------------------------ a session is busy

    def refuse_busy(self, session: str) -> None:
        """Raise if a turn is running in the session."""
        if session in self._running:
            raise SessionBusy(f"a turn is running in session {session!r}; {_WHILE_BUSY[self._busy]}", session=session)

    def is_running(self, session: str) -> bool:
        """Whether a turn is running in the session."""
        return session in self._running

    def cancel(self, session: str, reason: str) -> bool | None:
        """Cancel the turn that runs here in a session, or in one below it; False if it is ending, None if none runs."""
        if (running := self._running.get(session)) is not None:
            return running.cancel(reason)
        for running in [*self._running.values()]:
            if running.cancellation is not None and (found := running.cancellation.find(session)) is not None:
                return found.cancel(reason)
        return None

    async def _wait_for_turn(self, session: str, message: Message | None) -> None:
        """Wait until the session is free, if messages are queued; otherwise it is refused."""
        if message is None or self._busy != "queue":
            self.refuse_busy(session)
        self._refuse_waiting(session)
        while (running := self._running.get(session)) is not None:
            await running.ended()

    def _refuse_waiting(self, session: str) -> None:
        """Raise if the turn that runs in the session cannot be waited for: the caller is part of it, or it is the last.

        A session without a name of its own ends with its turn.
        """
        running = self._running.get(session)
        if running is not None and not running.named:
            raise SessionBusy(
                f"a turn is running in session {session!r}, which was given no name and ends with it; use agent.steer",
                session=session,
            )
        if running in _inside.get():
            raise SessionBusy(
                f"session {session!r} was given a message from inside its own turn, which would wait for itself; "
                "use turn.add or agent.steer to say something in it, or another session",
                session=session,
            )

    async def _steer_running(self, program: Program, session: str, request: TurnRequest) -> Result[OutputT]:
        """Put a message into the turn that runs; if no turn takes it, it opens one of its own."""
        self._refuse_waiting(session)
        key = secrets.token_hex(8)
        self._steering[key] = None
        try:
            await self.put(session, key, "steer", request.message)
            while (running := self._running.get(session)) is not None:
                await running.ended()
                if (result := self._steering[key]) is not None:
                    return result
            return self._steering[key] or await self._take_turn(program, msgspec.structs.replace(request, steering=key))
        finally:
            del self._steering[key]

    async def put(self, session: str, key: str, kind: str, data: Any) -> None:
        """Put an entry into the inbox of a session, without secrets."""
        if self._mask is not None:
            data = self._mask.plain(msgspec.to_builtins(data))
        await self._store.put(session, key, kind, data)

    # ------------------------------------------------------------ approvers

    async def _ask_and_resume(self, program: Program, request: TurnRequest, result: Result[OutputT]) -> Result[OutputT]:
        """Go on for as long as approvers answer what is asked."""
        asked: set[tuple[Any, ...]] = set()
        while result.waiting_for:
            answers, failures = await self._ask_approvers(program, result, asked)
            if failures:
                result = await self._note(program, result, failures, request.scope)
            further = await self._answer(program, request, result.session_id, answers) if answers else None
            if further is None:
                break
            result = further
        return result

    async def _ask_approvers(
        self, program: Program, result: Result[OutputT], asked: set[tuple[Any, ...]]
    ) -> tuple[dict[str, AnyResolution], list[HookFailed]]:
        """What the approvers of this process answer, and the failures of some, which leave their question open.

        Each approver is asked once whenever a question is put; the first answer counts.
        """
        answers: dict[str, AnyResolution] = {}
        failures: list[HookFailed] = []
        for question in result.waiting_for:
            put = (question.id, question.digest, count_asked(result, question))
            for place, approver in enumerate(self._registered.approvers):
                if question.id in answers or (*put, place) in asked:
                    continue
                asked.add((*put, place))
                try:
                    fits = partial(check_edit, program)
                    answer = await ask_approver(result.session_id, approver, question, program.now, fits)
                except Exception as error:
                    failures.append(HookFailed(name_of(approver), question.event, error_value(error), "left open"))
                else:
                    if answer is not None:
                        answers[question.id] = answer
        return answers, failures

    async def _answer(
        self, program: Program, request: TurnRequest, session: str, answers: dict[str, AnyResolution]
    ) -> Result[OutputT] | None:
        """Resume with the answers of approvers. None if the session goes on, or went on, without them."""
        while session not in self._running:
            resumed = TurnRequest(session, None, answers, request.scope, None, request.emit, request.channel)
            try:
                return await self._pass(program, resumed)
            except NotSuspended:
                break
            except StaleAnswer as stale:  # a person answered it meanwhile, or it has expired
                if answers.pop(stale.ask_id, None) is None:
                    raise
        return None

    async def _note(
        self, program: Program, result: Result[OutputT], facts: Sequence[Record], scope: Any
    ) -> Result[OutputT]:
        """Add facts to the log of a suspended session. If they cannot be written there, the Python log has them."""
        session = result.session_id
        for fact in facts:
            log.warning("session %r: %r", session, fact)
        if session in self._running:
            return result
        self._running[session] = running = RunningTurn(named=True)
        try:
            journal = _journal(program, await self._log(session), scope)
            for fact in facts:
                journal.record(fact)
            state = await journal.settle()
            return Result(state, self._output, program.hooks.slots, None, journal.fold.written)
        except (SessionError, StoreError):
            return result
        finally:
            del self._running[session]
            running.end()

    # ------------------------------------------------------------ other passes

    async def compact(self, program: Program, session: str, instructions: str, scope: Any) -> tuple[Compacted, ...]:
        """Compact a session now, due or not. Returns what was replaced."""
        self.refuse_busy(session)
        self._running[session] = running = RunningTurn(named=True)
        try:
            fold = await self._log(session)
            if fold.turn is None:
                raise unknown_session(session)
            _refuse_parented(fold)
            segment = Segment(program, fold, Entry(scope=scope))
            running.enter(segment.cancellation)
            done = await compaction(segment).run_now(instructions)
            await segment.journal.settle(segment.site.tasks)
            self._keep(segment.journal)
            return done
        finally:
            del self._running[session]
            running.end()

    async def close(self, program: Program, session: str) -> None:
        """End a session. A suspended turn stays suspended and can be resumed."""
        self.refuse_busy(session)
        fold = await fold_in_slices(session, await self._store.read(session))
        state = fold.state
        if state.seq and state.over and not state.ended:
            journal = _journal(program, fold, None)
            journal.record(SessionEnded())
            await journal.settle()


class RunningTurn:
    """A turn that runs in a session, for callers that wait for its end, perhaps in other threads."""

    __slots__ = ("_cancelled", "_over", "_waiters", "cancellation", "named")

    def __init__(self, *, named: bool) -> None:
        self.named = named
        self.cancellation: Cancellation | None = None
        self._cancelled: str | None = None
        self._over = False
        self._waiters: list[asyncio.Future[None]] = []

    def enter(self, cancellation: Cancellation) -> None:
        """The turn is about to begin. A cancel that came before takes effect now."""
        self.cancellation = cancellation
        if self._cancelled is not None:
            cancellation.cancel(self._cancelled)

    def cancel(self, reason: str) -> bool:
        """Cancel the turn, also while it is entered; False if it is ending."""
        if self.cancellation is not None:
            return self.cancellation.cancel(reason)
        self._cancelled = reason
        return True

    async def ended(self) -> None:
        """Wait for its end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._over:  # asked after the waiter is listed: one of the two sees the other
            await waiter

    def end(self) -> None:
        """It is over."""
        self._over = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.get_loop().call_soon_threadsafe(_set, waiter)


_inside: ContextVar[tuple[object, ...]] = ContextVar("windlass_inside", default=())
"""The turns of named sessions that the current task is part of."""


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _paced(time: ActiveTime, emit: Emit, state: State) -> None:
    """Hand a state to its consumer. The wait for the consumer is not work."""
    await time.wait_for_consumer(emit(state))


def _journal(program: Program, fold: Fold, scope: Any) -> Journal:
    """The log of a session, to add a record outside of a turn."""
    time = ActiveTime(program.monotonic)
    return Journal(program, fold, Audience(program.hooks, program.observers, fold, scope, time), time)


def unknown_session(session: str) -> SessionUnknown:
    """The error of a session that does not exist."""
    return SessionUnknown(f"there is no session {session!r}", session=session)


def _refuse_parented(fold: Fold) -> None:
    """Raise if a log is that of a sub-agent, wherever it was copied to: the guards of its parent hold only there."""
    if fold.opened is not None and fold.opened.parent:
        raise child_session_error(fold.session, fold.opened.parent)


def _check_resumable(state: State) -> None:
    if state.seq == 0:
        raise unknown_session(state.session)
    if state.over:
        raise NotSuspended(
            f"session {state.session!r} has no turn to resume: the last one ended with {state.outcome!r}",
            session=state.session,
        )


def check_answers(answers: object) -> None:
    """Raise unless the answers are a mapping."""
    if answers is not None and not isinstance(answers, Mapping):
        raise ConfigError(f"answers={answers!r}: give a mapping from the id of a question to its answer")


_prefix = secrets.token_hex(5)
_numbers = itertools.count(1)


def new_id() -> str:
    """An id for a session that was given none: unique over processes, and cheap."""
    return f"s{_prefix}{next(_numbers):x}"


def _reseed() -> None:
    global _prefix
    _prefix = secrets.token_hex(5)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)
