"""Ending a turn from outside: cancels, and limits of time while something runs."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass.checking import check_reason
from windlass.criteria import Limit, name_of
from windlass.outcomes import Cancelled, Stopped
from windlass.records import CancelRequested

from .journal import Journal


class Cancellation(Struct, eq=False):
    """Cancels one pass, once. `stop` is the outcome that was asked for.

    A pass is `abandoned` if nobody goes on with the turn: then no person can hold up its end.

    It `came_late` if it was asked for when the last hooks ran already.

    A pass in the background is `interruptible`: when its task is cancelled, as at the end of the
    event loop, it stops like a process that dies, and can be resumed.
    """

    _journal: Journal
    _cancels: int = 0
    _cancelled: asyncio.Task[Any] | None = None
    _requested: bool = False
    _ended: bool = False
    _timers: tuple[asyncio.Task[None], ...] = ()
    task: asyncio.Task[Any] | None = None
    stop: Stopped | Cancelled | None = None
    _below: tuple[Cancellation, ...] = ()
    interruptible: bool = False
    abandoned: bool = False
    came_late: bool = False

    @property
    def session(self) -> str:
        """The session whose turn this cancels."""
        return self._journal.fold.session

    def find(self, session: str) -> Cancellation | None:
        """The pass over a session, which may be that of an agent below this one."""
        if self.session == session:
            return self
        found = [below.find(session) for below in self._below]
        return next((one for one in found if one is not None), None)

    def add(self, child: Cancellation) -> None:
        """An agent below begins to work."""
        self._below += (child,)

    def remove(self, child: Cancellation) -> None:
        """An agent below has ended."""
        self._below = tuple([other for other in self._below if other is not child])

    def flush(self) -> None:
        """Hand over what this pass and those below have recorded, if the store needs no waiting."""
        self._journal.flush_now()
        for below in self._below:
            below.flush()

    # ------------------------------------------------------------ cancelling

    def enter(self) -> None:
        """The turn begins, in this task. A cancel that came before takes effect now."""
        self.task = task = asyncio.current_task()
        assert task is not None
        if cancels := task.cancelling():
            self._cancels = cancels
        if self.stop is not None:
            raise asyncio.CancelledError("the turn was cancelled")

    def check(self) -> None:
        """Raise if the turn was cancelled and a hook, tool or model swallowed that: nothing more is
        begun."""
        if self.task is not None and self.task.cancelling() > self._cancels:
            raise asyncio.CancelledError("the turn was cancelled")

    def cancel(self, reason: str = "", outcome: Stopped | None = None) -> bool:
        """End the turn now, from any task or thread: what runs is cancelled, all is closed, the
        ending hooks run.

        False if it is ending already.
        """
        check_reason(reason)
        if self._ended:
            self.came_late = True
            return False
        if self.stop is None:
            self.stop = outcome or Cancelled(reason)
            if (task := self.task) is not None:
                loop = task.get_loop()
                if asyncio._get_running_loop() is loop:
                    self.note()
                loop.call_soon_threadsafe(self._cancel_now)
        return True

    def interrupt(self) -> bool:
        """Stop the pass like a process that dies, from any task or thread: nothing more is written, and the turn can
        be resumed. False if it is ending."""
        task = self.task
        if self._ended or self.stop is not None or task is None:
            return False
        self._let_interrupt()
        task.get_loop().call_soon_threadsafe(task.cancel, "the turn was interrupted")
        return True

    def _let_interrupt(self) -> None:
        """A cancel of the task interrupts this pass and those below."""
        self.interruptible = True
        for below in self._below:
            below._let_interrupt()

    def _cancel_now(self) -> None:
        """Break off what the turn is waiting for, if it is not over."""
        if (task := self.task) is not None:
            self.note()
            self._cancelled = task
            task.cancel("the turn was cancelled")

    def note(self) -> None:
        """If the turn was cancelled, that is how it ends, whatever comes yet."""
        turn = self._journal.fold.turn
        if self.stop is not None and turn is not None and turn.outcome is None:
            self.note_request(self.stop)
            self._journal.conclude(self.stop)

    def note_request(self, outcome: Any) -> None:
        """Record, once, that a cancel was asked for."""
        if isinstance(outcome, Cancelled) and not self._requested:
            self._requested = True
            self._journal.record(CancelRequested(outcome.reason))

    def accept(self, reason: str) -> None:
        """The turn is resumed after a cancel: that is how it ends, also if another end of it waits
        for a person."""
        self.stop = Cancelled(reason)
        self.note_request(self.stop)
        self._journal.conclude(self.stop, anew=True)

    def abandon(self, reason: str) -> None:
        """The parent of this agent ends, so nobody goes on with this turn."""
        self.abandoned = True
        self.accept(reason)

    def end(self) -> bool:
        """From here on nothing cancels the turn.

        Whether it was cancelled by itself, and not from outside.
        """
        task, self.task, self._ended = self.task, None, True
        for timer in self._timers:
            timer.cancel()
        if self.stop is None or task is None:
            return False
        return (task.cancelling() if self._cancelled is None else task.uncancel()) == self._cancels

    # ------------------------------------------------------------ time

    def watch_time(self) -> None:
        """Limits of time hold while something runs, not only after it."""
        turn = self._journal.fold.state.turn
        for limit in self._journal.program.limits if turn is not None else ():
            assert turn is not None
            left = limit.left(turn)
            if (
                left is not None and left > 0
            ):  # otherwise nothing is begun any more: see `Limits.stop_before`
                self._timers += (asyncio.ensure_future(self._time_out(limit, left)),)

    async def _time_out(self, limit: Limit, left: float) -> None:
        """End the turn when its time is up.

        While it waits for its consumer, active time stands still.
        """
        rest: float | None = left
        while rest is not None and rest > 0:
            await self._journal.program.clock.alarm(rest)
            if (waits := self._journal.time.waits) is not None:
                await waits.over()
            turn = self._journal.fold.state.turn
            assert turn is not None
            rest = limit.left(replace(turn, active=turn.active + self._journal.time.working()))
        self.cancel(
            outcome=Stopped(
                limit.reason, f"{name_of(limit)}: {left:.1f} s were left when the work began"
            )
        )
