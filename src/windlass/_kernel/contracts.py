"""The seven composites' contracts, and the set of them that an agent runs on.

Between composites the state travels as its accumulator: they read what they need of the `Fold` and
change it only by recording. Its immutable value, `fold.state`, is made for hooks, criteria and
phase handlers that ask for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from windlass.records import Evaluated
from windlass.states import Fold, State, StepFold
from windlass.turns import Turn

if TYPE_CHECKING:
    from .segment import Segment

Phase = Literal["before_turn", "before_step", "after_step", "after_turn"]
PHASES: tuple[str, ...] = ("before_turn", "before_step", "after_step", "after_turn")
Emit: TypeAlias = Callable[[State], Awaitable[None]]


class ExecutionLifecycle(Protocol):
    """Opens and closes a turn; `failed` is the way out of a turn that was cancelled or broke
    down."""

    async def start(self, fold: Fold) -> None: ...
    async def finish(self, fold: Fold) -> State: ...
    async def failed(self, fold: Fold, error: BaseException) -> State: ...


class StepRunner(Protocol):
    """Runs one step, or goes on with an open one: the model call and the calls it asks for.

    It gives the step as it is folded so far; `step.step()` is its value.
    """

    async def run(self, fold: Fold) -> StepFold: ...


class StepApplier(Protocol):
    """Lets the step's messages enter the transcript and ends the step."""

    def apply(self, fold: Fold, step: StepFold) -> Awaitable[None]: ...


class ContinuationEvaluator(Protocol):
    """Collects the votes on whether the turn goes on."""

    async def evaluate(self, fold: Fold) -> Evaluated: ...


class StopResolver(Protocol):
    """Turns a vote into going on or stopping; a stop may be vetoed."""

    async def resolve(self, fold: Fold, evaluated: Evaluated) -> None: ...


class ErrorHandler(Protocol):
    """Answers an error with retry, ignore or halt."""

    async def handle(self, error: Exception, fold: Fold) -> None: ...


class ToolExecutor(Protocol):
    """Decides all open calls of the step, then runs the allowed ones; their results become
    records."""

    async def execute(self, fold: Fold) -> None: ...


class PhaseHandler(Protocol):
    """Something of yours after a phase. The state it returns must come from `state.record(…)`."""

    def handle(self, state: State, turn: Turn[Any]) -> State | Awaitable[State]:
        """Return the state as it is, or with records of yours."""
        ...


class Composites(Struct, frozen=True):
    """How each composite is made for a pass. Any can be replaced; none can be left out."""

    lifecycle: Callable[[Segment], ExecutionLifecycle]
    runner: Callable[[Segment], StepRunner]
    applier: Callable[[Segment], StepApplier]
    evaluator: Callable[[Segment], ContinuationEvaluator]
    resolver: Callable[[Segment], StopResolver]
    errors: Callable[[Segment], ErrorHandler]
    executor: Callable[[Segment], ToolExecutor]
