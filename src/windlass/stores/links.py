"""Links: where records are in the hash chain of their log, and whether the log still has them there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from windlass.errors import StoreError
from windlass.logs import Batch, Link
from windlass.protocols import Store
from windlass.records import Record

from .batches import records_of


class Links:
    """The links of the records in some batches of a session, in order."""

    __slots__ = ("_batches", "_latest", "_session", "_starts")

    def __init__(self, session: str, batches: Sequence[Batch]) -> None:
        self._session = session
        self._batches = batches
        self._starts = [batch.seq for batch in batches]
        self._latest: tuple[Batch, str] | None = None

    def batch_of(self, seq: int) -> Batch | None:
        """The batch with a record, counted from 1; None if they do not have it."""
        found = bisect_right(self._starts, seq - 1) - 1
        batch = self._batches[found] if found >= 0 else None
        return None if batch is None or seq > batch.seq + batch.count else batch

    def at(self, seq: int) -> Link:
        """The link of a record, counted from 1."""
        if (latest := self._latest) is None or not 0 < seq - latest[0].seq <= latest[0].count:
            batch = self.batch_of(seq)
            if batch is None:
                raise StoreError(f"session {self._session!r} has no record {seq}")
            self._latest = latest = batch, batch.link.hex()
        return Link(self._session, seq, latest[0].seq, latest[1])


async def linked_records(store: Store, links: Iterable[Link]) -> list[Record]:
    """The records that links point to, in the same order. Raises `StoreError` if a log does not have one of them there.

    So it proves that a record which was exported with its link is in the log: compare both. Each log is read once, and
    its chain is checked on the way. A record whose parts were pruned since has lost them; one that was erased is gone.
    """
    given = list(links)
    starts: dict[str, int] = {}
    for link in given:
        starts[link.session] = min(starts.get(link.session, link.seq), link.seq)
    logs = {session: Links(session, await store.batches(session, max(seq - 1, 0))) for session, seq in starts.items()}
    return [_record_at(logs[link.session], link) for link in given]


def _record_at(log: Links, link: Link) -> Record:
    batch = log.batch_of(link.seq)
    if batch is None:
        raise StoreError(f"session {link.session!r} has no record {link.seq}: it was erased, or is not in this store")
    if (batch.seq, batch.link.hex()) != (link.batch, link.hash):
        raise StoreError(
            f"record {link.seq} of session {link.session!r} is not the one that was linked: the log differs"
        )
    line = batch.lines.split(b"\n")[link.seq - 1 - batch.seq]
    return records_of(link.session, link.seq - 1, line)[0]
