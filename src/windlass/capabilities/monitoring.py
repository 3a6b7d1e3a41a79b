"""Monitoring: observations of a turn, made from the counters in its state."""

from __future__ import annotations

from msgspec import Struct

from windlass.states import TurnState

from .adaptations import Knowledge, Observation


class Counters(Struct, frozen=True, omit_defaults=True):
    """The counters of a turn when it was last observed; `ended` says that its end was, too."""

    turn: int = 0
    steps: int = 0
    active: float = 0.0
    tokens: int = 0
    usd: float = 0.0
    errors: int = 0
    failed_calls: int = 0
    ended: bool = False


class Monitored(Struct, frozen=True, omit_defaults=True):
    """What the slot holds: what is known, and the counters of the latest observation."""

    knowledge: Knowledge = Knowledge()
    seen: Counters = Counters()


def observe(turn: TurnState, seen: Counters, outcome: str) -> tuple[Observation, Counters] | None:
    """What a turn has added to the log since it was last observed, and its counters; None if that is nothing."""
    before = seen if seen.turn == turn.number else Counters(turn.number)
    cost = turn.usage.cost or 0.0
    active, tokens = round(turn.active, 1), turn.usage.total
    now = Counters(turn.number, turn.steps, active, tokens, cost, turn.errors, turn.failed_calls, outcome != "")
    if before.ended or (turn.steps == before.steps and not outcome):
        return None
    observation = Observation(
        now.steps - before.steps,
        round(now.active - before.active, 1),
        now.tokens - before.tokens,
        now.usd - before.usd,
        now.errors - before.errors,
        now.failed_calls - before.failed_calls,
        outcome,
        len(turn.objections) + len(turn.unreviewed) if outcome else 0,
    )
    return observation, now
