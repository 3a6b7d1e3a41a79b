"""Cursors: how far a durable observer has read a log, stored in batches."""

from __future__ import annotations

from windlass.protocols import Clock, Store

from .runs import BATCH, INTERVAL


class Cursor:
    """The cursor of one observer in one session, while this process moves it.

    `seq` is the last record that needs no delivery any more; the store gets it with `save`. A save
    counts only if the store still has what this process read or stored last. Otherwise another
    process has moved the cursor, and this one is `lost`: it must be read again.
    """

    def __init__(self, store: Store, clock: Clock, session: str, reader: str) -> None:
        self._store = store
        self._now = clock.monotonic
        self._session = session
        self._reader = reader
        self.seq = self._stored = 0
        self.facts = 0
        self.fresh = self.lost = True
        self._unsaved = 0
        self._since = 0.0

    async def load(self) -> None:
        """Read it from the store."""
        self.seq = self._stored = await self._store.cursor(self._session, self._reader)
        self.fresh, self.lost = True, False
        self._unsaved, self._since = 0, self._now()

    def move(self, seq: int, facts: int = 0) -> None:
        """All records up to `seq` are dealt with; `facts` of them were delivered."""
        self.seq = seq
        self.facts += facts
        self._unsaved += facts

    @property
    def due(self) -> bool:
        """Whether it should be saved now, although there are more facts to deliver.

        The first fact is saved at once: if several processes start together, all but one stop
        there.
        """
        if not self._unsaved:
            return False
        return self.fresh or self._unsaved >= BATCH or self._now() - self._since >= INTERVAL

    async def save(self) -> bool:
        """Store it. False if another process has moved it."""
        seq = self.seq
        if self.lost or seq == self._stored:
            return not self.lost
        if await self._store.advance(self._session, self._reader, seq, self._stored):
            self._stored = seq
            self.fresh = False
            self._unsaved, self._since = 0, self._now()
        else:
            self.lost = True
        return not self.lost
