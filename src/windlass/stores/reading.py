"""Reads logs from the rows of a database, and checks all that it reads: links, counts, and the end of the log."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from windlass.errors import StoreError
from windlass.logs import Batch, SessionInfo
from windlass.records import Asked, decode

from .batches import SLICE, unpack, unpack_in_slices
from .chains import Chain, unpack_seals
from .shared import broken_log, check_end

T = TypeVar("T")


class End(NamedTuple):
    """What the row of a session says about its log."""

    status: str
    records: int
    head: bytes
    start: bytes
    checksum: bytes | None


class BatchRow(NamedTuple):
    """The row of a batch."""

    seq: int
    size: int
    link: bytes
    data: bytes
    seals: bytes | None
    nonce: bytes | None


ODD = (TypeError, ValueError, IndexError, KeyError, AttributeError, RecursionError, OverflowError, zlib.error)
"""What values can raise that Windlass did not store like this."""


async def read_batches(chain: Chain, session: str, rows: Sequence[Sequence[Any]], start: int = 0) -> list[Batch]:
    """The batches with the records from `start` on. Raises `StoreError` unless they are as they were written.

    A row has the fields of `End`, then those of `BatchRow`, which are None if the session has no batches. If `start` is
    not 0, the first rows may be of earlier batches: their links are needed. If there are many rows or large ones, other
    tasks run in between.
    """
    if not rows:
        return []
    end = End(*rows[0][:5])
    found = [BatchRow(*row[5:]) for row in rows if row[5] is not None]
    if end.status == "erased":
        _check_tombstone(session, end, found)
        return []
    walk = _Walk(chain, session, end)
    batches: list[Batch] = []
    size = 0
    for row in found:
        try:
            if row.seq + row.size <= start:
                walk.skip(row, first=row is found[0])
                continue
            lines = await unpack_in_slices(row.data) if len(row.data) > SLICE else unpack(row.data)
            batches.append(walk.batch(row, lines))
        except ODD as error:
            raise broken_log(session, walk.position, f"the batch is damaged ({error})") from error
        size += len(lines)
        if size >= SLICE:
            size = 0
            await asyncio.sleep(0)
    walk.finish()
    return batches


class _Walk:
    """Follows the chain of a session from batch to batch. `position` is the number of records so far."""

    def __init__(self, chain: Chain, session: str, end: End) -> None:
        self.chain = chain
        self.session = session
        self.end = end
        self.position = 0
        self.link = end.start

    def skip(self, row: BatchRow, *, first: bool) -> None:
        """Go past a batch whose records are not needed."""
        if not first and row.seq != self.position:
            raise broken_log(self.session, row.seq, f"the records before it end at {self.position}")
        self.position, self.link = row.seq + row.size, row.link

    def batch(self, row: BatchRow, lines: bytes) -> Batch:
        """The batch of a row. Raises if it is not the next one of the chain."""
        session, seq = self.session, row.seq
        if seq != self.position:
            raise broken_log(session, seq, f"the records before it end at {self.position}")
        if row.seals is None and row.nonce is None:
            batch = Batch(seq, row.size, row.link, lines, self.link)
        else:
            nonce = b"" if row.nonce is None else row.nonce
            if row.seals is None or len(nonce) not in (16, 0 if row.nonce is None else 16):
                raise broken_log(session, seq, "its seals are damaged")
            batch = Batch(seq, row.size, row.link, lines, self.link, unpack_seals(row.seals), nonce)
        if self.chain.link(session, batch) != row.link:
            raise broken_log(session, seq, "its records were changed after they were written")
        if lines.count(b"\n") + 1 != row.size:
            raise broken_log(session, seq, f"it should have {row.size} records")
        self.position, self.link = seq + row.size, row.link
        return batch

    def finish(self) -> None:
        """Raise unless the chain ends where the session's row says."""
        check_end(self.session, self.position, self.end.records)
        if self.link != self.end.head:
            raise broken_log(self.session, self.position, "the last link differs from the one in the session's row")
        if self.chain.end(self.session, self.position, self.link) != self.end.checksum:
            raise broken_log(self.session, self.position, "it may have had more records: its row was changed")


def _check_tombstone(session: str, end: End, rows: Sequence[BatchRow]) -> None:
    """Raise if a session that is said to be erased still has records."""
    for row in rows:
        if row != BatchRow(end.records, 0, end.head, b"", None, None):
            raise broken_log(session, row.seq, "its row says that it was erased, but it still has records")
    if end.start != b"":
        raise broken_log(session, 0, "its row says that it was erased, but it was not")


def infos_of(rows: Sequence[Sequence[Any]]) -> list[SessionInfo]:
    """Sessions for a list, from their rows. Raises `StoreError` if a row is damaged."""
    for row in rows:
        for value, kind in zip(row, (str, str, str, str, float, float, int, int, str), strict=True):
            if type(value) is not kind:
                raise StoreError(f"the row of session {row[0]!r} is damaged: {value!r} is not of type {kind.__name__}")
    return [SessionInfo(*row) for row in rows]


def asked_of(session: str, data: bytes) -> Asked:
    """An open question from its row."""
    asked = checked(f"a question of session {session!r}", lambda: decode(data))
    if not isinstance(asked, Asked):
        raise StoreError(f"a question of session {session!r} is damaged: it is a {type(asked).__name__}")
    return asked


def checked(what: str, work: Callable[[], T]) -> T:
    """Work with stored values. Values that cannot have been stored like this are a `StoreError` that names them."""
    try:
        return work()
    except ODD as error:
        raise StoreError(f"{what} is damaged ({error})") from error
