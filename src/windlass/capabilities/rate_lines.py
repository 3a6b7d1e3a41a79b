"""Lines: the calls that share a limit in this process, served in the order of arrival, and what vendors report."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from threading import Lock

from .vendor_limits import VendorLimits

MOST_IDLE = 1_000
"""How many lines are kept before those that are not in use are dropped."""

JUST_NOW = 60.0
"""For so many seconds after its last use, a line is in use."""


class Place:
    """The place of a call in a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._woken = False
        self._future: asyncio.Future[None] | None = None

    async def woken(self) -> None:
        """Wait until something changes for the first call in the line."""
        with self._line.lock:
            if not self._woken:
                self._future = asyncio.get_running_loop().create_future()
        try:
            if self._future is not None:
                await self._future
        finally:
            with self._line.lock:
                self._woken, self._future = False, None

    def wake(self) -> bool:
        """Let the call look again; False if its event loop is closed."""
        self._woken = True
        try:
            if self._future is not None:
                self._future.get_loop().call_soon_threadsafe(_finish, self._future)
        except RuntimeError:
            return False
        return True


class Line:
    """The calls that share a limit: the ones that wait, and how many run. It may be used from any thread.

    Only the first call in a line takes from the limits, so the order of arrival is the order of service. If a call
    leaves, the next one moves up.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.running: set[str] = set()
        self.used_at = 0.0
        self._places: deque[Place] = deque()
        self._used: dict[str, tuple[float, float, float]] = {}

    def join(self) -> Place:
        """A place at the end of the line."""
        with self.lock:
            place = Place(self)
            self._places.append(place)
            return place

    def is_first(self, place: Place) -> bool:
        """Whether it is the turn of this call."""
        with self.lock:
            return self._places[0] is place

    def leave(self, place: Place) -> None:
        """Give a place up, and let the next call look."""
        with self.lock:
            self._places.remove(place)
            self._wake_first()

    def start(self, holder: str, most: int | None) -> bool:
        """Count a call that begins, under this name; False if as many as may run at once do so."""
        with self.lock:
            if most is not None and len(self.running) >= most:
                return False
            self.running.add(holder)
            return True

    def end(self, holder: str) -> None:
        """A call is over."""
        with self.lock:
            self.running.discard(holder)
            self._wake_first()

    def pass_at_once(
        self, holder: str, most: int | None, amounts: list[tuple[str, int, int]], window: float, now: float
    ) -> bool:
        """Take amounts, each of a kind and within a limit, and start the call, if nothing has to be waited for.

        Otherwise it returns False, and nothing is taken. Without a holder the call is not counted as one that runs.
        """
        with self.lock:
            if self._places or (most is not None and len(self.running) >= most):
                return False
            used = {}
            for kind, n, limit in amounts:
                rate = limit / window
                after = self._after(kind, n, rate, now)
                if after > limit:
                    return False
                used[kind] = after, now, rate
            self._used.update(used)
            if holder:
                self.running.add(holder)
            return True

    def borrow(self, kind: str, n: float, limit: float, window: float, now: float) -> float:
        """Take an amount, and say in how many seconds it is covered. A negative amount is given back."""
        with self.lock:
            rate = limit / window
            used = self._after(kind, n, rate, now)
            self._used[kind] = used, now, rate
            return max(0.0, used - limit) / rate

    def _after(self, kind: str, n: float, rate: float, now: float) -> float:
        """How much is in use once this amount is taken."""
        used, at, _ = self._used.get(kind, (0.0, now, 0.0))
        return max(0.0, max(0.0, used - max(0.0, now - at) * rate) + n)

    def is_idle(self, now: float) -> bool:
        """Whether nothing waits or runs, and all that was taken has come back."""
        busy = self._places or self.running or now - self.used_at < JUST_NOW
        return not busy and all(used <= (now - at) * rate for used, at, rate in self._used.values())

    def _wake_first(self) -> None:
        while self._places and not self._places[0].wake():
            self._places.popleft()


class Permit:
    """A call that runs. Calls inside it need no permit of the same line: they would wait for themselves."""

    __slots__ = ("active", "holder", "line", "outer")

    def __init__(self, line: Line | None, outer: Permit | None, holder: str = "") -> None:
        self.line = line
        self.outer = outer
        self.holder = holder
        self.active = True

    def covers(self, line: Line) -> bool:
        """Whether this call, or one around it, has a permit of this line."""
        return (self.active and self.line is line) or (self.outer is not None and self.outer.covers(line))


NO_PERMIT = Permit(None, None)
"""That of a call that is not counted among those that run."""

current_permit: ContextVar[Permit | None] = ContextVar("windlass_rate_permit", default=None)
"""The call that runs in this task."""


class Lines:
    """The lines and the vendors' reports of this process, by name."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[str, Line] = {}
        self._most = MOST_IDLE
        self._vendors: dict[tuple[str, str], VendorLimits] = {}

    def line(self, name: str, now: float) -> Line:
        """The line of this name."""
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                if len(self._lines) >= self._most:
                    self._lines = {one: line for one, line in self._lines.items() if not line.is_idle(now)}
                    self._most = max(MOST_IDLE, 2 * len(self._lines))
                line = self._lines[name] = Line()
            line.used_at = now
            return line

    def vendor(self, name: str, model: str) -> VendorLimits:
        """What the vendor of a model reports, for the limits of this name."""
        found = self._vendors.get((name, model))
        return found if found is not None else self._vendors.setdefault((name, model), VendorLimits())


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
