"""One process's pass over a turn, from entering it to its end or its next suspension."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from windlass._hooks.dispatch import Recorder
from windlass._hooks.hooks import Hook
from windlass._hooks.observers import Backlog, NoBacklog
from windlass._hooks.readers import Source
from windlass._hooks.wraps import Effect, Guarded, Kind, Onion, Place, compose, surround
from windlass.checking import check_reason
from windlass.context.assembly import calibrate
from windlass.context.budget import Meter
from windlass.criteria import Effect as LimitedEffect
from windlass.criteria import Limit, name_of
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.errors import ConfigError, SlotConflict, StoreError, WindlassError
from windlass.messages import (
    Message,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolResult,
    Usage,
)
from windlass.outcomes import Cancelled, Completed, ErrorValue, Failed, Stopped
from windlass.protocols import Clock, Model
from windlass.records import (
    Answered,
    Asked,
    CancelRequested,
    Concluded,
    Delegated,
    Evaluated,
    Fact,
    HookDecided,
    HookFailed,
    Injected,
    MessageAdded,
    MessageHeld,
    Record,
    SlotSet,
    Suspended,
    ToolAttempted,
    TurnStarted,
    encode,
)
from windlass.slots import Slot
from windlass.states import Fold, State, Step, StepFold, microseconds, step_id
from windlass.turns import Asker, Turn, Writes

from .arguments import Arguments
from .carrying import Carried, is_for_child, said
from .composites import (
    ContinuationEvaluator,
    ErrorHandler,
    ExecutionLifecycle,
    StepApplier,
    StepRunner,
    StopResolver,
    ToolExecutor,
)
from .handover import ConsumerWait, Handover
from .limiting import exceeded, levels
from .opening import Opening
from .program import Program
from .side_calls import ask
from .speaking import Voice, without_words

log = logging.getLogger("windlass")

_NOTHING: Mapping[str, Any] = {}
_OF_HANDLERS = (MessageAdded, MessageHeld, Injected, SlotSet, HookFailed, Evaluated)
"""What a phase handler may record: nothing that stands for a decision, a call or a result."""


class FailedCall(Struct, frozen=True):
    """A model call of the turn that failed: the request as it was judged, and the number of the latest attempt."""

    error: Exception
    request: ModelRequest
    step: int
    round: int
    attempt: int


class Rare:
    """What few segments need: as it is until somebody sets it."""

    failure: BaseException | None = None
    recorded: tuple[HookDecided, ...] = ()
    settled: tuple[tuple[Exception, Any, ErrorValue], ...] = ()
    failed_call: FailedCall | None = None
    taken: str | None = None
    known: set[tuple[str, str, str]] | None = None
    parent: Segment | None = None
    children: tuple[Segment, ...] = ()
    share: tuple[Limit, ...] = ()
    started: Delegated | None = None
    standing: Usage | None = None
    limit_hit: Stopped | None = None
    waits: ConsumerWait | None = None
    _waited = 0.0
    delivered: tuple[Answered, ...] | None = None
    backlog: Backlog = NoBacklog()
    mask: Callable[[Any], Any] | None = None
    requested = False
    meter: Meter | None = None
    tried: Mapping[str, int] = {}
    relieved = 0
    onions: tuple[Onion, ...] = ()
    opening: Opening | None = None
    early: tuple[Record, ...] = ()
    _unreturned: dict[str, ToolResult] | None = None
    _carried: Carried | None = None
    _cancels = 0
    _cancelled: asyncio.Task[Any] | None = None
    _timers: tuple[asyncio.Task[None], ...] = ()
    _parallel: dict[str, str] | None = None
    _followed = -1
    closed = False
    _tasks: set[asyncio.Task[Any]] | None = None
    _side_calls: dict[str, int] | None = None
    _turn: Turn[Any] | None = None
    _writer: asyncio.Lock | None = None
    _in_doubt = False
    _unwritable: StoreError | None = None
    _sealed = False


class Segment(Rare):
    """Holds the current state and hands its records to the store and the observers.

    The state is the truth; what else is here is live: the caller's scope, tasks beside the turn, and what must be
    asked again by another process because it is not in the log.
    """

    __slots__ = (
        "_active_since", "_append_now", "_ended", "add", "answers", "applier", "arguments", "began", "durable",
        "ephemeral", "evaluator", "executor", "fold", "given_slots", "hooks", "inbox", "lifecycle", "listens",
        "message", "monotonic", "now", "passed", "program", "resolver", "resumed", "runner", "scope", "stepping",
        "stop", "task", "unrecorded", "voice",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        fold: Fold,
        message: Message | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: Any = None,
        slots: Mapping[str, Any] | None = None,
        ephemeral: bool = False,
        handover: Handover[StreamEvent] | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        if fold.unknown:
            raise StoreError(
                f"session {fold.session!r} has records of kind {fold.unknown!r}, which a newer version of Windlass "
                "wrote: it can be shown and exported, but only that version can go on with it"
            )
        self.program = program
        self.fold = fold
        self.message = message
        self.answers = answers or _NOTHING
        self.scope = scope
        self.given_slots = slots or _NOTHING
        self.ephemeral = ephemeral
        self.began = self._ended = self.inbox = False
        self.stepping = self.passed = 0
        self.unrecorded: tuple[Injected, ...] = ()
        self.task: asyncio.Task[Any] | None = None
        self.stop: Stopped | Cancelled | None = None
        self.hooks = program.hooks
        self.now = program.now
        self.monotonic = monotonic = program.monotonic
        self.resumed = resumed or message is None
        self._append_now = program.append_now
        self.arguments = Arguments(program.tools, fold, program.mask)
        self.durable = program.durable
        self.voice = (
            None
            if handover is None
            else Voice(
                handover,
                program.hooks,
                fold.session,
                self._observe,
                None if program.mask is None else program.mask.text,
            )
        )
        self.listens: bool = program.observed or handover is not None
        if self.parent is not None and self.parent.listens:
            self.listens = True
        self.add: Recorder = self.record if self.listens else fold.add
        if self.listens:
            self.backlog = Backlog()
        if program.mask is not None:
            self.conceal(program.mask)
        if self.resumed and fold.turn is not None:
            self.recorded = (*fold.turn.decided, *(fold.open.decided if fold.open is not None else ()))
            events = {decided.event for decided in self.recorded}
            self.hooks = self.hooks.with_events(events)
            if self.voice is not None and events & {"ModelReplying", "TurnEnding"}:
                self.voice.mute = True  # what a person may have to judge yet is not shown
        if program.metered:
            self.meter = Meter(program.budget)
            calibrate(self.meter, fold, program)
        self._active_since = monotonic()
        if self.parent is not None:
            self._waited = self._waiting_time()
        lifecycle, runner, applier, evaluator, resolver, _, executor = program.makers
        self.executor: ToolExecutor = executor(self)
        self.lifecycle: ExecutionLifecycle = lifecycle(self)
        self.runner: StepRunner = Surrounded(self, runner(self)) if self.hooks.step_wraps else runner(self)
        self.applier: StepApplier = applier(self)
        self.evaluator: ContinuationEvaluator = evaluator(self)
        self.resolver: StopResolver = resolver(self)

    def release(self) -> None:
        """The turn was taken to its end: let go of those who know the segment, or only the collector could free it."""
        self.closed = True
        if self._turn is not None:
            self._turn = None
        for onion in self.onions:
            onion.release()
        del self.add, self.executor, self.lifecycle, self.runner, self.applier, self.evaluator, self.resolver

    def wrapped(self, wraps: Sequence[Hook], effect: Effect, kind: Kind, guarded: Guarded, place: Place) -> Onion:
        """An effect of this turn inside its wraps."""
        onion = compose(wraps, effect, self, kind, guarded, place)
        self.onions += (onion,)
        return onion

    @property
    def turn(self) -> Turn[Any]:
        """The turn as hooks see it that write nothing."""
        if self._turn is None:
            self._turn = Turn(self)
        return self._turn

    @property
    def clock(self) -> Clock:
        """The agent's clock."""
        return self.program.clock

    @property
    def reserve(self) -> int:
        """How many tokens may be injected."""
        return self.program.reserve

    @property
    def errors(self) -> ErrorHandler:
        """Made when there is an error."""
        return self.program.composites.errors(self)

    # ------------------------------------------------------------ the log

    @property
    def state(self) -> State:
        """The current state."""
        return self.fold.state if self.opening is None else self.opening.fold.state

    def record(self, record: Record) -> None:
        """Fold a record at its time, without secrets, and tell those who listen. Time never goes back in a log.

        `add` does the same for a record that has its time by `fold.tick`; where nobody listens it is the fold's own.
        """
        if self._sealed:
            return
        if self.opening is not None:
            self.opening.add(record)
        else:
            self.write(record)

    def write(self, record: Record) -> None:
        """`record` also while a turn is opened, when what hooks write has to wait."""
        if self.mask is not None:
            record = self.mask(record)
        fold = self.fold
        if not record.at:
            force_setattr(record, "at", fold.tick(self.now))
        else:
            at = fold.at = max(microseconds(record.at), fold.at)
            if record.at != at:
                force_setattr(record, "at", at)
        fold.add(record)
        if self.listens:
            if type(record) is ToolAttempted and record.result is not None and self.hooks.tool_returning is not None:
                record = record.replace(result=None)  # no hook has cleaned it; the log has it, for a resume
            self._tell(record)

    def seal(self) -> None:
        """From here on nothing is recorded, whoever still works for this turn."""
        self._sealed = True

    def record_answer(self, answered: Answered) -> None:
        """Record an answer that nobody has seen yet. If the log has gone on since it was given, it says when it was."""
        if answered.at < self.fold.at:
            force_setattr(answered, "answered_at", answered.answered_at or microseconds(answered.at))
            force_setattr(answered, "at", 0.0)
        self.record(answered)

    def open_turn(self, started: TurnStarted) -> None:
        """From here on hooks see a turn that has begun, and what they write waits for `turn_opened`."""
        self.opening = Opening(self.fold, started, self.now)

    def turn_opened(self) -> list[Record]:
        """The turn is about to be recorded: what its hooks wrote comes after that."""
        opening, self.opening = self.opening, None
        return [] if opening is None else opening.records

    def conceal(self, mask: Callable[[Record], Record]) -> None:
        """From here on secrets are taken out of every record."""
        before, self.add = self.mask, self.record
        self.mask = mask if before is None else lambda record: mask(before(record))
        self.arguments = Arguments(self.program.tools, self.fold, self.mask)

    def fact(self, kind: type[Fact], *values: Any) -> None:
        """A fact that is not written; nobody listens, nothing is made."""
        if kind in self.hooks.listeners or self.voice is not None:
            self._tell(self._masked(kind(*values, at=self.fold.tick(self.now))))

    def _masked(self, fact: Fact) -> Fact:
        return fact if self.mask is None else self.mask(fact)

    def late(self, kind: type[Fact], *values: Any) -> None:
        """A fact that comes when the turn may be over: those who must be awaited are told beside it."""
        self.fact(kind, *values)
        if self.backlog.awaited:
            self.beside(self.told())

    def _tell(self, fact: Fact) -> None:
        if self.voice is not None:
            self.voice.fact(fact)
        self._observe(fact)

    def _observe(self, fact: Fact) -> None:
        if hooks := self.hooks.listeners.get(type(fact)):
            self.backlog.awaited += self.program.observers.tell(hooks, fact, self, self.fold.glimpse())

    def hear(self, fact: Fact, child: Segment) -> None:
        """A fact of an agent below this one, whose session is its path; told here, and to those above."""
        if self.voice is not None:
            self.voice.fact(without_words(fact) if child.hooks.holders else fact)
        if hooks := self.hooks.listeners.get(type(fact)):
            self.backlog.awaited += self.program.observers.tell(hooks, fact, self, child.fold.glimpse())
        if self.parent is not None:
            self.parent.hear(fact, child)

    def commit_now(self) -> bool:
        """Hand the pending records to the store, if it does not let us wait. Whether nothing else is to be done."""
        if (append := self._append_now) is None:
            return False
        fold = self.fold
        if pending := fold.pending:
            self.inbox = append(fold.session, pending, fold.stored)
            fold.stored += len(pending)
            fold.written += pending
            fold.pending = []
        return not self.listens

    async def commit(self) -> None:
        """Hand the pending records to the store; observers that must be awaited are awaited here."""
        if self.commit_now():
            return
        if self.fold.pending:
            await self._write()
        if self.listens:
            await self.told()
            if self.hooks.durable and self._followed != self.fold.stored:
                self._followed = self.fold.stored
                source = Source(self.program.store, self.clock, self.hooks, self.mask)
                self.program.observers.readers.follow(self.fold.session, source, self.backlog)
            while self.backlog.failures:
                self.record(self.backlog.failures.popleft())

    async def _write(self) -> None:
        """One batch after the other, whoever wants to commit: calls run side by side, and so do shadows.

        After an error of the store nothing more is written: the log goes on from what it has, as after a crash.
        """
        if self._writer is None:
            self._writer = asyncio.Lock()
        async with self._writer:
            fold = self.fold
            if self.broken is not None:
                raise self.broken
            if self._in_doubt:
                await self._find_out()
            if batch := fold.pending[:]:
                try:
                    self.inbox = await self.program.store.append(fold.session, batch, fold.stored)
                except asyncio.CancelledError:
                    self._in_doubt = True
                    raise
                except StoreError as error:
                    self._unwritable = error
                    raise
                except WindlassError:
                    raise
                except Exception as error:
                    text = f"the store could not keep {len(batch)} records of session {fold.session!r}: {error}"
                    self._unwritable = StoreError(text)
                    raise self._unwritable from error
                fold.acknowledge(len(batch))

    @property
    def broken(self) -> StoreError | None:
        """The error of the store after which nothing more is written."""
        return self._unwritable

    def give_up(self, error: StoreError) -> None:
        """Write nothing more: the store failed where this log goes on from, be it while reading or in a log below."""
        if self._unwritable is None:
            self._unwritable = error
            self._append_now = None

    async def _find_out(self) -> None:
        """A commit was broken off: whether the batch was kept is for the store to say."""
        fold = self.fold
        kept = await self.program.store.read(fold.session, fold.stored)
        if [encode(record) for record in kept] == [encode(record) for record in fold.pending[: len(kept)]]:
            fold.acknowledge(len(kept))
        self._in_doubt = False

    async def told(self) -> None:
        """Observers that must be awaited before the next point are, and so is a slow consumer of the stream."""
        while self.backlog.awaited:
            hook, fact, turn = self.backlog.awaited.pop(0)
            await self.program.observers.wait_for(hook, fact, turn, self.backlog)
        if self.voice is not None and self.voice.handover.full:
            await self.wait_for_consumer(self.voice.handover.room())

    def made_by(self, handler: str, state: State) -> tuple[Record, ...]:
        """What a phase handler has recorded to come to a state. It may not have come there in any other way."""
        pending = tuple(self.fold.pending)
        new = state.pending[len(pending) :]
        if state.pending[: len(pending)] != pending or self.state.record(*new) != state:
            raise ConfigError(
                f"phase handler {handler!r} returned a state that it did not make by recording: "
                "use state.record(…), and return what that gives"
            )
        if wrong := [type(record).__name__ for record in new if not isinstance(record, _OF_HANDLERS)]:
            legal = ", ".join(kind.__name__ for kind in _OF_HANDLERS)
            raise ConfigError(f"phase handler {handler!r} recorded {', '.join(wrong)}; it may record {legal}")
        return tuple([record.replace(at=0.0) for record in new])

    def active(self) -> float:
        """Seconds of work since it was last asked."""
        monotonic, since = self.monotonic, self._active_since
        self._active_since = now = monotonic()
        if self.waits is None and self.parent is None:
            return now - since
        before, self._waited = self._waited, self._waiting_time()
        return now - since - (self._waited - before)

    def working(self) -> float:
        """Seconds of work since `active` was last asked."""
        monotonic = self.monotonic
        return monotonic() - self._active_since - (self._waiting_time() - self._waited)

    def _waiting_time(self) -> float:
        """Seconds for which this turn, or the one it belongs to, has waited for its consumer."""
        *_, root = levels(self)
        return 0.0 if root.waits is None else root.waits.seconds()

    async def wait_for_consumer(self, waiting: Awaitable[None]) -> None:
        """Wait for whoever reads this turn. Nobody works meanwhile: limits of active time do not count it."""
        if self.waits is None:
            self.waits = ConsumerWait(self.monotonic)
        await self.waits.during(waiting)

    def limited(self, effect: LimitedEffect) -> bool:
        """Whether there are limits to check before an effect."""
        return self.parent is not None or bool(self.program.limits_before[effect])

    def stopped_before(self, effect: LimitedEffect) -> Stopped | None:
        """The limit that forbids an effect now, of this agent or of one above it. Then the turn is concluded."""
        stopped = exceeded(self, effect)
        if stopped is not None:
            self.limit_hit = stopped
            self.conclude(stopped)
        return stopped

    # ------------------------------------------------------------ how a turn ends

    def conclude(self, outcome: Completed | Stopped | Failed | Cancelled, text: str | None = None) -> None:
        """Settle how the turn will end. What was settled first stands."""
        turn = self.fold.turn
        if turn is not None and turn.concluded is None:
            unreviewed = turn.unreviewed
            if unreviewed and isinstance(outcome, Completed | Stopped):
                outcome = outcome.replace(unreviewed=unreviewed)
            record = self.record
            record(Concluded(outcome, text))

    def enter(self) -> None:
        """The turn begins, in this task. Whoever cancelled it before that is heard now."""
        self.task = task = asyncio.current_task()
        assert task is not None
        if cancels := task.cancelling():
            self._cancels = cancels
        if self.stop is not None:
            raise asyncio.CancelledError("the turn was cancelled")

    @property
    def unreturned(self) -> dict[str, ToolResult]:
        """The results that no hook has let pass yet, by call: the turn was broken off before."""
        if self._unreturned is None:
            self._unreturned = {}
        return self._unreturned

    def refuse_cancelled(self) -> None:
        """Whoever was told of a cancel and went on regardless: nothing more is begun."""
        if self.task is not None and self.task.cancelling() > self._cancels:
            raise asyncio.CancelledError("the turn was cancelled")

    def cancel(self, reason: str = "", outcome: Stopped | None = None) -> bool:
        """End the turn now, from any task or thread: what runs is cancelled, all is closed, the ending hooks run.

        False if it is ending already.
        """
        check_reason(reason)
        if self._ended:
            return False
        if self.stop is None:
            self.stop = outcome or Cancelled(reason)
            if (task := self.task) is not None:
                loop = task.get_loop()
                if asyncio._get_running_loop() is loop:
                    self.note_stop()
                loop.call_soon_threadsafe(self._cancel_now)
        return True

    def note_stop(self) -> None:
        """If somebody has cancelled the turn that is how it ends, whatever comes yet."""
        turn = self.fold.turn
        if self.stop is not None and turn is not None and turn.outcome is None:
            self.request_cancel(self.stop)
            self.conclude(self.stop)

    def _cancel_now(self) -> None:
        """The turn is waiting for something, if it is not over: that wait ends."""
        if (task := self.task) is not None:
            self.note_stop()
            self._cancelled = task
            task.cancel("the turn was cancelled")

    def request_cancel(self, outcome: Any) -> None:
        """Note, once, that somebody asked for a cancel."""
        if isinstance(outcome, Cancelled) and not self.requested:
            self.requested = True
            self.record(CancelRequested(outcome.reason))

    def ends(self) -> bool:
        """From here on nothing cancels the turn. Whether it was cancelled by itself, and by nobody from outside."""
        task, self.task, self._ended = self.task, None, True
        for timer in self._timers:
            timer.cancel()
        if self.stop is None or task is None:
            return False
        return (task.cancelling() if self._cancelled is None else task.uncancel()) == self._cancels

    def watch_time(self) -> None:
        """Limits of time hold while something runs, not only after it."""
        turn = self.fold.state.turn
        for limit in self.program.limits if turn is not None else ():
            assert turn is not None
            left = limit.left(turn)
            if left is not None and left > 0:  # otherwise nothing is begun any more: see `stopped_before`
                self._timers += (asyncio.ensure_future(self._time_out(limit, left)),)

    async def _time_out(self, limit: Limit, left: float) -> None:
        """End the turn when its time is up. While it waits for its consumer, active time stands still."""
        rest: float | None = left
        while rest is not None and rest > 0:
            await self.clock.alarm(rest)
            if self.waits is not None:
                await self.waits.over()
            turn = self.fold.state.turn
            assert turn is not None
            rest = limit.left(replace(turn, active=turn.active + self.working()))
        self.cancel(outcome=Stopped(limit.reason, f"{name_of(limit)}: {left:.1f} s were left when the work began"))

    def suspend(self) -> None:
        """Wait for the answers to all open questions."""
        self.record(Suspended(self.waiting, self.active()))

    @property
    def waiting(self) -> tuple[Asked, ...]:
        """The open questions."""
        return self.fold.turn.waiting if self.fold.turn is not None else ()

    def answer_to(self, ask_id: str) -> Answered | None:
        """The latest answer to a question of this turn."""
        turn = self.fold.turn
        for answered in reversed(turn.answered if turn is not None else ()):
            if answered.id == ask_id:
                return answered
        return None

    def is_waiting(self, ask_id: str) -> bool:
        """Whether a question is open."""
        return any(asked.id == ask_id for asked in self.waiting)

    def ask_person(self, asked: Asked) -> None:
        """Put a question, once."""
        if not self.is_waiting(asked.id):
            self.record(asked)

    # ------------------------------------------------------------ calls of tools

    def completed(self, call: ToolCall) -> ToolCall:
        """A call with its arguments validated and complete, as canonical JSON; `ArgumentsError` if they do not fit."""
        return self.arguments.complete(call).call

    # ------------------------------------------------------------ what hooks write

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        """A declared slot, by itself, its type or its name."""
        return self.hooks.slot(key)

    def keep(self, writes: Writes, stage: str = "") -> None:
        """What a hook or tool wrote becomes records. `stage` is where a hook did."""
        for name, (slot, value) in writes.slots.items():
            if self._parallel is not None:
                self._refuse_conflict(slot, writes.by)
            if slot.merge is not None and name in self.state.slots:
                value = slot.merge(slot.load(self.state.slots), value)
            self.record(SlotSet(name, slot.dump(value, writes.by), writes.by, stage))
        for message in writes.messages:
            self.record(MessageHeld(message, writes.by, stage))
        writes.kept = True

    def _refuse_conflict(self, slot: Slot[Any], by: str) -> None:
        assert self._parallel is not None
        first = self._parallel.setdefault(slot.name, by)
        if first != by and slot.merge is None:
            raise SlotConflict(
                f"{first!r} and {by!r} set slot {slot.name!r} at the same time; give it a merge rule", hook=by
            )

    def parallel(self, on: bool) -> None:
        """Whether several calls run at once: then two writers of one slot are a conflict."""
        self._parallel = {} if on else None

    def tokens(self, parts: Any) -> int:
        """About how many tokens some parts are, by the agent's tokenizer if it has one."""
        return self.program.budget.counter.parts(parts)

    def injected_tokens(self) -> int:
        """About how many injected tokens the turn carries."""
        return self._carries().size(step_id(self.fold.session, self.fold.steps + 1))

    def _carries(self) -> Carried:
        if self._carried is None:
            self._carried = Carried(self.fold.session, self.program.budget.counter.parts)
        return self._carried.take(self.fold.turn, self.unrecorded)

    def has_injected(self, item: Injected, beside: Sequence[Injected]) -> bool:
        """Whether models are shown the same already, for as long as this would be. A child sees only its own."""
        if is_for_child(item, self.fold.session) or item.event == "SessionStarting":
            return False
        text, carried = said(item), self._carries()
        there = [other for other in beside if other.durable or not item.durable]
        if carried.lasts(text, self.fold.shown) or any(said(other) == text for other in there):
            return True
        return not item.durable and carried.has(text, step_id(self.fold.session, self.fold.steps + 1))

    # ------------------------------------------------------------ work beside the turn

    def beside(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the turn; it is awaited, for a while, when the segment ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settle_now(self) -> bool:
        """Whether nothing is left to wait for once the last records are handed to the store, which is done here."""
        return self._tasks is None and self.commit_now()

    async def settle(self) -> State:
        """Everything beside the turn, then the last records, then the observers and what they failed at."""
        if self._tasks:
            await self._wait_for_tasks()
        if not self.commit_now():
            await self.commit()
        if self.listens:
            await self._wait_for_tasks()
            await self._settle_observers()
        return self.fold.state

    async def _settle_observers(self) -> None:
        """Wait for the observers and record what they failed at, which some of them may want to know in turn."""
        clock = asyncio.get_running_loop().time
        until = clock() + self.program.patience
        drained = True
        while drained and (self.backlog.count or self.backlog.failures or self.fold.pending):
            drained = await self.backlog.drained(max(until - clock(), 0.0))
            await self.commit()
        if not drained:
            log.warning("observers were still at work when the turn was over; agent.aclose() waits for them")
        for failure in self.backlog.close():
            self.record(failure)
        if self.fold.pending:
            await self.commit()

    async def _wait_for_tasks(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self.program.patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def turn_of(self, by: str, event: str, about: str) -> Turn[Any]:
        """The turn for somebody who asks models in his own name."""
        return Turn(self, Writes(by), None, Asker(event, about, by, (by,)))

    async def in_thread(self, fn: Callable[[], Any]) -> Any:
        return await self.program.in_thread(fn)

    # ------------------------------------------------------------ models

    def model(self, request: ModelRequest) -> Model:
        """The model a request is for."""
        try:
            return self.program.models[request.model]
        except KeyError:
            known = ", ".join(self.program.models)
            text = f"the request asks for model {request.model!r}, which the agent does not have; known: {known}"
            raise ConfigError(text) from None

    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> ModelReply:
        """A side call."""
        return await ask(self, asker, model, messages, options)

    @property
    def side_calls(self) -> dict[str, int]:
        """How often each side call was made in this process."""
        if self._side_calls is None:
            self._side_calls = {}
        return self._side_calls


class Surrounded:
    """A step runner inside the wraps of a step."""

    def __init__(self, segment: Segment, runner: StepRunner) -> None:
        self.segment = segment
        self.runner = runner

    async def run(self, fold: Fold) -> StepFold:
        steps: list[StepFold] = []

        async def one(_: State) -> Step:
            steps.append(await self.runner.run(fold))
            return steps[0].step()

        await surround(self.segment.hooks.step_wraps, one, self.segment)(fold.state)
        return steps[0]
