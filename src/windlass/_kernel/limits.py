"""Limits before an effect: those of the agent and of every agent above it, on what all of them have
spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass.criteria import COUNTING, CostLimit, Effect, Limit, StepLimit, TokenLimit, name_of
from windlass.errors import HookError, text_of
from windlass.messages import Usage
from windlass.outcomes import Stopped
from windlass.records import Delegated
from windlass.states import Child, State, TurnState
from windlass.turns import Left

from .journal import Journal

_NOTHING = Usage(requests=0)


class Counters(Struct, gc=False):
    """What a turn has spent so far, as far as limits before an effect read it."""

    usage: Usage
    active: float
    started_at: float
    last: None = None


class Limits(Struct, eq=False):
    """The limits of one pass. Each knows the pass above it and those at work below it.

    `started` says how a child was started; its share of its parent's budget is a limit of its own.
    `hit` is the limit that ended the turn before an effect.
    """

    _journal: Journal
    _parent: Limits | None = None
    started: Delegated | None = None
    _below: tuple[Limits, ...] = ()
    _standing: Usage | None = None
    hit: Stopped | None = None
    _share: tuple[Limit, ...] = ()
    _holding: dict[tuple[Effect, bool], tuple[tuple[Limit, ...] | None]] | None = None

    def __post_init__(self) -> None:
        self._share = () if self.started is None else _share_of(self.started)

    def exist(self, effect: Effect) -> bool:
        """Whether there are limits to check before an effect."""
        own = self._journal.program.limits_before[effect]
        return self._parent is not None or bool(own) or bool(self._share)

    def stop_before(self, effect: Effect) -> Stopped | None:
        """The limit that forbids an effect now, of this agent or of one above it.

        Then the turn is concluded.
        """
        stopped = self._exceeded(effect)
        if stopped is not None:
            self.hit = stopped
            self._journal.conclude(stopped)
        return stopped

    def note_standing(self, usage: Usage | None) -> None:
        """What the latest attempt cost, until it is in the log."""
        self._standing = usage

    def _exceeded(self, effect: Effect) -> Stopped | None:
        """The strongest of the limits that forbid this effect now, or None."""
        if self._has_room(effect):
            return None
        found: list[Stopped] = []
        for level in self._levels():
            limits = level._before(effect, below=level is not self)
            state = level._journal.state if limits else None
            if state is None or state.turn is None or state.over:
                continue
            turn = replace(
                state.turn,
                usage=level.spent(),
                active=state.turn.active + level._journal.time.working(),
            )
            for name, limit in limits:
                if (why := _why(name, limit, state, turn)) is not None:
                    found.append(Stopped(limit.reason, f"{name}: {why}"))
        return min(found, key=lambda stopped: stopped.reason.rank, default=None)

    def _has_room(self, effect: Effect) -> bool:
        """Whether no limit, here or above, forbids an effect, as far as counters tell: no state is
        made for it."""
        for level in self._levels():
            limits = level._counting(effect, below=level is not self)
            if limits is None:
                return False
            turn = level._journal.visible.turn
            if not limits or turn is None:
                continue
            active = turn.active + level._journal.time.working()
            counters: Any = Counters(level.spent(), active, turn.started_at)
            try:
                if any(limit.exceeded(counters, counters) is not None for limit in limits):
                    return False
            except Exception:  # it is raised again in the name of the limit
                return False
        return True

    def _counting(self, effect: Effect, *, below: bool) -> tuple[Limit, ...] | None:
        """The limits of this level before an effect; None if one of them needs the state."""
        if self._holding is None:
            self._holding = {}
        known = self._holding.get((effect, below))
        if known is None:
            limits = [limit for _, limit in self._before(effect, below=below)]
            counts = all(type(limit) in COUNTING for limit in limits)
            known = self._holding[effect, below] = (tuple(limits) if counts else None,)
        return known[0]

    def _before(self, effect: Effect, *, below: bool) -> list[tuple[str, Limit]]:
        """The limits of this level that hold before an effect, with their names."""
        of = f" of agent {self._journal.program.name!r}"
        own = [
            limit
            for limit in self._journal.program.limits_before[effect]
            if limit.holds_below or not below
        ]
        shares = [limit for limit in self._share if effect in limit.holds_before]
        named = [(name_of(limit) + (of if below else ""), limit) for limit in own]
        return [*named, *[(f"the share{of}", limit) for limit in shares]]

    def _levels(self) -> Iterator[Limits]:
        """This level, its parent, and so on to the root."""
        level: Limits | None = self
        while level is not None:
            yield level
            level = level._parent

    # ------------------------------------------------------------ spending

    def spent(self) -> Usage:
        """What the turn has spent, with what is not in its log yet: the latest attempt, and
        children at work."""
        turn = self._journal.visible.turn
        total = _NOTHING if turn is None else turn.usage
        if self._standing is not None:
            total = total + self._standing
        for child in self._below:
            total = total + self.owed(child, child.spent())
        return (
            total
            if turn is None or not self._journal.fold.background
            else total + self._granted(turn.number)
        )

    def _granted(self, turn: int) -> Usage:
        """What background children of this turn may spend, as long as it is not known what they did
        spend."""
        total = _NOTHING
        for child in self._journal.fold.background:
            if child.turn == turn and not child.taken:
                started = child.started
                total = total + Usage(input=started.tokens or 0, requests=0, cost=started.usd)
        return total

    def owed(self, child: Limits, usage: Usage) -> Usage:
        """What a child has spent and this turn was not charged for yet."""
        started, step = child.started, self._journal.fold.open
        assert started is not None
        if started.key:
            known = delegated(self._journal, started.key)
        else:
            call = step.calls.get(started.call) if step is not None else None
            known = call.child(started.session) if call is not None else None
        return usage if known is None else usage - known.charged

    def add(self, child: Limits) -> None:
        """A child begins to work."""
        self._below = (*self._below, child)

    def remove(self, child: Limits) -> None:
        """A child has ended."""
        self._below = tuple([other for other in self._below if other is not child])

    def left(self) -> Left:
        """What this turn may still spend before a limit stops it, its own or one above."""
        steps: list[float] = []
        tokens: list[float] = []
        money: list[float] = []
        seconds: list[float] = []
        for level in self._levels():
            state, below = level._journal.state, level is not self
            if state.turn is None:
                continue
            usage, active = level.spent(), state.turn.active + level._journal.time.working()
            turn = replace(state.turn, usage=usage, active=active)
            for limit in (*level._journal.program.limits, *level._share):
                if isinstance(limit, StepLimit) and not below:
                    steps.append(limit.steps - turn.steps)
                elif isinstance(limit, TokenLimit):
                    tokens.append(limit.tokens - usage.total)
                elif isinstance(limit, CostLimit) and (
                    usage.cost is not None or not usage.requests
                ):
                    money.append(limit.usd - (usage.cost or 0.0))
                elif (rest := limit.left(turn)) is not None and (limit.holds_below or not below):
                    seconds.append(rest)
        least = [max(min(found), 0) if found else None for found in (steps, tokens, money, seconds)]
        whole = [None if found is None else int(found) for found in least[:2]]
        return Left(whole[0], whole[1], least[2], least[3])

    def portion(self, share: float | None) -> tuple[int | None, float | None]:
        """A share of the tokens and of the money that are left, here and above; None means no
        limit."""
        if share is None:
            return None, None
        tokens: list[int] = []
        money: list[float] = []
        for level in self._levels():
            usage = level.spent()
            for limit in (*level._journal.program.limits, *level._share):
                if isinstance(limit, TokenLimit):
                    tokens.append(max(limit.tokens - usage.total, 0))
                elif isinstance(limit, CostLimit):
                    money.append(max(limit.usd - (usage.cost or 0.0), 0.0))
        return int(min(tokens) * share) if tokens else None, min(money) * share if money else None


def delegated(journal: Journal, key: str) -> Child | None:
    """The child that a hook or tool of this turn has started under a key."""
    turn = journal.visible.turn
    return (
        next((c for c in turn.delegated if c.started.key == key), None)
        if turn is not None
        else None
    )


def _why(name: str, limit: Limit, state: State, turn: TurnState) -> str | None:
    """Why a limit forbids an effect. One that fails is named, and the turn fails with it."""
    try:
        why: object = limit.exceeded(state, turn)
    except Exception as error:
        text = f"criterion {name!r} failed: {type(error).__name__}: {text_of(error)}"
        raise HookError(text, hook=name) from error
    if why is not None and not isinstance(why, str):
        text = f"criterion {name!r} returned {why!r} from exceeded; it must return a str or None"
        raise HookError(text, hook=name)
    return why


def _share_of(started: Delegated) -> tuple[Limit, ...]:
    tokens = () if started.tokens is None else (TokenLimit(started.tokens),)
    return tokens if started.usd is None else (*tokens, CostLimit(started.usd))
