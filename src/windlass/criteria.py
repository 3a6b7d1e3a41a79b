"""Criteria vote on whether a turn continues: limits, which forbid it, and the usual reasons to continue or to stop.

A criterion is any callable from a state to a `Vote`, a `(Vote, reason)` pair or None. The strictest vote wins, whatever
the order of criteria: FORBID, REQUEST, ALLOW_STOP, ALLOW. Without any vote the turn stops. Limits count what is in the
log, so they survive a suspension. Each limit names the stop reason of the turns that it stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ._options import FLAG, FUNCTION, Domain, check_options, number, optional, whole
from .decisions import Vote
from .errors import ConfigError
from .outcomes import StopReason
from .prices import billed_apart, has_price_lists
from .states import State, Step, StepFold, TurnFold, TurnState
from .types import Criterion

Evaluation: TypeAlias = tuple[Vote, str]
Effect: TypeAlias = Literal["model", "tool"]


class Limit(Struct, frozen=True):
    """A criterion that stops a turn when it exceeds a limit; `reason` is the turn's stop reason.

    Derive from it for a limit of your own: `class Quota(Limit, frozen=True)` with fields for its options and a method
    `exceeded`. All limits are checked between steps. `holds_before` names the effects before which a limit is also
    checked: "model" for every attempt at a model call, including those of wraps and side calls, and "tool" for every
    attempt at a tool call; by default both. If `holds_below` is true, the limit also applies to all sub-agents.
    """

    reason: ClassVar[StopReason] = StopReason.FORBIDDEN
    holds_below: ClassVar[bool] = False
    holds_before: ClassVar[tuple[Effect, ...]] = ("model", "tool")

    def __post_init__(self) -> None:
        for kind in type(self).__mro__:
            if domains := _OPTIONS.get(kind):
                check_options(type(self).__name__, domains, {name: getattr(self, name) for name in domains})

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        """Why the turn must stop, or None."""
        raise NotImplementedError

    def left(self, turn: TurnState) -> float | None:
        """The seconds until the limit is exceeded whatever happens, if that is known."""
        return None

    def __call__(self, state: State) -> Evaluation | None:
        turn = state.turn
        why = None if turn is None else self.exceeded(state, turn)
        return None if why is None else (Vote.FORBID, why)


class StepLimit(Limit, frozen=True):
    """At most this many steps in a turn."""

    steps: int
    reason: ClassVar[StopReason] = StopReason.STEP_LIMIT
    holds_before: ClassVar[tuple[Effect, ...]] = ()

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        return f"{turn.steps} of {self.steps} steps are done" if turn.steps >= self.steps else None


class TokenLimit(Limit, frozen=True):
    """At most this many tokens in a turn, input and output together."""

    tokens: int
    reason: ClassVar[StopReason] = StopReason.TOKEN_LIMIT
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model",)

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        spent = turn.usage.total
        return f"{spent} of {self.tokens} tokens are spent" if spent >= self.tokens else None


class CostLimit(Limit, frozen=True):
    """At most this cost, in USD, in a turn.

    An unknown cost counts as over the limit, or with `allow_unknown` as nothing.
    """

    usd: float
    allow_unknown: bool = False
    reason: ClassVar[StopReason] = StopReason.COST_LIMIT
    holds_below: ClassVar[bool] = True
    holds_before: ClassVar[tuple[Effect, ...]] = ("model",)

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        cost = turn.usage.cost
        if cost is None:
            return _unknown_cost(turn) if turn.usage.requests and not self.allow_unknown else None
        return f"{cost:.4f} of {self.usd:.4f} USD are spent" if cost >= self.usd else None


def _unknown_cost(turn: TurnState) -> str:
    reply = turn.last.reply if turn.last is not None else None
    by = f" (last model: {reply.model!r})" if reply is not None and reply.model else ""
    if reply is not None and not reply.usage.total:
        return f"the cost is unknown{by}, so it counts as over the limit: the reply does not report its usage"
    apart = ", ".join(f"{count} {kind}" for kind, count in turn.usage.details.items() if billed_apart(kind))
    items = f", including {apart}" if apart else ""
    lists = "" if has_price_lists() else ", or install windlass[prices] for the vendors' price lists"
    remedy = "state a price, in USD per million tokens: open_model(…, price=(input, output)) or PricedModel(model, …)"
    return f"the cost is unknown{by}{items}, so it counts as over the limit; {remedy}{lists}"


class ActiveTimeLimit(Limit, frozen=True):
    """At most this many seconds of work in a turn.

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
    """A turn stops at a time: `at`, in seconds since the epoch, or `after`, in seconds from the start of the turn.

    If both are given, the earlier one counts. `now` defaults to the agent's clock.
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
            raise ConfigError("Deadline() never passes: pass `at`, a time, or `after`, a number of seconds")

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
    """At most this many retries in a turn."""

    retries: int
    reason: ClassVar[StopReason] = StopReason.RETRY_LIMIT
    holds_before: ClassVar[tuple[Effect, ...]] = ()

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        return f"retried {turn.retries} times" if turn.retries > self.retries else None


class ErrorLimit(Limit, frozen=True):
    """Stop after this many errors in a turn (`errors=1`: after the first)."""

    errors: int = 1
    reason: ClassVar[StopReason] = StopReason.ERROR
    holds_before: ClassVar[tuple[Effect, ...]] = ()

    def exceeded(self, state: State, turn: TurnState) -> str | None:
        count = turn.errors + turn.failed_calls
        return f"{count} errors occurred" if count >= self.errors else None


_OPTIONS: dict[type, dict[str, Domain]] = {
    StepLimit: {"steps": whole(1)},
    TokenLimit: {"tokens": whole(0)},
    CostLimit: {"usd": number(least=0), "allow_unknown": FLAG},
    ActiveTimeLimit: {"seconds": number(least=0)},
    Deadline: {"at": optional(number()), "after": optional(number(least=0)), "now": optional(FUNCTION)},
    RetryLimit: {"retries": whole(0)},
    ErrorLimit: {"errors": whole(1)},
}


COUNTING: frozenset[type] = frozenset(_OPTIONS)
"""The limits that only read counters of the turn, which its accumulator has too."""


def tools_ran(state: State) -> Evaluation | None:
    """Continue if the last step called tools, so that the model sees the results; otherwise allow a stop.

    Also continue after a rewind, to take the step again, and after a reply that the vendor paused: it continues once
    it is sent back.
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
REWOUND: Evaluation = (Vote.REQUEST, "the last step was rewound")
PAUSED: Evaluation = (Vote.REQUEST, "the vendor paused the reply")
NO_TOOLS: Evaluation = (Vote.ALLOW_STOP, "no tool was called")


class ReplyContains(Struct, frozen=True):
    """Cast `vote` if the last reply contains `text`: by default, allow a stop."""

    text: str
    vote: Vote = Vote.ALLOW_STOP

    def __call__(self, state: State) -> Evaluation | None:
        step = state.turn.last if state.turn is not None else None
        if step is not None and step.reply is not None and self.text in step.reply.text:
            return (self.vote, f"the reply contains {self.text!r}")
        return None


class FinishedBecause(Struct, frozen=True):
    """Cast `vote` if the model finished for the reason `finish`: by default, allow a stop."""

    finish: str
    vote: Vote = Vote.ALLOW_STOP

    def __call__(self, state: State) -> Evaluation | None:
        step = state.turn.last if state.turn is not None else None
        if step is not None and step.reply is not None and step.reply.finish == self.finish:
            return (self.vote, f"the model finished because of {self.finish!r}")
        return None


def on_clock(criterion: Criterion, now: Callable[[], float]) -> Criterion:
    """The criterion; a `Deadline` without a clock gets this one."""
    return replace(criterion, now=now) if isinstance(criterion, Deadline) and criterion.now is None else criterion


def name_of(criterion: object) -> str:
    """The display name of a criterion."""
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
