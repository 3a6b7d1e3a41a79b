"""The log of one pass over a turn: records are masked, stamped, folded, told and handed to the
store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import force_setattr

from windlass._hooks.conceals import cleaner
from windlass.errors import ConfigError, SessionConflict, SessionError, StoreError, WindlassError
from windlass.masking import Mask
from windlass.outcomes import Cancelled, Completed, Failed, Stopped, marked
from windlass.ownership import Claim
from windlass.records import (
    Answered,
    Concluded,
    Evaluated,
    Fact,
    HookFailed,
    Injected,
    MessageAdded,
    MessageHeld,
    Record,
    SlotSet,
    ToolAttempted,
    TurnStarted,
    encode,
)
from windlass.states import FOLDS, Fold, State, microseconds

from . import shields
from .active_time import ActiveTime
from .audience import Audience, SideTasks
from .hook_tally import HookTally
from .opening import Opening
from .program import AppendsNow, Program
from .shields import within

T = TypeVar("T")

log = logging.getLogger("windlass")

_OF_HANDLERS = (MessageAdded, MessageHeld, Injected, SlotSet, HookFailed, Evaluated)
"""What a phase handler may record: nothing that stands for a decision, a call or a result."""


class Journal:
    """Writes one session's log during one pass.

    `fold` is the log so far. `add` is `record` for a record of the turn under way that has its
    time: that of `tick`, or of the record before it. `has_mail` says that the session's inbox may
    hold entries that nobody has read. `mask` takes secrets out of records. `opening` holds what
    hooks write before the turn's first record may be stored. `time` counts how long the turn has
    worked. `claim` says for which pass over the root session all is written. `times` sums up how
    long hooks take, if the agent measures them.
    """

    __slots__ = (
        "_append_now", "_awaits_turn", "_claims", "_clean", "_early", "_followed", "_hurries", "_in_doubt", "_kinds",
        "_parent", "_sealed", "_unclaimed", "_unwritable", "_writer", "_writers", "add", "audience", "claim", "fold",
        "has_mail", "mask", "now", "opening", "program", "time", "times",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        fold: Fold,
        audience: Audience,
        time: ActiveTime,
        claim: Claim,
        *,
        parent: Journal | None = None,
        opens_turn: bool = False,
        mail: bool = False,
    ) -> None:
        if fold.unknown:
            raise StoreError(
                f"session {fold.session!r} has records of kind {fold.unknown!r}, written by a newer version of "
                "Windlass: you can show and export it, but only that version can continue it"
            )
        self.program = program
        self.fold = fold
        self.audience = audience
        self.time = time
        self.now = program.now
        self.has_mail = mail
        self.opening: Opening | None = None
        self.mask: Mask | None = program.mask
        self._clean: Callable[[Any], Any] | None = (
            cleaner(program.conceals, program.mask) if program.conceals else program.mask
        )
        self.claim = claim
        self.times: HookTally | None = None
        if program.hooks.measured:
            self.times = HookTally(program.monotonic)
            if (measured := audience.measured_voice) is not None:
                measured.measure(self.times)
        self._unclaimed = claim.begins or parent is not None
        self._parent = parent
        self._append_now = program.append_now
        self._awaits_turn = opens_turn
        self._early: tuple[Record, ...] = ()
        self._followed = -1
        self._writer: asyncio.Lock | None = None
        self._writers = 0
        self._claims = self._in_doubt = self._sealed = self._hurries = False
        self._unwritable: StoreError | SessionError | None = None
        self._kinds = audience.kinds if audience.listens else None
        plain = self._clean is None and self._kinds is None
        self.add: Callable[[Record], None] = (
            fold.add if plain else _adder(fold, audience, self._clean)
        )

    @property
    def visible(self) -> Fold:
        """The log as hooks see it: while a turn is opened, as if it had begun."""
        return self.fold if self.opening is None else self.opening.fold

    @property
    def state(self) -> State:
        """The current state; while a turn is opened, the state as its hooks see it."""
        return self.visible.state

    # ------------------------------------------------------------ records

    def tick(self) -> float:
        """The time for the next record."""
        return self.fold.tick(self.now)

    def record(self, record: Record) -> None:
        """Add a record to the log. It gets the time of now, unless it came with one."""
        if self._sealed:
            return
        if self.opening is not None:
            self.opening.add(record)
        else:
            self.write(record)

    def write(self, record: Record) -> None:
        """`record` also while a turn is opened, when what hooks write has to wait."""
        if self._clean is not None:
            record = self._clean(record)
        if record.at != self.fold.at:
            self._stamp(record)
        self.fold.add(record)
        if self._kinds is not None and type(record) in self._kinds:
            if (
                type(record) is ToolAttempted
                and record.result is not None
                and self.audience.hides_attempts
            ):
                record = record.replace(
                    result=None
                )  # no hook has cleaned it; the log has it, for a resume
            self.audience.tell(record)

    def _stamp(self, record: Record) -> None:
        """Give a record its time: now, or the one that it came with.

        Time never goes back in a log.
        """
        fold = self.fold
        if not record.at:
            force_setattr(record, "at", fold.tick(self.now))
        else:
            fold.at = at = max(microseconds(record.at), fold.at)
            if record.at != at:
                force_setattr(record, "at", at)

    def record_times(self) -> None:
        """Record how long hooks took in this pass: it is about to end."""
        if self.times is not None and (record := self.times.take()) is not None:
            self.record(record)

    def record_answer(self, answered: Answered) -> None:
        """Record an answer.

        If the log went on since the answer was given, the record says when that was.
        """
        if answered.at < self.fold.at:
            force_setattr(
                answered, "answered_at", answered.answered_at or microseconds(answered.at)
            )
            force_setattr(answered, "at", 0.0)
        self.record(answered)

    def adopt(self, record: Record) -> None:
        """Add a record of a child's log to this one.

        The audience has heard of it from the child.
        """
        fold = self.visible
        fold.at = at = max(fold.at, record.at)
        record = record.replace(at=at)
        fold.add(record)
        if self.opening is not None:
            self.opening.adopted.append(record)
            self.opening.records.append(record)

    def record_side(self, record: Record) -> None:
        """Record a side call.

        If a wrap of the turn makes it before the turn's first record, it comes after that.
        """
        if self._awaits_turn and self.opening is None:
            self._early += (record,)
        else:
            self.record(record)

    def fact(self, kind: type[Fact], *values: Any) -> None:
        """Tell a fact that is not written; it is not made if nobody listens."""
        if self._kinds is not None and kind in self._kinds:
            fact = kind(*values, at=self.tick())
            self.audience.tell(fact if self._clean is None else self._clean(fact))

    def seal(self) -> None:
        """The pass is over: nothing more is recorded or written, and work that is left over ends."""
        self._sealed = True
        self.add = _refuse

    def conclude(
        self,
        outcome: Completed | Stopped | Failed | Cancelled,
        text: str | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Decide how the turn will end. The first decision stands, unless it is decided `anew`."""
        turn = self.fold.turn
        if turn is not None and (turn.concluded is None or anew):
            outcome = marked(outcome, turn.unreviewed, turn.objections)
            self.record(Concluded(outcome, text))

    # ------------------------------------------------------------ the opening of a turn

    def open_turn(self, started: TurnStarted) -> None:
        """From here on hooks see a turn that has begun, and what they write waits for
        `begin_turn`."""
        self.opening = Opening(self.fold, started, self.now)

    def begin_turn(self, started: TurnStarted) -> tuple[Sequence[Record], Sequence[Record]]:
        """Record that a turn begins.

        Returns the records that hooks made before, for the caller to add, and those of them that
        come from the logs of children.
        """
        opening, self.opening = self.opening, None
        early, self._early = self._early, ()
        self._awaits_turn = False
        self.record(started)
        return (early, ()) if opening is None else ((*early, *opening.records), opening.adopted)

    @property
    def awaits_turn(self) -> bool:
        """Whether this pass opens a turn whose first record is not in the log yet."""
        return self._awaits_turn

    # ------------------------------------------------------------ the store

    def commit_now(self) -> bool:
        """Hand the pending records to the store if that needs no waiting.

        Whether nothing is left to do.
        """
        if (append := self._append_now) is None:
            return False
        fold = self.fold
        if pending := fold.pending:
            if self._unclaimed:
                if self._parent is not None:
                    self._parent._begin_now(append)
                self.has_mail = append(fold.session, pending, fold.stored, self.claim)
                if self.claim.begins:
                    self._note_begun()
            else:  # what takes the session over makes this journal give up: the epoch need not be compared
                self.has_mail = append(fold.session, pending, fold.stored)
            fold.stored += len(pending)
            fold.written += pending
            fold.pending = []
        audience = self.audience
        return self._kinds is None or not (audience.hooks.durable or audience.has_work())

    def flush_now(self) -> None:
        """Hand over what is pending to a store that needs no waiting, for a pass that takes over: the
        start of a call may be among it."""
        if not self._sealed and not self._awaits_turn:
            self.commit_now()

    def _begin_now(self, append: AppendsNow) -> None:
        """Begin the pass in the store, at the root of the tree, unless it has begun."""
        if self._parent is not None:
            self._parent._begin_now(append)
        elif self.claim.begins:
            append(self.fold.session, (), self.fold.stored, self.claim)
            self._note_begun()

    async def begin(self) -> None:
        """`_begin_now` for a store that has to be waited for. Pending records of the root go along."""
        if self._parent is not None:
            await self._parent.begin()
        elif self.claim.begins:
            await self._write()

    def _note_begun(self) -> None:
        """The store has the claim. Here nothing more has to be said of it; below, every batch names it."""
        claim = self.claim
        self.claim = Claim(claim.root, claim.epoch, ends=claim.ends)
        self._unclaimed = False

    @property
    def may_have_begun(self) -> bool:
        """Whether the store was asked to begin the pass, and did not refuse."""
        return self._claims

    async def commit(self) -> None:
        """Hand the pending records to the store; observers that must be awaited are awaited
        here."""
        if self._sealed or self.commit_now():
            return
        if self.fold.pending:
            await self._write()
        audience = self.audience
        if audience.listens:
            if audience.has_work():
                await audience.flush()
            if audience.hooks.durable and self._followed != self.fold.stored:
                from windlass._hooks.readers import Source  # most agents have no durable observers

                self._followed = self.fold.stored
                source = Source(self.program.store, self.program.clock, audience.hooks, self._clean)
                audience.follow(self.fold.session, source)
            while audience.backlog.failures:
                self.record(audience.backlog.failures.popleft())

    async def _write(self) -> None:
        """Write one batch after the other, although calls and shadow gates that run side by side
        all commit.

        After an error of the store nothing more is written: the log goes on from what it has, as
        after a crash.
        """
        if self._writer is None:
            self._writer = asyncio.Lock()
        self._writers += 1
        try:
            async with self._writer:
                fold = self.fold
                if self.broken is not None:
                    raise self.broken
                if self._in_doubt:
                    await self._find_out()
                if self._parent is not None:
                    await self._parent.begin()
                batch = fold.pending[:]
                if batch or self.claim.begins:
                    store = self.program.store
                    self._claims = self.claim.begins
                    try:
                        appending = store.append(fold.session, batch, fold.stored, self.claim)
                        self.has_mail = await (
                            self.ask_store(appending) if self.hurries else appending
                        )
                        store.passes.answers += 1
                    except asyncio.CancelledError as cancelled:
                        self._in_doubt = True
                        if isinstance(cancelled.__cause__, StoreError):
                            self._unwritable = cancelled.__cause__
                        raise
                    except SessionError as error:
                        self._unwritable, self._claims = error, False
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
                    if self.claim.begins:
                        self._note_begun()
        finally:
            self._writers -= 1
            if not self._writers:
                self._writer = None  # most of the time a turn waits for models, and needs none

    async def _find_out(self) -> None:
        """A commit was broken off: ask the store whether it kept the batch."""
        fold = self.fold
        kept = await self.ask_store(self.program.store.read(fold.session, fold.stored))
        if [encode(record) for record in kept] == [
            encode(record) for record in fold.pending[: len(kept)]
        ]:
            fold.acknowledge(len(kept))
            if kept and self.claim.begins:
                self._note_begun()
        self._in_doubt = False

    async def ask_store(self, asking: Coroutine[Any, Any, T]) -> T:
        """Wait for the store; only briefly if this turn or one above it was cancelled."""
        if not self.hurries:
            return await asking
        try:
            return await within(asking, shields.STORE_PATIENCE, self.program.store.passes)
        except TimeoutError:
            self._unwritable = StoreError(
                f"the store did not answer for {shields.STORE_PATIENCE:g} s after the turn of session "
                f"{self.fold.session!r} was cancelled; it is not known whether its last records were stored. "
                "Resume the session when the store answers again"
            )
            raise self._unwritable from None

    def hurry(self) -> None:
        """The turn was cancelled: do not wait long for a store that does not answer."""
        self._hurries = True

    @property
    def hurries(self) -> bool:
        """Whether this turn or one above it was cancelled."""
        return self._hurries or (self._parent is not None and self._parent.hurries)

    @property
    def was_left_waiting(self) -> bool:
        """Whether the turn was cancelled and the store failed, or did not answer in time."""
        return self.hurries and isinstance(self.broken, StoreError)

    @property
    def broken(self) -> StoreError | SessionError | None:
        """The error after which nothing more is written, here or in the log above: the store failed,
        or another process took the session over."""
        if self._unwritable is None and self._parent is not None:
            return self._parent.broken
        return self._unwritable

    def check_writable(self) -> None:
        """Raise the error after which nothing more is written, if there was one."""
        if self._unwritable is not None:
            raise self._unwritable
        if self._parent is not None:
            self._parent.check_writable()

    def give_up(self, error: StoreError | SessionError) -> None:
        """Write nothing more: the store failed or the session was taken over, here or below."""
        if self._unwritable is None:
            self._unwritable = error
            self._append_now = None

    def note_mail(self) -> None:
        """The inbox has entries."""
        self.has_mail = True

    def take_mail(self) -> None:
        """The inbox is read now: it has nothing new until a commit says so."""
        self.has_mail = False

    # ------------------------------------------------------------ the end

    async def settle(self, tasks: SideTasks | None = None) -> State:
        """Wait for work beside the turn, write the last records, then wait for observers and record
        their failures."""
        patience = self.program.observer_patience
        if tasks is not None and tasks.running:
            await tasks.wait(patience)
        await self.commit()
        if self.audience.listens:
            if tasks is not None and tasks.running:
                await tasks.wait(patience)
            try:
                await self._drain_observers(patience)
            except SessionConflict:  # the pass had ended, and another one has begun
                log.warning(
                    "session %r went on without these facts: %r",
                    self.fold.session,
                    self.fold.pending,
                )
        return self.fold.state

    async def _drain_observers(self, patience: float) -> None:
        """Wait for the observers and record their failures, which are facts that other observers
        may look at."""
        backlog, clock = self.audience.backlog, asyncio.get_running_loop().time
        until = clock() + patience
        drained = True
        while drained and (backlog.busy or backlog.failures or self.fold.pending):
            drained = await backlog.drained(max(until - clock(), 0.0))
            await self.commit()
        if not drained:
            log.warning(
                "observers were still at work when the turn was over; agent.aclose() waits for them"
            )
        for failure in backlog.close():
            self.record(failure)
        if self.fold.pending:
            await self.commit()

    # ------------------------------------------------------------ phase handlers

    def records_of(self, handler: str, state: State) -> tuple[Record, ...]:
        """What a phase handler recorded to come to a state.

        It may not come there in any other way.
        """
        pending = tuple(self.fold.pending)
        new = state.pending[len(pending) :]
        if state.pending[: len(pending)] != pending or self.state.record(*new) != state:
            raise ConfigError(
                f"phase handler {handler!r} returned a state that it did not make by recording: "
                "use state.record(…), and return what that gives"
            )
        if wrong := [
            type(record).__name__ for record in new if not isinstance(record, _OF_HANDLERS)
        ]:
            legal = ", ".join(kind.__name__ for kind in _OF_HANDLERS)
            raise ConfigError(
                f"phase handler {handler!r} recorded {', '.join(wrong)}; it may record {legal}"
            )
        return tuple([record.replace(at=0.0) for record in new])


def _refuse(record: Record) -> None:
    """End work that is left over from a turn that is over: it may not go on."""
    raise asyncio.CancelledError("the turn is over")


def _adder(
    fold: Fold, audience: Audience, clean: Callable[[Record], Record] | None
) -> Callable[[Record], None]:
    """Adds records that have their time, where texts are cleaned or somebody listens."""
    teller = audience.teller()

    def add(record: Record) -> None:
        kind = type(record)
        FOLDS[kind](fold, record)
        fold.pending.append(record)
        if (tell := teller(kind)) is not None:
            tell(record)

    return add if clean is None else lambda record: add(clean(record))
