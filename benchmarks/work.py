"""The work that every contender does, and the proof that it was done."""

from __future__ import annotations


class Work:
    """How long a turn is, how long a model thinks, and what the tool has seen so far.

    A turn of N steps calls `add(a=i, b=1)` in its steps 1 to N-1 and says "done" in the last one.
    """

    __slots__ = ("calls", "delay", "steps", "total")

    def __init__(self) -> None:
        self.plan(steps=10)

    def plan(self, steps: int, delay: float = 0.0) -> None:
        """Start anew: turns have `steps` steps from now on, and each model call takes `delay` seconds."""
        self.steps = steps
        self.delay = delay
        self.calls = 0
        self.total = 0

    def add(self, a: int, b: int) -> int:
        """The work of the tool, the same for every contender."""
        self.calls += 1
        self.total += a
        return a + b

    def verify(self, turns: int) -> None:
        """Raise unless the tool ran as often as this many turns call it, with the right arguments."""
        expected = turns * (self.steps - 1), turns * self.steps * (self.steps - 1) // 2
        if (self.calls, self.total) != expected:
            raise RuntimeError(f"got (calls, sum of a) = {(self.calls, self.total)} instead of {expected}")


work = Work()
