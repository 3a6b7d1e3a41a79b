"""Patience: how long a call waits for a rate limit, and the error if that is too long."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Literal

from windlass.errors import NotDone, RateLimited
from windlass.turns import Turn

if TYPE_CHECKING:
    from .rate_limit import RateLimit

INSTANT = 1e-6
"""A wait that is not worth a sleep, in seconds."""


class Patience:
    """The waits of one call, which together take no longer than `max_wait` of its limit."""

    def __init__(self, limit: RateLimit, turn: Turn[Any], kind: Literal["model", "tool"], name: str) -> None:
        self._limit = limit
        self._turn = turn
        self._kind, self._name = kind, name
        self._started = turn.now()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the agent's clock. Raises at once if the call would wait too long."""
        most = self._limit.max_wait
        if most is not None and self._turn.now() - self._started + seconds > most + INSTANT:
            raise self._too_long(seconds)
        await self._turn.sleep(seconds)

    async def wait_for(self, change: Awaitable[None]) -> None:
        """Wait for a change in the line, but not for longer than the call may wait."""
        most, limit = self._limit.max_wait, None
        if most is None:
            await change
            return
        try:
            left = max(0.0, most - (self._turn.now() - self._started))
            async with self._turn.timeout(left) as limit:
                await change
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise self._too_long(None) from None

    def _too_long(self, seconds: float | None) -> Exception:
        limit = self._limit
        text = (
            f"{limit.name}: a call of {self._kind} {self._name!r} would wait longer than max_wait={limit.max_wait:g} s "
            f"({limit.summary()}); make fewer calls, or raise the limit or max_wait"
        )
        return NotDone(text) if self._kind == "tool" else RateLimited(text, retryable=False, retry_after=seconds)
