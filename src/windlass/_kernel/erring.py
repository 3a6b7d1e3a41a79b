"""Errors: classified, put to the hooks, answered by the policy, bounded whatever anybody says."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass.criteria import RetryLimit
from windlass.decisions import Again, Fail, Halt, Ignore
from windlass.errors import HookError, SessionError
from windlass.events import Erring
from windlass.outcomes import ErrorValue, Failed, Stopped, StopReason, error_value
from windlass.policies import Action, Category, ErrorPolicy, category_of
from windlass.records import ErrorHandled
from windlass.states import Fold, step_id

from .applying import ENDED_BY_ERROR, abandon, end_step
from .segment import Segment

_RETRY_LIMIT = "RetryLimit"


class Handling(Struct, frozen=True):
    """What is to be done about an error, who said so, and the Halt if a hook gave one."""

    action: Literal["retry", "ignore", "fail", "halt"]
    by: str = "policy"
    delay: float | None = None
    halt: Halt | None = None


class DefaultErrorHandler:
    """Turns an error into retry (the step is entered again), ignore, or the end of the turn."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    async def handle(self, error: Exception, fold: Fold) -> None:
        segment = self.segment
        if isinstance(error, SessionError) or category_of(error) == "store" or fold.turn is None:
            raise error
        segment.failure = error
        settled = next((found for found in segment.settled if found[0] is error), None)
        segment.settled = ()
        if settled is not None:
            answer: Handling = settled[1]
            value: ErrorValue = settled[2]
        else:
            value = error_value(error)
            answer = await handling_of(segment, error, category_of(error))
        if answer.action == "retry":
            if segment.voice is not None:
                segment.voice.take_back_attempt()
            await segment.commit()
            if answer.delay:
                await segment.clock.sleep(answer.delay)
            segment.failure = None
        elif answer.action == "ignore" and fold.open is not None and fold.open.reply is not None:
            await end_step(segment, error)
            segment.failure = None
        else:
            await abandon(segment, ENDED_BY_ERROR, error)
            if answer.by == _RETRY_LIMIT:
                segment.conclude(Stopped(StopReason.RETRY_LIMIT, value.message))
            elif answer.halt is not None:
                segment.conclude(Stopped(StopReason.HALTED, answer.halt.reason), answer.halt.reply)
            else:
                segment.conclude(Failed(value))
        await segment.commit()


async def handling_of(
    segment: Segment,
    error: Exception,
    category: Category,
    retryable: bool = True,
    details: ErrorValue | None = None,
) -> Handling:
    """Hooks are asked, then the policy; its bounds hold whatever anybody says. The answer is recorded.

    `details` is what the log may have of the error.
    """
    policy, fold, failed = segment.program.policy, segment.fold, segment.failed_call
    assert fold.turn is not None
    of_model = failed is not None and failed.error is error
    made = fold.turn.errors_in_a_row + 1
    if of_model:
        made = 1 if fold.open is None else fold.open.failures + 1
        action = policy.action_for_model(error, category)
    else:
        action = policy.action("tool") if category == "tool" else _elsewhere(policy, category)
    answer = Handling(action)
    if segment.hooks.erring is not None and not isinstance(error, HookError):
        answer = await _ask(segment, segment.hooks.erring, error, category, made, answer)
    if answer.action == "retry":
        wait = policy.backoff(error, made) if answer.delay is None else answer.delay
        bound = f"the cap of {policy.cap:g} s" if wait is None else _bound(segment, made, retryable)
        answer = Handling("retry", answer.by, wait)
        if bound is not None:
            answer = Handling("ignore" if category == "tool" else "halt", bound)
    if category != "tool" or answer.by != "policy" or answer.action != "ignore":
        attempt = failed.attempt if failed is not None and of_model and answer.action == "retry" else 0
        value = details or error_value(error)
        segment.record(ErrorHandled(value, category, answer.action, answer.by, fold.steps + 1, attempt))
    return answer


def _elsewhere(policy: ErrorPolicy, category: Category) -> Action:
    """What holds for an error outside model and tool calls: it is only retried if the policy says so explicitly."""
    return "halt" if category in ("hook", "store") else policy.actions.get(category, policy.otherwise)


def _bound(segment: Segment, made: int, retryable: bool) -> str | None:
    """What stands against another retry, if anything does."""
    policy, turn = segment.program.policy, segment.fold.turn
    assert turn is not None
    if not retryable:
        return "the call is unsafe"
    if made > policy.retries or turn.retries >= policy.total:
        return "bounds of the policy"
    limits = [limit for limit in segment.program.limits if isinstance(limit, RetryLimit)]
    return _RETRY_LIMIT if any(turn.retries >= limit.retries for limit in limits) else None


async def _ask(
    segment: Segment, point: Point, error: Exception, category: Category, made: int, otherwise: Handling
) -> Handling:
    fold = segment.fold
    about = step_id(fold.session, fold.steps + 1) + "/error"
    passage = Passage(point, Erring(error, category, made, segment.turn), segment, about)
    await passage.rewrite()
    verdict = await passage.judge()
    by = ", ".join(sorted(name for name, _ in passage.answers))
    match verdict:
        case Again(after=after):
            return Handling("retry", by, after)
        case Ignore():
            return Handling("ignore", by)
        case Fail():
            return Handling("fail", by)
        case Halt() as halt:
            return Handling("halt", by, halt=halt)
        case _:
            return otherwise
