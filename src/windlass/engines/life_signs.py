"""Which workers have shown no sign of life for some time, by the clock of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class LifeSigns:
    """Looks at the signs that workers give, and finds those whose sign has not changed for `patience` seconds.

    Only changes count, since clocks of servers may jump. At most `longest` seconds count of the time between two looks:
    this process, too, may have been stopped.
    """

    def __init__(self, patience: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._longest = longest
        self._clock = clock
        self._looked = clock()
        self._signs: Mapping[str, str] = {}
        self._silent_for: dict[str, float] = {}

    def look(self, signs: Mapping[str, str]) -> None:
        """Take note of the signs as they are now."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, self._longest), now
        self._silent_for = {
            worker: self._silent_for.get(worker, 0.0) + passed if self._signs.get(worker) == sign else 0.0
            for worker, sign in signs.items()
        }
        self._signs = signs

    def knows(self, worker: str) -> bool:
        """Whether the worker gives signs."""
        return worker in self._signs

    @property
    def silent(self) -> list[str]:
        """The workers that have shown no life for too long."""
        return [worker for worker, seconds in self._silent_for.items() if seconds >= self._patience]
