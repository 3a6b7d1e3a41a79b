"""Errors: classified, put to the hooks, answered by the policy, bounded whatever anybody says."""

from __future__ import annotations

from windlass._hooks.dispatch import Passage
from windlass.decisions import Halt, Ignore, Retry
from windlass.errors import HookError, SessionError
from windlass.events import Erring
from windlass.outcomes import Failed, Stopped, StopReason, error_value
from windlass.policies import Action, Category, category_of
from windlass.records import ErrorHandled
from windlass.states import Fold, step_id

from .applying import abandon, end_step
from .segment import Segment


class Handler:
    """Turns an error into retry (the step is entered again), ignore, or halt."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    async def handle(self, error: Exception, fold: Fold) -> None:
        segment = self.segment
        if isinstance(error, SessionError) or category_of(error) == "store" or fold.turn is None:
            raise error
        segment.failure = error
        category = category_of(error)
        action, by, delay, halt = await self._decide(error, category, fold)
        segment.record(ErrorHandled(error_value(error), category, action, by, fold.steps + 1))
        if action == "retry":
            await segment.commit()
            if delay:
                await segment.clock.sleep(delay)
            segment.failure = None
        elif action == "ignore" and fold.open is not None and fold.open.reply is not None:
            await end_step(segment, error)
            segment.failure = None
        else:
            await abandon(segment, f"the turn ended: {error}", error)
            if halt is not None:
                segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
            else:
                segment.conclude(Failed(error_value(error)))
        await segment.commit()

    async def _decide(self, error: Exception, category: Category, fold: Fold) -> tuple[Action, str, float, Halt | None]:
        """The action, who chose it, the delay of a retry, and the Halt if a hook gave one."""
        policy = self.segment.program.policy
        action, by, delay, halt = policy.action(category), "policy", policy.delay, None
        if self.segment.hooks.erring is not None and not isinstance(error, HookError):
            verdict, speakers = await self._ask(error, category, fold)
            by = speakers or by
            if isinstance(verdict, Retry):
                action, delay = "retry", verdict.delay
            elif isinstance(verdict, Ignore):
                action = "ignore"
            elif isinstance(verdict, Halt):
                action, halt = "halt", verdict
        if action == "retry" and not self._within_bounds(fold):
            action, by, halt = "halt", "bound of the policy", None
        return action, by, delay, halt

    def _within_bounds(self, fold: Fold) -> bool:
        policy, turn = self.segment.program.policy, fold.turn
        assert turn is not None
        return turn.errors_in_a_row < policy.retries and turn.retries < policy.total

    async def _ask(self, error: Exception, category: Category, fold: Fold) -> tuple[object, str]:
        point, turn = self.segment.hooks.erring, fold.turn
        assert point is not None
        assert turn is not None
        event = Erring(error, category, turn.errors_in_a_row + 1, self.segment.turn)
        passage = Passage(point, event, self.segment, step_id(fold.session, fold.steps + 1) + "/error")
        verdict = await passage.judge()
        return verdict, ", ".join(sorted(name for name, _ in passage.answers))
