"""A clock for tests: time passes only when the test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools

ROUNDS = 50
"""How many rounds of the event loop woken tasks get to run."""


class FakeClock:
    """A clock for tests: `Agent(clock=FakeClock())`. No test waits in real time.

    `advance` wakes sleeping tasks in the order in which they are due, each at its own moment. With `auto=True` a sleep
    advances the time itself and returns at once. A clock serves one thread at a time.
    """

    def __init__(self, start: float = 1_000.0, *, auto: bool = False) -> None:
        self.start = start
        self.auto = auto
        self.slept: list[float] = []
        self._passed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Seconds since the epoch: the start plus the seconds that have passed."""
        return self.start + self._passed

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time has advanced this far; in auto mode, advance it. `slept` lists all durations."""
        self.slept.append(seconds)
        if self.auto or seconds <= 0:
            self.tick(max(0.0, seconds))
            await asyncio.sleep(0)
            return
        await self.alarm(seconds)

    async def alarm(self, seconds: float) -> None:
        """Wait until this much time has passed. Even in auto mode, waiting does not advance the time."""
        woken = asyncio.get_running_loop().create_future()
        sleeper = (self._passed + seconds, next(self._numbers), woken)
        heapq.heappush(self._sleepers, sleeper)
        await woken

    @property
    def sleepers(self) -> int:
        """The number of sleeping tasks."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Let other tasks run until this many of them are asleep."""
        while self.sleepers < count:  # noqa: ASYNC110 -- sleepers may be on any event loop
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass. Other tasks run first, and again each time that one of them is woken."""
        until = self._passed + _checked(seconds)
        await _let_others_run()
        while (due := self._next_due()) is not None and due <= until:
            self.tick(max(0.0, due - self._passed))
            await _let_others_run()
        self.tick(max(0.0, until - self._passed))

    def tick(self, seconds: float) -> None:
        """Let time pass without running other tasks, as a blocking function does; due tasks wake late."""
        self._passed += _checked(seconds)
        while (due := self._next_due()) is not None and due <= self._passed:
            woken = heapq.heappop(self._sleepers)[2]
            woken.get_loop().call_soon_threadsafe(_wake, woken)

    def _next_due(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def __repr__(self) -> str:
        return f"FakeClock({self.now()}, sleepers={self.sleepers})"


def _checked(seconds: float) -> float:
    if seconds < 0:
        raise ValueError(f"time cannot go back: {seconds}")
    return seconds


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def _let_others_run() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
