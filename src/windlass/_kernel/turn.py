"""The first of the composites: starts a turn or goes on with it, finishes it, and cleans up after
one that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from windlass.records import Injected, TakenOver
from windlass.states import Fold, State

from .cancellation import Cancellation
from .contracts import ContinuationEvaluator, StopResolver
from .entry import Entry
from .injections import Injections
from .turn_end import TurnEnd
from .turn_start import TurnStart

if TYPE_CHECKING:
    from .turn_resume import TurnResume


class TurnLifecycle(Struct, frozen=True, eq=False):
    """Starts, finishes and, if need be, closes a turn.

    `injected` is what the agent above injected for this one.
    """

    _entry: Entry
    _start: TurnStart
    _resume: TurnResume | None
    _end: TurnEnd
    _injections: Injections
    _cancellation: Cancellation
    _evaluator: ContinuationEvaluator
    _resolver: StopResolver
    _injected: tuple[Injected, ...] = ()

    async def start(self, fold: Fold) -> None:
        message, journal = self._entry.message, self._injections.transcript.journal
        if self._entry.took_over:
            journal.record(TakenOver(self._entry.took_over))
            await journal.commit()
        if message is not None:
            if fold.turn is not None and not fold.state.over:
                await self._end.supersede()
            await self._start.open(message)
        elif self._resume is not None and await self._resume.resume() and fold.going:
            turn = fold.turn
            voted = turn.evaluated if turn is not None else None
            if voted is None or voted.step != fold.steps:
                voted = await self._evaluator.evaluate(fold)
            await self._resolver.resolve(fold, voted)
        if journal.program.timed and fold.going:
            self._cancellation.watch_time()
        if journal.program.handlers:
            await self._injections.transcript.run_handlers("before_turn")
        in_background = self._cancellation.interruptible
        if (journal.program.durable or in_background) and message is not None:
            await (
                journal.commit()
            )  # before a model is asked: the message is safe, and others find the session
        if self._injected:
            await self._take_injected(fold)

    async def _take_injected(self, fold: Fold) -> None:
        """Once the task is let in, what was injected for it joins, unless the log has it."""
        turn = fold.turn
        if turn is None or not turn.admitted or not fold.going:
            return
        recorded = {item.hook for item in turn.injected if item.event == "Delegating"}
        recorded |= {message.origin for message in fold.messages if message.origin is not None}
        for item in self._injected:
            if item.hook not in recorded:
                await self._injections.take_in(item)
            elif not item.record:
                self._injections.add_unlogged(item)

    async def finish(self, fold: Fold) -> State:
        return await self._end.finish()

    async def failed(self, fold: Fold, error: BaseException) -> State:
        return await self._end.failed(error)
