"""Makes a failing case smaller: without the choices that the failure does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from time import monotonic
from typing import Any

from .choices import SimulatedCase

TRIES = 400
"""How many smaller cases are tried,"""

SECONDS = 5.0
"""and for how long."""

Choices = dict[str, Any]


def shrink(case: SimulatedCase, fails: Callable[[SimulatedCase], Any]) -> SimulatedCase:
    """The smallest case found that still fails in the same way."""
    return _Shrinking(case, fails).smallest()


class _Shrinking:
    def __init__(self, case: SimulatedCase, fails: Callable[[SimulatedCase], Any]) -> None:
        self._best: Choices = dict(case.choices or {})
        self._seed = case.seed
        self._fails = fails
        self._left = TRIES
        self._until = monotonic() + SECONDS

    def smallest(self) -> SimulatedCase:
        if not self._accept(self._best):  # it does not fail once more: nothing can be said of smaller ones
            return SimulatedCase(self._seed, self._best)
        before: Any = None
        while self._left > 0 and before != (before := _size(self._best)):
            for smaller in (_without_kinds, _without_halves, _without_one, _with_shifted_replies, _earlier, _simpler):
                self._try(smaller)
        return SimulatedCase(self._seed, self._best)

    def _try(self, smaller: Callable[[Choices], Iterator[Choices]]) -> None:
        """Try all that is smaller in one way, again from the start after each success."""
        progress = True
        while progress and self._left > 0:
            progress = False
            for candidate in smaller(self._best):
                if _size(candidate) < _size(self._best) and self._accept(candidate):
                    progress = True
                    break
                if self._left <= 0:
                    return

    def _accept(self, choices: Choices) -> bool:
        self._left = self._left - 1 if monotonic() < self._until else 0
        if self._fails(SimulatedCase(self._seed, choices)):
            self._best = choices
            return True
        return False


def _size(choices: Choices) -> tuple[int, int, int]:
    """How large a case is: few choices are better than short ones, and early ones better than late ones."""
    return len(choices), len(repr(list(choices.values()))), sum([_number(name) for name in choices])


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])


def _kind(name: str) -> str:
    return name.partition(" ")[0]


def _without_kinds(choices: Choices) -> Iterator[Choices]:
    for kind in dict.fromkeys(_kind(name) for name in choices):
        yield {name: value for name, value in choices.items() if _kind(name) != kind}


def _without_halves(choices: Choices) -> Iterator[Choices]:
    names = list(choices)
    size = len(names) // 2
    while size > 1:
        for start in range(0, len(names), size):
            gone = set(names[start : start + size])
            yield {name: value for name, value in choices.items() if name not in gone}
        size //= 2


def _without_one(choices: Choices) -> Iterator[Choices]:
    for gone in reversed(choices):
        yield {name: value for name, value in choices.items() if name != gone}


def _with_shifted_replies(choices: Choices) -> Iterator[Choices]:
    """Without one of the replies: those after it come earlier, and the writes, too. At last, in a single turn."""
    for gone in sorted(_number(name) for name in choices if _kind(name) == "reply"):
        for writes in range(4):
            yield _shifted(choices, gone, writes)
    numbers = sorted(_number(name) for name in choices if _kind(name) == "reply")
    places = {f"reply {number}": f"reply {place}" for place, number in enumerate(numbers, 1)}
    yield {places.get(name, name): value for name, value in choices.items() if _kind(name) != "turns"}


def _shifted(choices: Choices, gone: int, writes: int) -> Choices:
    moved: Choices = {}
    for name, value in choices.items():
        kind, number = _kind(name), _number(name)
        if kind == "write" and number > writes:
            moved[f"write {number - writes}"] = value
        elif kind != "reply" or number < gone:
            moved[name] = value
        elif number > gone:
            moved[f"reply {number - 1}"] = value
    return moved


def _earlier(choices: Choices) -> Iterator[Choices]:
    """What happens at a write happens at an earlier one."""
    for name, value in choices.items():
        for number in range(1, _number(name) if _kind(name) == "write" else 0):
            yield {key: of for key, of in choices.items() if key != name} | {f"write {number}": value}


def _simpler(choices: Choices) -> Iterator[Choices]:
    """With one value simpler: a field or an item less, a shorter wait, a smaller number."""
    for name, value in choices.items():
        for simple in _simpler_value(value):
            yield {**choices, name: simple}


def _simpler_value(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for gone in value:
            if len(value) > 1:
                yield {name: of for name, of in value.items() if name != gone}
        for name, of in value.items():
            for simple in _simpler_value(of):
                yield {**value, name: simple}
    elif isinstance(value, list):
        is_call = len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
        for at in range(len(value)):
            if len(value) > 1 and not is_call:
                yield deepcopy(value[:at] + value[at + 1 :])
        for at, of in enumerate(value):
            for simple in _simpler_value(of):
                yield [*value[:at], simple, *value[at + 1 :]]
    elif isinstance(value, float) and value != round(value, 1):
        yield round(value, 1)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 9:
        yield 1
