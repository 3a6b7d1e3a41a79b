"""Limits, checked before every effect: those of the agent, its share of the budget, and those of the agents above."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from windlass.criteria import Effect, Limit, name_of
from windlass.messages import Usage
from windlass.outcomes import Stopped

if TYPE_CHECKING:
    from .segment import Segment

_NOTHING = Usage(requests=0)


def exceeded(segment: Segment, effect: Effect) -> Stopped | None:
    """The strongest of the limits that forbid this effect now, or None."""
    found: list[Stopped] = []
    for level in levels(segment):
        limits = _limits(level, effect, below=level is not segment)
        state = level.state if limits else None
        if state is None or state.turn is None or state.over:
            continue
        turn = replace(state.turn, usage=spent(level), active=state.turn.active + level.working())
        for name, limit in limits:
            if (why := limit.exceeded(state, turn)) is not None:
                found.append(Stopped(limit.reason, f"{name}: {why}"))
    return min(found, key=lambda stopped: stopped.reason.rank, default=None)


def _limits(level: Segment, effect: Effect, *, below: bool) -> list[tuple[str, Limit]]:
    """The limits of a level that hold before an effect, with what they are called."""
    of = f" of agent {level.program.name!r}"
    own = [limit for limit in level.program.limits_before[effect] if limit.holds_below or not below]
    shares = [limit for limit in level.share if effect in limit.holds_before]
    named = [(name_of(limit) + (of if below else ""), limit) for limit in own]
    return [*named, *[(f"the share{of}", limit) for limit in shares]]


def levels(segment: Segment | None) -> Iterator[Segment]:
    """A segment, its parent, and so on to the root."""
    while segment is not None:
        yield segment
        segment = segment.parent


def spent(segment: Segment) -> Usage:
    """What a turn has spent, with what is not in its log yet: the attempt that stands, and children at work."""
    turn = (segment.fold if segment.opening is None else segment.opening.fold).turn
    total = _NOTHING if turn is None else turn.usage
    if segment.standing is not None:
        total = total + segment.standing
    for child in segment.children:
        total = total + owed(segment, child, spent(child))
    return total


def owed(segment: Segment, child: Segment, usage: Usage) -> Usage:
    """What a child has spent and its parent's turn was not charged for yet."""
    started, step = child.started, segment.fold.open
    assert started is not None
    call = step.calls.get(started.call) if step is not None else None
    known = call.child(started.session) if call is not None else None
    return usage if known is None else usage - known.charged
