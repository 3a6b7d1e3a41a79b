"""Shares: limits on rates and on calls at once that all processes with the same store keep together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from windlass import Storage

PRESENCE = 10.0
"""After so many seconds without a sign, a waiting process loses its place: it has died."""

FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""How many seconds to wait before the store is asked again whether a permit is free."""


class Sleep(Protocol):
    """Waits for some seconds, or raises if that is too long."""

    async def __call__(self, seconds: float, /) -> None: ...


class Share:
    """The part of one process in a limit that is kept in the store. Only the first call of its line uses it."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key

    async def borrow(self, kind: str, n: float, limit: float, window: float) -> float:
        """Take an amount, and say in how many seconds it is covered. A negative amount is given back."""
        return (await self._storage.take(f"{self._key}/{kind}", n, limit=limit, per=window, borrow=True)).wait

    async def hold(self, holder: str, most: int, lease: float, sleep: Sleep) -> None:
        """Wait for a permit, in the order in which the processes came."""
        storage, ticket, pause = self._storage, "", FIRST_PAUSE
        try:
            while True:
                line = await storage.keys(f"{self._key}/line/")
                is_first = not line or line[0] == ticket
                if is_first and await storage.hold(f"{self._key}/permits", holder, limit=most, ttl=lease):
                    return
                if not ticket:
                    ticket = f"{self._key}/line/{await storage.add(f'{self._key}/tickets'):020}"
                await storage.put(ticket, True, ttl=PRESENCE)
                await sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
        except BaseException:
            await self.release(holder)
            raise
        finally:
            if ticket:
                await storage.delete(ticket)

    async def release(self, holder: str) -> None:
        """Give a permit back."""
        await self._storage.release(f"{self._key}/permits", holder)
