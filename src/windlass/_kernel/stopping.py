"""Going on or stopping: a vote becomes an outcome, unless a hook vetoes the stop; never without bound."""

from __future__ import annotations

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass.decisions import Halt, Veto, Vote
from windlass.events import Stopping, SubagentStopping
from windlass.messages import user
from windlass.outcomes import Completed, Stopped, StopReason
from windlass.records import Evaluated, StopVetoed
from windlass.states import Fold, step_id

from .continuing import GO_ON, reason_of
from .inbox import steered
from .segment import Segment
from .stages import add_message, decide

_SUCCESS = Completed()
_COMPLETED = StopReason.COMPLETED  # which Python 3.11 finds slowly
_GOING_ON = (Vote.REQUEST, Vote.ALLOW)


class Resolver(Struct, frozen=True):
    """Settles a stop. Hard limits, errors and cancels are never put to a veto."""

    segment: Segment

    async def resolve(self, fold: Fold, evaluated: Evaluated) -> None:
        if evaluated is GO_ON:  # tools were called: the usual case
            return
        segment = self.segment
        if evaluated.vote in _GOING_ON:
            if (turn := fold.turn) is not None and turn.idle and turn.idle > segment.program.max_idle_steps:
                segment.conclude(
                    Stopped(StopReason.NO_PROGRESS, _idle_detail(evaluated, segment.program.max_idle_steps))
                )
            return
        reason, detail = reason_of(evaluated, segment.program, fold)
        outcome = _SUCCESS if reason is _COMPLETED else Stopped(reason, detail)
        if reason.hard or not await self._held_up(fold, reason):
            segment.conclude(outcome)
        else:
            await segment.commit()

    async def _held_up(self, fold: Fold, reason: StopReason) -> bool:
        """Whether the turn does not simply stop: somebody steered or cancelled it, or a hook vetoes."""
        segment = self.segment
        if segment.inbox and await steered(segment):
            segment.record(Evaluated(fold.steps, Vote.REQUEST, (("steering", "a message came in"),)))
            return True
        if not fold.going:
            return True
        point = segment.hooks.stopping
        if point is not None and await self._vetoed(fold, reason, point, Stopping):
            return True
        above = segment.parent.hooks.subagent_stopping if segment.parent is not None else None
        return above is not None and await self._vetoed(fold, reason, above, SubagentStopping)

    async def _vetoed(
        self, fold: Fold, reason: StopReason, point: Point, event: type[Stopping | SubagentStopping]
    ) -> bool:
        """Whether the turn does not simply stop: it goes on with feedback, or it was concluded here."""
        segment, turn = self.segment, fold.turn
        assert turn is not None
        about = f"{step_id(fold.session, fold.steps)}/stop"
        passage = Passage(point, event(reason, turn.vetoes > 0, segment.turn), segment, about)
        await passage.rewrite()
        verdict = await decide(segment, passage)
        if isinstance(verdict, Halt):
            segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
            return True
        if not isinstance(verdict, Veto):
            return False
        by = tuple(sorted(name for name, decision in passage.answers if isinstance(decision, Veto)))
        if turn.vetoes >= segment.program.max_vetoes:
            segment.conclude(Stopped(StopReason.VETO_CAP, f"{', '.join(by)} vetoed {turn.vetoes + 1} times"))
            return True
        segment.record(StopVetoed(reason.value, by, verdict.feedback))
        await add_message(segment, user(verdict.feedback or "Go on.", origin=", ".join(by)), ", ".join(by))
        return True


def _idle_detail(evaluated: Evaluated, bound: int) -> str:
    votes = "; ".join(f"{name}: {why}" if why else name for name, why in evaluated.reasons)
    return f"went on {bound} times in a row without a tool call (max_idle_steps), and again: {votes}"
