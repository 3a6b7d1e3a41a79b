"""A clock on which time passes only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools

ROUNDS = 50
"""How many rounds of the event loop tasks get to go on when they are woken."""


class FakeClock:
    """Time for tests: `Agent(clock=FakeClock())`. Nobody ever waits.

    Who sleeps on it is woken by `advance`, in the order in which they are due, each at its own moment. With `auto=True`
    a sleep lets the time pass by itself and is over at once. It serves one thread at a time.
    """

    def __init__(self, start: float = 1_000.0, *, auto: bool = False) -> None:
        self.start = start
        self.auto = auto
        self.slept: list[float] = []
        self._passed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Seconds since the epoch: those at the start and those that have passed."""
        return self.start + self._passed

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time has been advanced that far; in auto mode, let it pass. `slept` lists how long."""
        self.slept.append(seconds)
        if self.auto or seconds <= 0:
            self.tick(max(0.0, seconds))
            await asyncio.sleep(0)
            return
        await self.alarm(seconds)

    async def alarm(self, seconds: float) -> None:
        """Wait until so much time has passed, in auto mode too: it does not pass by waiting for it."""
        woken = asyncio.get_running_loop().create_future()
        sleeper = (self._passed + seconds, next(self._numbers), woken)
        heapq.heappush(self._sleepers, sleeper)
        await woken

    @property
    def sleepers(self) -> int:
        """How many are asleep."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Let others run until so many of them are asleep."""
        while self.sleepers < count:  # noqa: ASYNC110 -- it must not matter who sleeps, nor on which loop
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass. Others run first, and again after each moment at which somebody wakes."""
        until = self._passed + _checked(seconds)
        await _let_others_run()
        while (due := self._next_due()) is not None and due <= until:
            self.tick(max(0.0, due - self._passed))
            await _let_others_run()
        self.tick(max(0.0, until - self._passed))

    def tick(self, seconds: float) -> None:
        """Let time pass while nobody else runs, as in a function that blocks; who is due wakes late."""
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
        raise ValueError(f"time does not go back: {seconds}")
    return seconds


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def _let_others_run() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
