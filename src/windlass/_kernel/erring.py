"""Errors: classified, put to the hooks, answered by the policy, bounded whatever anybody says."""

from __future__ import annotations

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass.criteria import RetryLimit
from windlass.decisions import Halt, Ignore, Retry
from windlass.errors import HookError, SessionError
from windlass.events import Erring
from windlass.outcomes import Failed, Stopped, StopReason, error_value
from windlass.policies import Action, Category, category_of
from windlass.records import ErrorHandled
from windlass.states import Fold, step_id

from .applying import abandon, end_step
from .segment import Segment

_RETRY_LIMIT = "RetryLimit"


class Handling(Struct, frozen=True):
    """What is to be done about an error, who said so, and the Halt if a hook gave one."""

    action: Action
    by: str = "policy"
    delay: float = 0.0
    halt: Halt | None = None


class DefaultErrorHandler:
    """Turns an error into retry (the step is entered again), ignore, or halt."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    async def handle(self, error: Exception, fold: Fold) -> None:
        segment = self.segment
        if isinstance(error, SessionError) or category_of(error) == "store" or fold.turn is None:
            raise error
        segment.failure = error
        settled, segment.settled = segment.settled, None
        if settled is not None and settled[0] is error:
            answer: Handling = settled[1]
        else:
            answer = await handling_of(segment, error, category_of(error))
        if answer.action == "retry":
            await segment.commit()
            if answer.delay:
                await segment.clock.sleep(answer.delay)
            segment.failure = None
        elif answer.action == "ignore" and fold.open is not None and fold.open.reply is not None:
            await end_step(segment, error)
            segment.failure = None
        else:
            await abandon(segment, f"the turn ended: {error}", error)
            if answer.by == _RETRY_LIMIT:
                segment.conclude(Stopped(StopReason.RETRY_LIMIT, str(error)))
            elif answer.halt is not None:
                segment.conclude(Stopped(StopReason.HALTED, answer.halt.reason), answer.halt.reply)
            else:
                segment.conclude(Failed(error_value(error)))
        await segment.commit()


async def handling_of(segment: Segment, error: Exception, category: Category, retryable: bool = True) -> Handling:
    """Hooks are asked, then the policy; its bounds hold whatever anybody says. The answer is recorded."""
    policy, fold = segment.program.policy, segment.fold
    answer = Handling(policy.action(category), "policy", policy.delay)
    if segment.hooks.erring is not None and not isinstance(error, HookError):
        answer = await _ask(segment, segment.hooks.erring, error, category, answer)
    if answer.action == "retry" and (bound := _bound(segment, retryable)) is not None:
        answer = Handling("ignore" if category == "tool" else "halt", bound)
    if category != "tool" or answer.by != "policy" or answer.action != "ignore":
        segment.record(ErrorHandled(error_value(error), category, answer.action, answer.by, fold.steps + 1))
    return answer


def _bound(segment: Segment, retryable: bool) -> str | None:
    """What stands against another retry, if anything does."""
    policy, turn = segment.program.policy, segment.fold.turn
    assert turn is not None
    if not retryable:
        return "the call is unsafe"
    if turn.errors_in_a_row >= policy.retries or turn.retries >= policy.total:
        return "bounds of the policy"
    limits = [limit for limit in segment.program.limits if isinstance(limit, RetryLimit)]
    return _RETRY_LIMIT if any(turn.retries >= limit.retries for limit in limits) else None


async def _ask(segment: Segment, point: Point, error: Exception, category: Category, otherwise: Handling) -> Handling:
    fold = segment.fold
    attempt = fold.turn.errors_in_a_row + 1 if fold.turn is not None else 1
    about = step_id(fold.session, fold.steps + 1) + "/error"
    passage = Passage(point, Erring(error, category, attempt, segment.turn), segment, about)
    await passage.rewrite()
    verdict = await passage.judge()
    by = ", ".join(sorted(name for name, _ in passage.answers))
    match verdict:
        case Retry(delay=delay):
            return Handling("retry", by, delay)
        case Ignore():
            return Handling("ignore", by)
        case Halt() as halt:
            return Handling("halt", by, halt=halt)
        case _:
            return otherwise
