"""How long a turn has worked: time that it waits for its consumer does not count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .channel import ConsumerWait


class ActiveTime:
    """Counts the seconds of work of one pass.

    A child's consumer is that of the agent at the root.
    """

    __slots__ = ("_monotonic", "_parent", "_since", "_waited", "waits")

    def __init__(self, monotonic: Callable[[], float], parent: ActiveTime | None = None) -> None:
        self._monotonic = monotonic
        self._parent = parent
        self.waits: ConsumerWait | None = None
        self._since = monotonic()
        self._waited = 0.0 if parent is None else self._waiting_time()

    def take(self) -> float:
        """Seconds of work since this was last asked."""
        since = self._since
        self._since = now = self._monotonic()
        if self.waits is None and self._parent is None:
            return now - since
        before, self._waited = self._waited, self._waiting_time()
        return now - since - (self._waited - before)

    def working(self) -> float:
        """Seconds of work since `take` was last asked."""
        return self._monotonic() - self._since - (self._waiting_time() - self._waited)

    def _waiting_time(self) -> float:
        """Seconds for which the tree of agents has waited for its consumer."""
        root = self
        while root._parent is not None:
            root = root._parent
        return 0.0 if root.waits is None else root.waits.seconds()

    async def wait_for_consumer(self, waiting: Awaitable[None]) -> None:
        """Wait for the consumer of this turn. Limits of active time do not count it."""
        if self.waits is None:
            self.waits = ConsumerWait(self._monotonic)
        await self.waits.during(waiting)

    async def wait_outside(self, waiting: Awaitable[None]) -> None:
        """Wait for somebody outside, such as a person at a breakpoint. Limits of active time do not count it, neither
        here nor in the agents above."""
        root = self
        while root._parent is not None:
            root = root._parent
        await root.wait_for_consumer(waiting)
