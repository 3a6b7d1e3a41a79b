"""The batches of sessions in memory, which are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.logs import Batch, Log
from windlass.records import Record

from .batches import lines_of, records_of
from .chains import START, Chain, prune_lines
from .derived import prepare
from .reading import read_batches


def sealed(session: str, seq: int, previous: bytes | None, records: Sequence[Record]) -> Batch:
    """A batch of all records since the last one that was read: appends are not told apart."""
    previous, lines = previous or START, lines_of(records)
    link, seals, nonce = Chain().seal(session, seq, previous, lines)
    return Batch(seq, len(records), link, lines, previous, seals, nonce)


def records(log: Log) -> list[Record]:
    """The records of a new session."""
    return [record for batch in log.batches for record in records_of(log.session, batch.seq, batch.lines)]


async def linked(log: Log) -> list[Batch]:
    """The batches of a new session, with their links."""
    chain = Chain()
    new = await prepare(chain, log.replace(start=log.start or START))
    rows = [("open", new.records, new.head, new.start, None, *row) for row in new.rows]
    return await read_batches(chain, log.session, rows)


def pruned(batch: Batch) -> Batch:
    """A batch without what its seals allow to remove."""
    return batch.replace(lines=prune_lines(batch.lines, batch.seals), nonce=b"") if batch.seals else batch
