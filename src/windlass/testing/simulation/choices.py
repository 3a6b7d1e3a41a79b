"""The choices of a simulated session: drawn from a seed, or read from a case that has been made smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec import Struct


class SimulatedCase(Struct, frozen=True):
    """One simulated session: the seed that it comes from, and the choices that make it what it is.

    Without `choices`, the seed decides everything. With them, nothing else happens: what they do not name succeeds at
    once. `simulate(agent, case=SimulatedCase(…))` runs it.
    """

    seed: int
    choices: Mapping[str, Any] | None = None


class SeededRandom(Random):
    """A generator that draws from the seed alone."""


class Choices:
    """What a seed decides, in the order in which it is asked. `made` has all that is out of the ordinary."""

    __slots__ = ("_counts", "_known", "made", "random")

    def __init__(self, case: SimulatedCase) -> None:
        self.random = SeededRandom(case.seed)
        self.made: dict[str, Any] = {}
        self._known = case.choices
        self._counts: dict[str, int] = {}

    def draw(self, kind: str, make: Callable[[Random], Any]) -> Any:
        """The next choice of a kind; None if nothing out of the ordinary is to happen."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._known is not None:
            value = self._known.get(f"{kind} {count}")
        else:
            value = make(self.random)
        if value is not None:
            self.made[f"{kind} {count}"] = value
        return value
