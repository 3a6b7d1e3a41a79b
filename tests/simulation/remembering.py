"""An agent that remembers in every place that a module has, for the tests of the simulation."""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Any, ClassVar

from windlass import Agent, tool
from windlass.testing import ScriptedModel


class Unbound:
    """A proxy that cannot be asked what it is, such as Flask's outside of a request."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("working outside of a request")


@dataclass(frozen=True)
class Settings:
    number: int

    @cached_property
    def twice(self) -> int:
        COUNTED["twice"] += 1
        return 2 * self.number


class Single:
    instance: ClassVar[Single | None] = None
    made: ClassVar[list[int]] = []

    @classmethod
    def get(cls) -> Single:
        if cls.instance is None:
            cls.instance = cls()
            cls.made.append(1)
        return cls.instance


proxy = Unbound()
settings = Settings(3)
numbers = itertools.count(1)
dice = Random(7)
nested: dict[str, list[Any]] = {"a": [1, {2}]}
COUNTED: defaultdict[str, int] = defaultdict(int)
ORDERED: OrderedDict[int, int] = OrderedDict()
LATEST: deque[int] = deque(maxlen=3)
lazy: object = None


@lru_cache
def cached() -> int:
    COUNTED["cached"] += 1
    return COUNTED["cached"]


def counter() -> Callable[[], int]:
    calls = [0]

    def count() -> int:
        calls[0] += 1
        return calls[0]

    return count


def by_default(number: int, seen: list[int] = []) -> int:  # noqa: B006 -- it remembers
    seen.append(number)
    return len(seen)


def by_attribute() -> int:
    function: Any = by_attribute
    function.calls = getattr(function, "calls", 0) + 1
    return int(function.calls)


count = counter()


@tool(effect="pure")
async def remember(number: int) -> str:
    """Remember."""
    global lazy
    was_lazy = lazy is None
    lazy = lazy or object()
    nested["a"].append(number)
    nested["a"][1].add(len(nested["a"]))
    ORDERED[len(ORDERED)] = number
    LATEST.append(number)
    Single.get()
    known = [next(numbers), dice.random(), was_lazy, cached(), count(), by_default(number), by_attribute()]
    return str([*known, settings.twice, nested, dict(COUNTED), len(ORDERED), list(LATEST), Single.made])


def build() -> Agent[Any, Any]:
    return Agent(ScriptedModel(), tools=[remember])
