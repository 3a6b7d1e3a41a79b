"""Monitoring: observations of turns, from the counters in their state, for one session or for all of them."""

from __future__ import annotations

from msgspec import Struct, convert, to_builtins

from windlass.states import TurnState
from windlass.storage import Storage

from .adaptations import Adaptation, Knowledge, Observation


class Monitored(Struct, frozen=True, omit_defaults=True):
    """What the slot holds: what is known, and the totals of the latest `turn` when it was last observed."""

    knowledge: Knowledge = Knowledge()
    turn: int = 0
    seen: Observation = Observation()


def observe(turn: TurnState, known: Monitored, outcome: str) -> tuple[Observation, Observation] | None:
    """What a turn has added to the log since it was last observed, and its totals; None if that is nothing."""
    before = known.seen if known.turn == turn.number else Observation()
    if before.outcome or (turn.steps == before.steps and not outcome):
        return None
    now = Observation(
        turn.steps,
        round(turn.active, 1),
        turn.usage.total,
        turn.usage.cost or 0.0,
        turn.errors,
        turn.failed_calls,
        outcome,
        len(turn.objections) + len(turn.unreviewed) if outcome else 0,
    )
    new = Observation(
        now.steps - before.steps,
        round(now.seconds - before.seconds, 1),
        now.tokens - before.tokens,
        now.usd - before.usd,
        now.errors - before.errors,
        now.failed_calls - before.failed_calls,
        outcome,
        now.objections,
    )
    return new, now


class SharedKnowledge:
    """The observations of all sessions that use a store, the latest ones, and the adaptation that holds for them."""

    def __init__(self, storage: Storage, window: int) -> None:
        self.storage = storage
        self.window = window

    async def current(self) -> Adaptation:
        """What holds now."""
        return (await self._latest()).adaptation

    async def add(self, key: str, observation: Observation, now: float) -> tuple[Observation, ...]:
        """Add an observation, once for each key, and return the window; older ones are deleted.

        If the latest adaptation was made by this very observation, and the process died before its log said so, the
        window is the one of that time: the same facts give the same adaptation.
        """
        latest = await self._latest()
        if latest.by == key:
            return latest.observations
        await self.storage.put(f"{_SEEN}{key}", {"at": now, "seen": to_builtins(observation)})
        items = await self.storage.items(_SEEN)
        ordered = sorted(items, key=lambda name: (items[name]["at"], name))
        for name in ordered[: -self.window]:
            await self.storage.delete(name)
        return tuple([convert(items[name]["seen"], Observation) for name in ordered[-self.window :]])

    async def begin(self, key: str, observations: tuple[Observation, ...], adaptation: Adaptation) -> None:
        """Begin a new window, with what holds from now on, and the observations that led to it."""
        await self.storage.put("current", to_builtins(_Latest(adaptation, key, observations)))
        await self.storage.clear(_SEEN)

    async def _latest(self) -> _Latest:
        return convert(await self.storage.get("current", {}), _Latest)


class _Latest(Struct, frozen=True, omit_defaults=True):
    """The adaptation that holds for all sessions, which observation led to it, and the window of that time."""

    adaptation: Adaptation = Adaptation()
    by: str = ""
    observations: tuple[Observation, ...] = ()


_SEEN = "observed "
