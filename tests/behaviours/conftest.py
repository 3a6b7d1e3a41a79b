"""What the behaviour tests share: a clock that moves only when it is told to."""

from __future__ import annotations

import pytest


class FakeClock:
    """Time stands still until `advance`; sleeping is noted and takes no time."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def advance(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
