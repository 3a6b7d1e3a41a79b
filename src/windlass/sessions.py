"""The one door to the loop: every way to run a turn enters a session here, drives it, asks approvers and leaves."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ._hooks.conceals import concealed_answers, concealed_error
from ._hooks.registrar import Registered
from ._kernel.active_time import ActiveTime
from ._kernel.audience import Audience, observer_turn
from ._kernel.cancellation import Cancellation
from ._kernel.channel import Channel
from ._kernel.child_program import check_edit
from ._kernel.contracts import Emit
from ._kernel.entry import Entry
from ._kernel.inbox import cancel_reason, entries_below, steering_message
from ._kernel.journal import Journal
from ._kernel.loop import drive_wrapped
from ._kernel.program import Program
from ._kernel.scopes import check_scope
from ._kernel.segment import Segment, compaction
from ._kernel.shields import STORE_PATIENCE, within
from ._threads import run_in_loop
from .criteria import name_of
from .decisions import AnyResolution
from .deltas import StreamEvent
from .errors import (
    ConfigError,
    HookError,
    NotSuspended,
    SessionBusy,
    SessionConflict,
    SessionError,
    SessionUnknown,
    StaleAnswer,
    StoreError,
)
from .ids import check_new_id
from .masking import Mask
from .messages import Message
from .outcomes import error_value
from .outputs import Output
from .ownership import Claim, Ownership, Passes, Work, queued_kinds
from .protocols import Store
from .randomness import random_bytes
from .records import (
    Compacted,
    HistoryImported,
    HookDecided,
    HookFailed,
    InboxTaken,
    Record,
    Resumed,
    SessionEnded,
    Suspended,
    TurnEnded,
    TurnStarted,
)
from .results import Result, count_asked
from .run_options import GivenOptions, options_on_resume
from .states import Fold, State, fold_in_slices, over
from .stores.batches import column_text
from .stores.refusals import busy as busy_elsewhere
from .stores.refusals import described as describe_owner
from .stores.refusals import driven_by_engine, taken_over
from .terms import with_answer

if TYPE_CHECKING:
    from ._kernel.voice import Voice
from .variants import variant_of

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

AnyAnswers: TypeAlias = Mapping[str, AnyResolution | Sequence[AnyResolution]]
"""Answers by the ids of their questions: one answer, or those of several people."""


class TurnRequest(Struct, frozen=True):
    """A turn that is asked for: a message, or a session to resume. `emit` gets every state, `channel` the stream.

    For a message, the program that it comes with has the `options`. For a resume, they are what the caller passes.
    `steering` is the key of an inbox entry whose message this is, of kind `inbox_kind`. `engine` is the engine that
    asks for the turn.
    """

    session: str | None
    message: Message | None = None
    answers: AnyAnswers | None = None
    scope: Any = None
    slots: Mapping[str, Any] | None = None
    emit: Emit | None = None
    channel: Channel[StreamEvent] | None = None
    steering: str | None = None
    takeover: bool = False
    options: GivenOptions | None = None
    inbox_kind: str = "steer"
    engine: str = ""


class Driven(NamedTuple, Generic[OutputT]):
    """What a pass for a worker or an engine came to: no result if there was nothing to do, and the session's state.

    `more` says that the inbox may have entries that are not read.
    """

    result: Result[OutputT] | None
    state: State
    more: bool


class Sessions(Generic[OutputT]):
    """The sessions of an agent: how they are entered and left, what waits for them, and logs kept for the next turn."""

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
        self._steering: dict[str, Result[OutputT] | None] = {}
        self._logs: OrderedDict[str, Fold] = OrderedDict()

    # ------------------------------------------------------------ turns

    async def run(self, program: Program, request: TurnRequest) -> Result[OutputT]:
        """A turn, to its outcome: `run`, `resume`, `iterate` and `stream` all come through here."""
        if request.session is None:
            return await self._take_turn(program, request, self._enter_unnamed())
        while True:
            entered = await self._enter(request.session, request, program)
            if isinstance(entered, RunningTurn):
                try:
                    return await self._take_turn(program, request, entered)
                except (SessionBusy, SessionConflict):
                    if not self._steers(request) or not await self._was_outrun(entered):
                        raise
            elif self._steers(request):
                return await self._steer_running(program, request.session, request, entered)
            else:
                await self._wait_for_turn(entered, request)

    async def work(self, program: Program, work: Work, scope: Any) -> Result[OutputT] | None:
        """Do what there is to do in a session that a worker has taken; None if there is nothing to do.

        Its turn is resumed, or its next queued message opens one.
        """
        running = RunningTurn(work.session, named=True)
        if (occupant := self._store.passes.enter(work.session, running)) is not None:
            await release(self._store, work.session, work.epoch)
            raise Here(occupant).error(self._busy_error)
        running.claim, running.claiming = Claim(work.session, work.epoch), True
        try:
            running.fold = await self._log(work.session)
            running.mail = bool(await self._store.inbox(work.session, running.fold.inbox))
        except BaseException:
            await self._leave(running)
            raise
        return (await self._do_next(program, running, scope)).result

    async def drive(self, program: Program, session: str, scope: Any, engine: str) -> Driven[OutputT]:
        """`work` for an engine, which decides who works on a session: whoever did so before is fenced."""
        running = await self._enter(session, takeover=True, engine=engine)
        if not isinstance(running, RunningTurn):  # a takeover is never refused
            raise running.error(self._busy_error)
        return await self._do_next(program, running, scope, engine)

    async def _do_next(self, program: Program, running: RunningTurn, scope: Any, engine: str = "") -> Driven[OutputT]:
        """Resume the turn of a session that was entered, or open one with the next queued message; then leave.

        A turn that waits for people stays as it is until something has come.
        """
        try:
            request = await self._next_request(program, running, scope, engine)
        except BaseException:
            await self._leave(running)
            raise
        if request is None:
            await self._leave(running)
            return Driven(None, running.fold.state, False)
        result = await self._take_turn(program, request, running)
        return Driven(result, result.state, running.has_mail or bool(self._registered.approvers))

    async def _next_request(
        self, program: Program, running: RunningTurn, scope: Any, engine: str
    ) -> TurnRequest | None:
        session, fold = running.session, running.fold
        if not over(fold):
            waits = await self._waits(program, running)
            return None if waits else TurnRequest(session, None, None, scope, engine=engine)
        kinds = queued_kinds(column_text(program.name))
        for key, kind, data in await self._store.inbox(session, fold.inbox) if running.mail else ():
            if kind in kinds and (message := steering_message(data)) is not None:
                return TurnRequest(session, message, None, scope, steering=key, inbox_kind=kind, engine=engine)
        return None

    async def _waits(self, program: Program, running: RunningTurn) -> bool:
        """Whether a turn waits for people, and nothing has come since."""
        turn, now = running.fold.turn, program.now()
        if turn is None or not isinstance(turn.outcome, Suspended):
            return False
        from .approvals import due_answer

        entries = await self._store.inbox(running.session, running.fold.inbox) if running.mail else ()
        came = [kind for _, kind, _ in entries] + [kind for kind, _ in await entries_below(self._store, running.fold)]
        return not {"answer", "cancel"} & set(came) and not any(due_answer(asked, now) for asked in turn.waiting)

    def _take_turn(
        self, program: Program, request: TurnRequest, running: RunningTurn
    ) -> Coroutine[Any, Any, Result[OutputT]]:
        """A turn, and what follows as long as approvers answer what it asks."""
        if request.message is not None and not self._registered.approvers:
            return self._pass(program, request, running)
        return self._take_turns(program, request, running)

    async def _take_turns(self, program: Program, request: TurnRequest, running: RunningTurn) -> Result[OutputT]:
        if request.message is None:
            try:
                _check_enterable(running, request)
                program = _program_on_resume(program, request, running.fold)
            except BaseException:
                await self._leave(running)
                raise
        result = await self._pass(program, request, running)
        if self._registered.approvers and result.waiting_for:
            result = await self._ask_and_resume(program, request, result)
        return result

    async def _pass(self, program: Program, request: TurnRequest, running: RunningTurn) -> Result[OutputT]:
        """One pass over a turn that was entered: drive it, then leave."""
        token = _inside.set((*_inside.get(), running)) if running.named else None
        segment: Segment | None = None
        try:
            segment = self._segment(program, request, running)
            if request.steering is not None and request.steering in segment.fold.inbox and segment.state.outcome:
                return self._result(segment, segment.state)  # a turn took it and was cancelled: that is its result
            emit = request.emit
            if emit is not None:
                emit = partial(_paced, segment.journal.time, emit)
            if self._store.durable:
                watch_inboxes(self._store)
            if request.message is None and await _take_answers(segment):
                return self._ended(segment, segment.state)
            state = await drive_wrapped(segment, emit)
            return self._ended(segment, state)
        except GeneratorExit:  # the event loop is gone: nothing can be awaited
            self._abandon(running)
            raise
        finally:
            if token is not None and not running.over:
                _inside.reset(token)
            if segment is not None:
                if segment.journal.audience.voice is not None:
                    segment.journal.audience.voice.close()
                segment.site.close()
                segment.journal.seal()
                segment.failures.note(None)  # its traceback refers to the parts
            await self._leave(running)

    def _segment(self, program: Program, request: TurnRequest, running: RunningTurn) -> Segment:
        """The parts of a pass, over the session's log."""
        message, fold = request.message, running.fold
        if running.named:
            _check_enterable(running, request)
        entry = Entry(
            message,
            concealed_answers(program.conceals, request.answers) if request.answers else _NOTHING,
            request.scope,
            request.slots or _NOTHING,
            not running.named,
            request.steering,
            message is None,
            running.took_over,
            request.inbox_kind,
        )
        segment = Segment(program, fold, entry, running.claim, channel=request.channel, mail=running.mail)
        running.begin(segment.journal, segment.cancellation)
        return segment

    def _result(self, segment: Segment, state: State) -> Result[OutputT]:
        failure, mask = segment.failures.latest, segment.program.mask
        if failure is not None and segment.program.conceals:
            failure = concealed_error(segment.program.conceals, failure)
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

    # ------------------------------------------------------------ entering and leaving

    def _enter_unnamed(self) -> RunningTurn:
        """Enter a session without a name: nothing else can know it."""
        running = RunningTurn(new_id(), named=False)
        self._store.passes.enter(running.session, running)
        return running

    async def _enter(
        self,
        session: str,
        request: TurnRequest | None = None,
        program: Program | None = None,
        *,
        takeover: bool = False,
        engine: str = "",
    ) -> RunningTurn | Occupant:
        """Enter a session, or return what occupies it: a turn in this process, or one in another.

        The store is told with the first batch of the pass. A caller whose message is queued tells it now: it may have
        to wait again, and by then no hook must have run. A caller that takes over tells it now, too: the former owner
        may be writing.
        """
        running, passes = RunningTurn(session, named=True), self._store.passes
        if request is not None:
            takeover, engine = takeover or request.takeover, request.engine
        if takeover:
            running.replaced = passes.replace(session, running)
        elif (occupant := passes.enter(session, running)) is not None:
            return Here(occupant)
        try:
            if passes.unreleased:
                await release_all(self._store)
            if (former := running.former_at_work) is not None and not self._store.durable:
                await run_in_loop(former.flush, former.loop_at_work)
            ownership = await self._store.ownership(session)
            if ownership.engine != engine:
                raise driven_by_engine(session, ownership.engine)
            if ownership.alive and not takeover:
                await self._leave(running)
                return Elsewhere(self._store, session, ownership.owner)
            running.claim = Claim(session, ownership.epoch + 1, begins=True)
            running.fold = await self._log(session)
            queued = self._busy == "queue" and request is not None and request.message is not None
            if running.replaced is not None or (takeover and ownership.alive):
                if request is not None:
                    _check_enterable(running, request)
                if request is not None and program is not None and request.message is None:
                    _program_on_resume(program, request, running.fold)
                running.took_over = await self._seize(running, ownership)
            elif queued and self._store.durable and not await self._claim(running):
                await self._leave(running)
                return Elsewhere(self._store, session, "")
            running.mail = bool(await self._store.inbox(session, running.fold.inbox))
        except BaseException:
            await self._leave(running)
            raise
        return running

    async def _claim(self, running: RunningTurn) -> bool:
        """Begin a pass in the store before its first batch. False if the session has moved on since it was read.

        To the store, all passes of this process are alike: one that was replaced meanwhile ends here, and leaves the
        claim to its successor.
        """
        self._check_current(running)
        try:
            running.claiming = True
            await self._store.append(running.session, (), running.fold.stored, running.claim)
        except (SessionBusy, SessionConflict):
            running.claiming = False
            if not await self._was_outrun(running):
                raise
            return False
        running.claim = running.claim.replace(begins=False)
        running.claiming = self._store.passes.get(running.session) in (running, None)
        self._check_current(running)
        return True

    def _check_current(self, running: RunningTurn) -> None:
        """Raise if another pass of this process took the session over from one that was being entered."""
        if self._store.passes.get(running.session) is not running:
            raise taken_over(running.session, running.session)

    async def _seize(self, running: RunningTurn, ownership: Ownership) -> str:
        """Claim a session that another pass works on, which may go on writing until then. Returns whose pass it was."""
        session = running.session
        while not await self._claim_from(running.former_at_work, running):
            ownership = await self._store.ownership(session)
            running.claim = Claim(session, ownership.epoch + 1, begins=True)
            await running.fold.extend_in_slices(await self._store.read(session, running.fold.stored))
        if (former := running.replaced) is not None:
            name = "" if former.over else "this process"
            while former is not None:
                former.lose()
                former = former.replaced
            return name
        return describe_owner(ownership.owner) if ownership.alive else ""

    async def _claim_from(self, former: RunningTurn | None, running: RunningTurn) -> bool:
        """`_claim` a session that a former pass of this process works on.

        To a store in memory a pass tells the start of a call only at the end of the step. So the former pass first
        writes what it has recorded. That is done in its own event loop, so that it begins nothing before it has lost
        the session.
        """
        if former is None or self._store.durable:
            return await self._claim(running)

        async def claim() -> bool:
            await former.flush()
            claimed = await self._claim(running)
            if claimed:
                former.lose()
            return claimed

        return await run_in_loop(claim, former.loop_at_work)

    async def _was_outrun(self, running: RunningTurn) -> bool:
        """Whether a pass could not begin because the session moved on after it was read."""
        if running.claimed:
            return False
        moved = (await self._store.ownership(running.session)).epoch >= running.claim.epoch
        return moved or bool(await self._store.read(running.session, running.fold.stored))

    async def _leave(self, running: RunningTurn) -> None:
        """Leave a session. A pass that did not come to its end says so to the store, so that others may resume it."""
        passes, session = self._store.passes, running.session
        if running.over:
            return
        try:
            if self._store.durable and running.is_unfinished:
                if running.was_left_waiting:
                    release_later(self._store, session, running.claim.epoch)
                else:
                    await release(self._store, session, running.claim.epoch)
        finally:
            passes.leave(session, running, None if running.claimed else running.replaced)
            running.end()

    def _abandon(self, running: RunningTurn) -> None:
        """Leave a session without waiting. The next turn of this process tells the store."""
        passes, session = self._store.passes, running.session
        if self._store.durable and running.is_unfinished:
            passes.unreleased[session] = running.claim.epoch
        passes.leave(session, running, None if running.claimed else running.replaced)
        running.end()

    # ------------------------------------------------------------ logs

    async def _log(self, session: str) -> Fold:
        """A session's log, folded: what was kept of it and what came since, or else all of it.

        The caller owns it. A kept one counts only if the store still has the record it ends with.
        """
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

    # ------------------------------------------------------------ a session is busy

    def refuse_busy(self, session: str) -> None:
        """Raise if a turn is running in the session, in this process."""
        if self.is_running(session):
            raise self._busy_error(session)

    def _busy_error(self, session: str) -> SessionBusy:
        return SessionBusy(f"a turn is running in session {session!r}; {_WHILE_BUSY[self._busy]}", session=session)

    def is_running(self, session: str) -> bool:
        """Whether a turn is running in the session, in this process."""
        return self._store.passes.get(session) is not None

    def cancel(self, session: str, reason: str) -> bool | None:
        """Cancel the turn that runs here in a session, or in one below it; False if it is ending, None if none runs."""
        running: RunningTurn | None = self._store.passes.get(session)
        if running is not None:
            return running.cancel(reason)
        above: RunningTurn
        for above in self._store.passes.all():
            if above.cancellation is not None and (found := above.cancellation.find(session)) is not None:
                return bool(found.cancel(reason))
        return None

    def interrupt(self, session: str) -> bool:
        """Interrupt the turn that runs here in a session; False if none runs, or if it is ending."""
        running: RunningTurn | None = self._store.passes.get(session)
        cancellation = None if running is None else running.cancellation
        return cancellation is not None and cancellation.interrupt()

    def _steers(self, request: TurnRequest) -> bool:
        """Whether a message goes into the turn that runs."""
        plain = request.emit is None and request.channel is None and request.message is not None
        return self._busy == "steer" and plain and not request.takeover

    async def _wait_for_turn(self, occupant: Occupant, request: TurnRequest) -> None:
        """Wait until the session is free, if messages are queued; otherwise it is refused."""
        if request.message is None or self._busy != "queue":
            raise occupant.error(self._busy_error)
        occupant.refuse_waiting()
        await occupant.ended()

    async def _steer_running(
        self, program: Program, session: str, request: TurnRequest, occupant: Occupant
    ) -> Result[OutputT]:
        """Put a message into the turn that runs; if no turn takes it, it opens one of its own."""
        occupant.refuse_waiting()
        if request.options is not None:
            raise SessionBusy(
                f"a turn is running in session {session!r}, and a message that goes into it cannot have options of its "
                "own: leave them out, or wait until the turn has ended",
                session=session,
            )
        key = random_bytes(8).hex()
        self._steering[key] = None
        steered = msgspec.structs.replace(request, steering=key)
        try:
            await self.put(session, key, "steer", request.message)
            entered: RunningTurn | Occupant = occupant
            while True:
                await entered.ended()
                if (result := self._steering[key] or await self.steered(program, session, key)) is not None:
                    return result
                entered = await self._enter(session, steered)
                if isinstance(entered, RunningTurn):
                    try:
                        return await self._take_turn(program, steered, entered)
                    except (SessionBusy, SessionConflict):
                        if not await self._was_outrun(entered):
                            raise
        finally:
            del self._steering[key]

    async def steered(self, program: Program, session: str, key: str) -> Result[OutputT] | None:
        """The result of the turn of another agent or process that took a message; None if none did."""
        return await self.steered_in(program, session, key, await self._store.read(session))

    async def steered_in(
        self, program: Program, session: str, key: str, records: Sequence[Record]
    ) -> Result[OutputT] | None:
        """`steered`, if the records of the session are known."""
        at = next((n for n, one in enumerate(records) if isinstance(one, InboxTaken) and one.key == key), len(records))
        end = next((n for n in range(at, len(records)) if isinstance(records[n], TurnEnded | Suspended)), None)
        if end is None:
            return None
        fold = await fold_in_slices(session, records[: end + 1])
        return Result(fold.state, self._output, program.hooks.slots, None, fold.written)

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        """Put an entry into the inbox of a session, without secrets; False if the key already exists."""
        if self._mask is not None:
            data = self._mask.plain(msgspec.to_builtins(data))
        return await self._store.put(session, key, kind, data)

    # ------------------------------------------------------------ approvers

    async def _ask_and_resume(self, program: Program, request: TurnRequest, result: Result[OutputT]) -> Result[OutputT]:
        """Go on for as long as approvers answer what is asked."""
        asked: set[tuple[Any, ...]] = set()
        while result.waiting_for:
            answers, failures = await self.ask_approvers(program, result, asked, request.scope)
            if failures:
                result = await self._note(program, result, failures, request)
            further = await self._answer(program, request, result.session_id, answers) if answers else None
            if further is None:
                break
            result = further
        return result

    async def ask_approvers(
        self, program: Program, result: Result[OutputT], asked: set[tuple[Any, ...]], scope: Any
    ) -> tuple[dict[str, list[AnyResolution]], list[HookFailed]]:
        """What the approvers of this process answer, and the failures of some, which leave their question open.

        Each approver is asked once whenever a question is put, until the question is answered.
        """
        from .approvals import ask_approver

        answers: dict[str, list[AnyResolution]] = {}
        failures: list[HookFailed] = []
        turn = observer_turn(program.hooks, scope, program.now, program.tools, result.state)
        for question in result.waiting_for:
            put = (question.id, question.digest, count_asked(result, question))
            for place, approver in enumerate(self._registered.approvers):
                if (*put, place) in asked:
                    continue
                asked.add((*put, place))
                try:
                    fits = partial(check_edit, program)
                    given = await ask_approver(result.session_id, approver, question, turn, program.now, fits)
                except Exception as error:
                    failures.append(HookFailed(name_of(approver), question.event, error_value(error), "left open"))
                    continue
                if given is not None:
                    answers.setdefault(question.id, []).append(given.answer)
                    if not given.partial:
                        break
                    question = with_answer(question, given)
        return answers, failures

    async def _answer(
        self, program: Program, request: TurnRequest, session: str, answers: dict[str, list[AnyResolution]]
    ) -> Result[OutputT] | None:
        """Resume with the answers of approvers. None if the session goes on, or went on, without them."""
        resumed = TurnRequest(
            session, None, answers, request.scope, None, request.emit, request.channel, engine=request.engine
        )
        while isinstance(entered := await self._enter(session, engine=request.engine), RunningTurn):
            try:
                return await self._pass(program, resumed, entered)
            except NotSuspended:
                break
            except (SessionBusy, SessionConflict):
                if not await self._was_outrun(entered):
                    raise
                break
            except StaleAnswer as stale:  # a person answered it meanwhile, or it has expired
                if answers.pop(stale.ask_id, None) is None:
                    raise
        return None

    async def _note(
        self, program: Program, result: Result[OutputT], facts: Sequence[Record], request: TurnRequest
    ) -> Result[OutputT]:
        """Add facts to the log of a suspended session. If they cannot be written there, the Python log has them."""
        session = result.session_id
        for fact in facts:
            log.warning("session %r: %r", session, fact)
        try:
            async with self.alone(session, engine=request.engine) as running:
                journal = _journal(program, running, request.scope)
                for fact in facts:
                    journal.record(fact)
                state = await journal.settle()
                return Result(state, self._output, program.hooks.slots, None, journal.fold.written)
        except (SessionError, StoreError):
            return result

    # ------------------------------------------------------------ other passes

    @asynccontextmanager
    async def alone(
        self, session: str, *, takeover: bool = False, engine: str = ""
    ) -> AsyncGenerator[RunningTurn, None]:
        """A pass over a session that no caller of `run` has asked for. A busy session is refused, or taken over."""
        entered = await self._enter(session, takeover=takeover, engine=engine)
        if not isinstance(entered, RunningTurn):
            raise entered.error(self._busy_error)
        try:
            yield entered
        except GeneratorExit:  # the event loop is gone: nothing can be awaited
            self._abandon(entered)
            raise
        finally:
            await self._leave(entered)

    async def compact(self, program: Program, session: str, instructions: str, scope: Any) -> tuple[Compacted, ...]:
        """Compact a session now, due or not. Returns what was replaced."""
        async with self.alone(session) as running:
            if running.fold.turn is None:
                raise unknown_session(session)
            _refuse_parented(running.fold)
            segment = Segment(program, running.fold, Entry(scope=scope), running.claim)
            running.begin(segment.journal, segment.cancellation)
            done = await compaction(segment).run_now(instructions)
            await segment.journal.settle(segment.site.tasks)
            self._keep(segment.journal)
            return done

    async def import_history(self, program: Program, session: str, messages: list[Message], scope: Any) -> State:
        """Make some messages the transcript of a session that has none."""
        async with self.alone(session) as running:
            if running.fold.seq:
                raise SessionConflict(
                    f"session {session!r} has {running.fold.seq} records: import a history into a new session",
                    session=session,
                )
            segment = Segment(program, running.fold, Entry(scope=scope), running.claim)
            running.begin(segment.journal, segment.cancellation)
            segment.site.closed = True  # no turn is running: hooks may look, but not write or ask
            halted = await segment.injections.transcript.import_history(messages)
            if halted is not None:
                decided = [record for record in segment.fold.pending if isinstance(record, HookDecided)]
                names = ", ".join([name for name, _ in decided[-1].answers]) if decided else ""
                text = f"{names or 'a hook'} refused the history at MessageAdding: {halted.reason}"
                raise HookError(text, hook=names, event="MessageAdding")
            await segment.journal.settle(segment.site.tasks)
            self._keep(segment.journal)
            return segment.state

    async def close(self, program: Program, session: str) -> None:
        """End a session. A suspended turn stays suspended and can be resumed."""
        async with self.alone(session) as running:
            state = running.fold.state
            if state.seq and state.over and not state.ended:
                journal = _journal(program, running, None)
                journal.record(SessionEnded())
                await journal.settle()


class RunningTurn:
    """A pass over a session, for callers that wait for its end, perhaps in other threads.

    `fold` is the session's log, `mail` says that its inbox has entries, and `claim` is what the pass writes with.
    `claiming` says that the store was asked to begin it. `replaced` is the pass of this process that it takes over
    from, and `took_over` names the process from which the session was taken over. `over` says that it has left.
    """

    __slots__ = (
        "_before", "_cancelled", "_ended", "_journal", "_known", "_waiters", "cancellation", "claim", "claiming",
        "fold", "loop", "mail", "named", "over", "replaced", "session", "took_over",
    )  # fmt: skip

    def __init__(self, session: str, *, named: bool) -> None:
        self.session = session
        self.named = named
        self.claim = Claim(session, 1, begins=True)
        self.fold = Fold(session)
        self.mail = False
        self.claiming = False
        self.replaced: RunningTurn | None = None
        self.took_over = ""
        self.over = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.cancellation: Cancellation | None = None
        self._journal: Journal | None = None
        self._known = 0
        self._before = (0, True)
        self._cancelled: str | None = None
        self._ended = False
        self._waiters: list[asyncio.Future[None]] = []

    def begin(self, journal: Journal, cancellation: Cancellation | None = None) -> None:
        """The pass is about to begin. A cancel that came before takes effect now."""
        self._journal = journal
        if journal.program.durable:
            self.loop = asyncio.get_running_loop()
        self._known = self.fold.stored
        self._before = (self.fold.turns, over(self.fold))
        self.cancellation = cancellation
        if cancellation is not None and self._cancelled is not None:
            cancellation.cancel(self._cancelled)

    @property
    def has_ended(self) -> bool:
        """Whether the store has the end of the turn. The pass may go on: wraps of the turn, observers."""
        fold = self.fold
        return self._journal is not None and not fold.pending and over(fold) and (fold.turns, True) != self._before

    @property
    def voice(self) -> Voice | None:
        """The stream of the turn, if it is streamed and has begun."""
        return None if self._journal is None else self._journal.audience.voice

    @property
    def claimed(self) -> bool:
        """Whether the store has the claim of the pass."""
        return not (self.claim if self._journal is None else self._journal.claim).begins

    @property
    def is_unfinished(self) -> bool:
        """Whether the pass began in the store, or may have begun, and did not end there as far as is known."""
        journal = self._journal
        if journal is None:
            return self.claiming
        if not self.claimed:
            return journal.may_have_begun
        if journal.claim.ends:
            return False
        kinds = [type(record) for record in self.fold.written[self._known :]]
        return next((kind in _BEGINNINGS for kind in reversed(kinds) if kind in _BEGINNINGS + _ENDS), True)

    @property
    def was_left_waiting(self) -> bool:
        """Whether the turn was cancelled and the store failed, or did not answer in time."""
        return self._journal is not None and self._journal.was_left_waiting

    def note_mail(self) -> None:
        """The inbox has entries."""
        if self._journal is not None:
            self._journal.note_mail()

    @property
    def has_mail(self) -> bool:
        """Whether the inbox may have entries that were not read."""
        return self.mail if self._journal is None else self._journal.has_mail

    def cancel(self, reason: str) -> bool:
        """Cancel the turn, also while it is entered; False if it is ending."""
        if self.cancellation is not None:
            return self.cancellation.cancel(reason)
        self._cancelled = reason
        return True

    @property
    def former_at_work(self) -> RunningTurn | None:
        """The pass of this process that works on the session which this one takes over."""
        former = self.replaced
        while former is not None and (former.over or former._journal is None):
            former = former.replaced
        return former

    @property
    def loop_at_work(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which the pass runs; None if it has not begun, or is ending."""
        task = None if self.cancellation is None else self.cancellation.task
        return None if task is None else task.get_loop()

    async def flush(self) -> None:
        """Write what was recorded so far, if the store needs no waiting. Nothing else runs meanwhile."""
        if self.cancellation is not None:
            with suppress(SessionError):  # another pass was quicker: this one finds out by itself
                self.cancellation.flush()

    def lose(self) -> None:
        """The session was taken over in this process: write nothing more, and start no call with an effect."""
        if self._journal is not None:
            self._journal.give_up(taken_over(self.session, self.session))

    async def ended(self) -> None:
        """Wait for its end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._ended:  # asked after the waiter is listed: one of the two sees the other
            await waiter

    def end(self) -> None:
        """It is over."""
        self._ended = True
        for waiter in self._waiters:
            if not waiter.done():
                with suppress(RuntimeError):  # the waiter's loop is closed
                    waiter.get_loop().call_soon_threadsafe(_set, waiter)


class Here(Struct, frozen=True):
    """A turn of this process that occupies a session, perhaps of another agent."""

    running: RunningTurn

    def error(self, busy: Callable[[str], SessionBusy]) -> SessionBusy:
        """The error for a caller that does not wait."""
        return busy(self.running.session)

    async def ended(self) -> None:
        """Wait until the session may be free."""
        await self.running.ended()

    def refuse_waiting(self) -> None:
        """Raise if the turn cannot be waited for: the caller is part of it, or it is the last.

        A session without a name of its own ends with its turn.
        """
        session = self.running.session
        if not self.running.named:
            raise SessionBusy(
                f"a turn is running in session {session!r}, which was given no name and ends with it; use agent.steer",
                session=session,
            )
        if self.running in _inside.get():
            raise SessionBusy(
                f"session {session!r} was given a message from inside its own turn, which would wait for itself; "
                "use turn.add or agent.steer to say something in it, or another session",
                session=session,
            )


class Elsewhere(Struct, frozen=True):
    """A turn of another process that occupies a session."""

    store: Store
    session: str
    owner: str

    def error(self, busy: Callable[[str], SessionBusy]) -> SessionBusy:
        """The error for a caller that does not wait."""
        return busy_elsewhere(self.session, self.owner)

    async def ended(self) -> None:
        """Wait until the session may be free. There is nothing to be woken by: ask the store from time to time."""
        pause = _FIRST_PAUSE
        while (await self.store.ownership(self.session)).alive:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def refuse_waiting(self) -> None:
        """Any turn of another process can be waited for."""


Occupant: TypeAlias = Here | Elsewhere

_BEGINNINGS = (TurnStarted, Resumed)
_ENDS = (TurnEnded, Suspended, SessionEnded, HistoryImported)
"""Records after which a pass owns its session, or does not any more."""

_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5
"""How long to wait, in seconds, before asking the store again whether a session is free."""


_inside: ContextVar[tuple[object, ...]] = ContextVar("windlass_inside", default=())
"""The turns of named sessions that the current task is part of."""


def outside_of_turns() -> None:
    """The current context is no part of any turn."""
    _inside.set(())


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _paced(time: ActiveTime, emit: Emit, state: State) -> None:
    """Hand a state to its consumer. The wait for the consumer is not work."""
    await time.wait_for_consumer(emit(state))


def _journal(program: Program, running: RunningTurn, scope: Any) -> Journal:
    """The log of a session, to add a record outside of a turn."""
    time, fold = ActiveTime(program.monotonic), running.fold
    audience = Audience(program.hooks, program.observers, fold, scope, time, program.now, program.tools)
    journal = Journal(program, fold, audience, time, running.claim.replace(ends=True))
    running.begin(journal)
    return journal


def watch_inboxes(store: Store) -> None:
    """Look once a second for what other processes put into the inboxes of turns that run here.

    There is one timer per store and event loop, for as long as a turn runs there. Without it, an entry would be read
    when the turn writes to its log; a cancel should not wait for a slow model or tool.
    """
    loop, passes = asyncio.get_running_loop(), store.passes
    if loop not in passes.watched:
        passes.watched.add(loop)
        alone = Context()  # the caller's would keep the turn alive
        loop.call_later(_LOOK, _look_into_inboxes, weakref.ref(store), passes, loop, context=alone)


def _look_into_inboxes(found: weakref.ref[Store], passes: Passes, loop: asyncio.AbstractEventLoop) -> None:
    """Look once, and go on with that while turns run. A store that was dropped has none."""
    passes.watched.discard(loop)
    here = {running.session: running for running in passes.all() if running.loop is loop}
    if (here or passes.unreleased) and (store := found()) is not None:
        looking = loop.create_task(_read_inboxes(store, here))
        passes.tasks.add(looking)
        passes.watched.add(loop)

        def look_again(_: object) -> None:
            passes.tasks.discard(looking)
            loop.call_later(_LOOK, _look_into_inboxes, found, passes, loop, context=Context())

        looking.add_done_callback(look_again, context=Context())


async def _read_inboxes(store: Store, here: dict[str, RunningTurn]) -> None:
    try:
        await release_all(store)
        for session in await store.unread(list(here)):
            await _read_inbox(store, here[session])
    except StoreError as error:  # the turns hear of it when they write
        log.debug("the inboxes cannot be read: %s", error)


async def _read_inbox(store: Store, running: RunningTurn) -> None:
    """Tell a turn of its inbox. A cancel takes effect at once."""
    running.note_mail()
    for _, kind, data in await store.inbox(running.session, running.fold.inbox):
        if kind == "cancel" and (reason := cancel_reason(running.fold, data)) is not None:
            running.cancel(reason)


_LOOK = 1.0
"""How often, in seconds, the inboxes of running turns are looked at."""


async def release(store: Store, session: str, epoch: int) -> None:
    """Tell the store that a pass did not come to its end but is over.

    If it does not answer, or if there is no time to wait, it is told later: once a second while this event loop runs,
    and before the next turn of this process. Until then the session is busy for other processes.
    """
    passes = store.passes
    passes.unreleased[session] = epoch
    try:
        await within(store.release(session, epoch), STORE_PATIENCE, passes)
        _note_released(passes, session, epoch)
    except (StoreError, TimeoutError) as error:
        release_later(store, session, epoch, str(error) or "the store does not answer")


def release_later(store: Store, session: str, epoch: int, why: str = "the store failed before") -> None:
    """Leave it to the timer of this event loop, or to the next turn, to tell the store that a pass is over."""
    store.passes.unreleased[session] = epoch
    log.warning("session %r is not released yet: %s", session, why)
    watch_inboxes(store)


async def release_all(store: Store) -> None:
    """Tell the store of passes that are over, if it could not be told when they ended."""
    for session, epoch in list(store.passes.unreleased.items()):
        try:
            await within(store.release(session, epoch), STORE_PATIENCE, store.passes)
        except (StoreError, TimeoutError):
            return
        _note_released(store.passes, session, epoch)


def _note_released(passes: Passes, session: str, epoch: int) -> None:
    if passes.unreleased.get(session) == epoch:
        del passes.unreleased[session]


def unknown_session(session: str) -> SessionUnknown:
    """The error of a session that does not exist."""
    return SessionUnknown(f"there is no session {session!r}", session=session)


def _refuse_parented(fold: Fold) -> None:
    """Raise if a log is that of a sub-agent, wherever it was copied to: the guards of its parent hold only there."""
    if fold.opened is not None and fold.opened.parent:
        from .approvals import child_session_error

        raise child_session_error(fold.session, fold.opened.parent)


def _check_enterable(running: RunningTurn, request: TurnRequest) -> None:
    """Raise if a session can have no such turn."""
    _refuse_parented(running.fold)
    if not running.fold.stored:
        check_new_id(running.session)
    if request.message is None:
        check_resumable(running.fold.state)


def _program_on_resume(program: Program, request: TurnRequest, fold: Fold) -> Program:
    """The agent with the options of the turn that is resumed. Raises if the caller passes others, or too few."""
    recorded = None if fold.turn is None or over(fold) else fold.turn.options
    if recorded is None and request.options is None:
        return program
    given, mask = request.options, program.mask
    options = options_on_resume(fold.session, recorded, given, program.models, program.tools, mask)
    if options is None:
        return program
    variant = variant_of(program, options, for_turn=True)
    check_scope(variant, request.scope)
    return variant


def check_resumable(state: State) -> None:
    """Raise if a session has no turn to resume."""
    if state.seq == 0:
        raise unknown_session(state.session)
    if state.over:
        last = "none has started" if state.turn is None else f"the last one ended with {state.outcome!r}"
        raise NotSuspended(
            f"session {state.session!r} has no turn to resume: {last}",
            session=state.session,
        )


def check_answers(answers: object) -> None:
    """Raise unless the answers are a mapping."""
    if answers is not None and not isinstance(answers, Mapping):
        raise ConfigError(f"answers={answers!r}: give a mapping from the id of a question to its answer")


_prefix = os.urandom(5).hex()
_numbers = itertools.count(1)


def new_id() -> str:
    """An id for a session that was given none: unique over processes, and cheap."""
    return f"s{_prefix}{next(_numbers):x}"


def _reseed() -> None:
    global _prefix
    _prefix = os.urandom(5).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)


async def _take_answers(segment: Segment) -> bool:
    from ._kernel.given_answers import take_partial_answers

    return await take_partial_answers(segment)
