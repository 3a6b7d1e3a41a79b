"""Who votes on whether a turn goes on: limits, which forbid, and the ordinary reasons to go on or to stop.

A criterion is any callable from a state to a `Vote`, a `(Vote, reason)` pair or None. The strictest vote wins, whatever
the order: FORBID, REQUEST, ALLOW_STOP, ALLOW. Nobody votes: the turn stops. Limits count in the log, so that they
survive a pause; the classes here name the stop reason they stand for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ._options import FUNCTION, Domain, check_options, number, optional, whole
from .decisions import Vote
from .errors import ConfigError
from .outcomes import StopReason
from .prices import billed_apart, installed
from .states import State, Step, StepFold, TurnFold, TurnState
from .types import Criterion

Evaluation: TypeAlias = tuple[Vote, str]
Effect: TypeAlias = Literal["model", "tool"]


class Limit(Struct, frozen=True):
    """A criterion that forbids going on at some point; `reason` is the stop reason it stands for.

    All limits are checked between steps. `holds_before` names the effects before which one is checked too: "model" for
    every attempt at a model call, those of wraps and side calls included, and "tool" for every attempt at a tool call.
    One that `holds_below` is a limit for all agents below this one, too.
    """

    reason: ClassVar[StopReason] = StopReason.FORBIDDEN
    holds_below: ClassVar[bool] = False
    holds_before: ClassVar[tuple[Effect, ...]] = ()

    def __post_init__(self) -> None:
        for kind in type(self).__mro__:
            if domains := _OPTIONS.get(kind):
                check_options(type(self).__name__, domains, {name: getattr(self, name) for name in domains})

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        """Why the turn must not go on, or None."""
        raise NotImplementedError

    def left(self, turn: TurnState) -> float | None:
        """In how many seconds it will be exceeded whatever happens, if that is known."""
        return None

    def __call__(self, state: State) -> Evaluation | None:
        turn = state.turn
        why = None if turn is None else self.exceeded(state, turn)
        return None if why is None else (Vote.FORBID, why)


class StepLimit(Limit, frozen=True):
    """At most so many steps in a turn."""

    steps: int
    reason: ClassVar[StopReason] = StopReason.STEP_LIMIT

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        return f"{turn.steps} of {self.steps} steps are done" if turn.steps >= self.steps else None


class TokenLimit(Limit, frozen=True):
    """At most so many tokens in a turn, input and output together."""

    tokens: int
    reason: ClassVar[StopReason] = StopReason.TOKEN_LIMIT
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model",)

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        spent = turn.usage.total
        return f"{spent} of {self.tokens} tokens are spent" if spent >= self.tokens else None


class CostLimit(Limit, frozen=True):
    """At most so much money in a turn. An unknown cost counts as over the limit."""

    usd: float
    reason: ClassVar[StopReason] = StopReason.COST_LIMIT
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model",)

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        cost = turn.usage.cost
        if cost is None:
            return _unknown(turn) if turn.usage.requests else None
        return f"{cost:.4f} of {self.usd:.4f} USD are spent" if cost >= self.usd else None


def _unknown(turn: TurnState) -> str:
    reply = turn.last.reply if turn.last is not None else None
    by = f", last by {reply.model!r}" if reply is not None and reply.model else ""
    if reply is not None and not reply.usage.total:
        return f"the cost is unknown{by}, so it counts as over the limit: the reply does not say what it used"
    apart = ", ".join(f"{count} {kind}" for kind, count in turn.usage.details.items() if billed_apart(kind))
    used = f" ({apart} among it)" if apart else ""
    lists = "" if installed() else ", or install windlass[prices] for the vendors' price lists"
    remedy = "state a price, in USD per million tokens: open_model(…, price=(input, output)) or PricedModel(model, …)"
    return f"the cost is unknown{by}{used}, so it counts as over the limit; {remedy}{lists}"


class ActiveTimeLimit(Limit, frozen=True):
    """At most so many seconds of work in a turn.

    Time spent suspended does not count, nor time spent waiting for a slow consumer of `stream` or `iterate`.
    """

    seconds: float
    reason: ClassVar[StopReason] = StopReason.TIME_LIMIT
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model", "tool")

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        return f"worked for {turn.active:.1f} of {self.seconds} s" if turn.active >= self.seconds else None

    def left(self, turn: TurnState) -> float | None:
        return self.seconds - turn.active


class Deadline(Limit, frozen=True):
    """Not after a moment (seconds since the epoch), or not later than so many seconds after the turn began.

    `now` is the agent's clock if it is not given.
    """

    at: float | None = None
    after: float | None = None
    now: Callable[[], float] | None = None
    reason: ClassVar[StopReason] = StopReason.DEADLINE
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model", "tool")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at is None and self.after is None:
            raise ConfigError("Deadline() never passes: give `at`, a moment, or `after`, a number of seconds")

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        left = self.left(turn)
        return "the deadline has passed" if left is not None and left <= 0 else None

    def left(self, turn: TurnState) -> float | None:
        moments = [self.at] if self.at is not None else []
        if self.after is not None:
            moments.append(turn.started_at + self.after)
        now = time.time() if self.now is None else self.now()
        return min(moments) - now if moments else None


class RetryLimit(Limit, frozen=True):
    """At most so many retries in a turn."""

    retries: int
    reason: ClassVar[StopReason] = StopReason.RETRY_LIMIT

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        return f"retried {turn.retries} times" if turn.retries > self.retries else None


class ErrorLimit(Limit, frozen=True):
    """Stop once so many errors were met in a turn (`errors=1`: at the first)."""

    errors: int = 1
    reason: ClassVar[StopReason] = StopReason.ERROR

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        met = turn.errors + turn.failed_calls
        return f"{met} errors were met" if met >= self.errors else None


_OPTIONS: dict[type, dict[str, Domain]] = {
    StepLimit: {"steps": whole(1)},
    TokenLimit: {"tokens": whole(0)},
    CostLimit: {"usd": number(least=0)},
    ActiveTimeLimit: {"seconds": number(least=0)},
    Deadline: {"at": optional(number()), "after": optional(number(least=0)), "now": optional(FUNCTION)},
    RetryLimit: {"retries": whole(0)},
    ErrorLimit: {"errors": whole(1)},
}


COUNTING: frozenset[type] = frozenset(_OPTIONS)
"""The limits that only read counters of the turn, which its accumulator has too."""


def tools_ran(state: State) -> Evaluation | None:
    """Go on if the last step called tools: the model must see what came of it. Otherwise it may stop.

    A step that was taken back is to be taken again; a reply that its vendor has paused goes on if it is sent back.
    """
    return vote_on_step(state.turn, None if state.turn is None else state.turn.last)


def vote_on_step(turn: TurnState | TurnFold | None, step: Step | StepFold | None) -> Evaluation:
    """What `tools_ran` votes, by the turn and its last step."""
    if step is not None and step.calls:
        return TOOLS_RAN
    if turn is not None and step is None and turn.rewinds:
        return REWOUND
    if step is not None and step.reply is not None and step.reply.finish == "paused":
        return PAUSED
    return NO_TOOLS


TOOLS_RAN: Evaluation = (Vote.REQUEST, "tools were called")
REWOUND: Evaluation = (Vote.REQUEST, "the last step was taken back")
PAUSED: Evaluation = (Vote.REQUEST, "the vendor paused the reply")
NO_TOOLS: Evaluation = (Vote.ALLOW_STOP, "no tool was called")


class ReplyContains(Struct, frozen=True):
    """Vote by the text of the last reply: ask to go on, or allow to stop, where it contains a text."""

    text: str
    vote: Vote = Vote.ALLOW_STOP

    def __call__(self, state: State) -> Evaluation | None:
        step = state.turn.last if state.turn is not None else None
        if step is not None and step.reply is not None and self.text in step.reply.text:
            return (self.vote, f"the reply contains {self.text!r}")
        return None


class FinishedBecause(Struct, frozen=True):
    """Vote by why the model finished."""

    finish: str
    vote: Vote = Vote.ALLOW_STOP

    def __call__(self, state: State) -> Evaluation | None:
        step = state.turn.last if state.turn is not None else None
        if step is not None and step.reply is not None and step.reply.finish == self.finish:
            return (self.vote, f"the model finished because of {self.finish!r}")
        return None


def on_clock(criterion: Criterion, now: Callable[[], float]) -> Criterion:
    """A criterion that goes by this clock if it goes by none."""
    return replace(criterion, now=now) if isinstance(criterion, Deadline) and criterion.now is None else criterion


def name_of(criterion: object) -> str:
    """What a criterion is called where it is shown."""
    return getattr(criterion, "__name__", None) or type(criterion).__name__


__all__ = [
    "ActiveTimeLimit",
    "CostLimit",
    "Deadline",
    "Effect",
    "ErrorLimit",
    "Evaluation",
    "FinishedBecause",
    "Limit",
    "ReplyContains",
    "RetryLimit",
    "StepLimit",
    "TokenLimit",
    "tools_ran",
]
