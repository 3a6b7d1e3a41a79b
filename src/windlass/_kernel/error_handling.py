"""Errors: classified, put to hooks, answered by the policy, and bounded in any case."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from windlass._hooks.compiled import Point
from windlass.criteria import RetryLimit
from windlass.decisions import Again, Fail, Halt, Ignore
from windlass.errors import HookError, SessionError
from windlass.events import Erring
from windlass.messages import ModelRequest
from windlass.outcomes import ErrorValue, Failed, Stopped, StopReason, error_value
from windlass.policies import Action, Category, ErrorPolicy, ErrorRule, category_of
from windlass.records import ErrorHandled
from windlass.states import Fold, step_id

from .journal import Journal
from .site import Site
from .step_end import ENDED_BY_ERROR, StepEnd

_RETRY_LIMIT = "RetryLimit"


class Handling(Struct, frozen=True):
    """What is done about an error, by whose decision, and the Halt if a hook answered one."""

    action: Literal["retry", "ignore", "fail", "halt"]
    by: str = "policy"
    delay: float | None = None
    halt: Halt | None = None


class FailedCall(Struct, frozen=True):
    """A model call of the turn that failed: the request as it was judged, and the number of the
    latest attempt."""

    error: Exception
    request: ModelRequest
    step: int
    round: int
    attempt: int


class Failures(Struct, eq=False):
    """What failed in one pass and how that is handled.

    `latest` is the error that the turn ends with, if it does. Errors of tools are handled where
    they happen; what was decided there is kept until the error reaches the loop.
    """

    _journal: Journal
    _site: Site
    _failed_call: FailedCall | None = None
    _handled: tuple[tuple[Exception, Handling, ErrorValue], ...] = ()
    latest: BaseException | None = None
    _point: Point | None = None

    def __post_init__(self) -> None:
        self._point = self._site.hooks.at(Erring)

    def note(self, error: BaseException | None) -> None:
        """The error that the turn ends with, or None if it goes on."""
        self.latest = error

    def note_failed_call(self, failed: FailedCall) -> None:
        """A model call failed."""
        self._failed_call = failed

    def take_failed_request(self, step: int, round_: int) -> ModelRequest | None:
        """The request of a model call that failed in this process and is made again: it was
        judged."""
        failed, self._failed_call = self._failed_call, None
        same = failed is not None and (failed.step, failed.round) == (step, round_)
        return failed.request if failed is not None and same else None

    def keep_handling(self, error: Exception, handling: Handling, details: ErrorValue) -> None:
        """Keep what was decided about an error that is about to be raised."""
        self._handled = (*self._handled, (error, handling, details))

    def take_handling(self, error: Exception) -> tuple[Handling, ErrorValue] | None:
        """What was decided about an error where it happened."""
        found = next(
            ((handling, details) for one, handling, details in self._handled if one is error), None
        )
        self._handled = ()
        return found

    @property
    def asks_hooks(self) -> bool:
        """Whether hooks are asked about errors."""
        return self._point is not None

    async def handling_of(
        self,
        error: Exception,
        category: Category,
        retryable: bool = True,
        details: ErrorValue | None = None,
        tool: str = "",
    ) -> Handling:
        """Hooks are asked, then the policy; its bounds hold whatever they say. The answer is
        recorded.

        `details` is what the log may have of the error, `tool` the name of the tool that raised it.
        """
        journal, failed = self._journal, self._failed_call
        policy, fold = journal.program.policy, journal.fold
        assert fold.turn is not None
        of_model = failed is not None and failed.error is error
        made = fold.turn.errors_in_a_row + 1
        if of_model:
            made = 1 if fold.open is None else fold.open.failures + 1
            action = policy.action_for_model(error, category)
        else:
            action = policy.action("tool") if category == "tool" else _elsewhere(policy, category)
        rule = policy.rule_for(error, category, tool)
        answer = Handling(action if rule is None else rule.action)
        if self._point is not None and not isinstance(error, HookError):
            answer = await self._ask(error, category, made, answer)
        if answer.action == "retry":
            answer = self._bounded(answer, error, category, made, retryable, rule)
        if category != "tool" or answer.by != "policy" or answer.action != "ignore":
            attempt = (
                failed.attempt
                if failed is not None and of_model and answer.action == "retry"
                else 0
            )
            value = details or error_value(error)
            journal.record(
                ErrorHandled(value, category, answer.action, answer.by, fold.steps + 1, attempt)
            )
        return answer

    def _bounded(
        self,
        answer: Handling,
        error: Exception,
        category: Category,
        made: int,
        retryable: bool,
        rule: ErrorRule | None,
    ) -> Handling:
        """A retry after its wait, unless a bound stands against it."""
        policy = self._journal.program.policy
        wait = policy.backoff(error, made, rule) if answer.delay is None else answer.delay
        bound = (
            f"the cap of {policy.cap:g} s" if wait is None else self._bound(made, retryable, rule)
        )
        if bound is None:
            return Handling("retry", answer.by, wait)
        return Handling("ignore" if category == "tool" else "halt", bound)

    def _bound(self, made: int, retryable: bool, rule: ErrorRule | None) -> str | None:
        """The bound that stands against another retry, if there is one."""
        program, turn = self._journal.program, self._journal.fold.turn
        assert turn is not None
        if not retryable:
            return "the call is unsafe"
        if made > program.policy.most_retries(rule) or turn.retries >= program.policy.total:
            return "bounds of the policy"
        limits = [limit for limit in program.limits if isinstance(limit, RetryLimit)]
        return _RETRY_LIMIT if any(turn.retries >= limit.retries for limit in limits) else None

    async def _ask(
        self, error: Exception, category: Category, made: int, otherwise: Handling
    ) -> Handling:
        fold, site = self._journal.fold, self._site
        assert self._point is not None
        about = step_id(fold.session, fold.steps + 1) + "/error"
        passage = site.passage(self._point, Erring(error, category, made, site.turn), about)
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


class DefaultErrorHandler(Struct, eq=False):
    """Turns an error into retry (the step is entered again), ignore, or the end of the turn."""

    _journal: Journal
    _failures: Failures
    _step_end: StepEnd

    async def handle(self, error: Exception, fold: Fold) -> None:
        journal, failures = self._journal, self._failures
        if isinstance(error, SessionError) or category_of(error) == "store" or fold.turn is None:
            raise error
        failures.note(error)
        if (handled := failures.take_handling(error)) is not None:
            answer, value = handled
        else:
            value = error_value(error)
            answer = await failures.handling_of(error, category_of(error))
        if answer.action == "retry":
            if journal.audience.voice is not None:
                journal.audience.voice.retract_attempt()
            await journal.commit()
            if answer.delay:
                await journal.program.clock.sleep(answer.delay)
            failures.note(None)
        elif answer.action == "ignore" and fold.open is not None and fold.open.reply is not None:
            await self._step_end.end(error, "The turn ended before this call.")
            failures.note(None)
        else:
            await self._step_end.abandon(ENDED_BY_ERROR, error)
            if answer.by == _RETRY_LIMIT:
                journal.conclude(Stopped(StopReason.RETRY_LIMIT, value.message))
            elif answer.halt is not None:
                journal.conclude(Stopped(StopReason.HALTED, answer.halt.reason), answer.halt.reply)
            else:
                journal.conclude(Failed(value))
        await journal.commit()


def _elsewhere(policy: ErrorPolicy, category: Category) -> Action:
    """What holds for an error outside model and tool calls: it is only retried if the policy says
    so explicitly."""
    return (
        "halt" if category in ("hook", "store") else policy.actions.get(category, policy.otherwise)
    )
