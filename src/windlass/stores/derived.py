"""What a store keeps besides a log: derived from it when a session is created, compared with it to verify."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from windlass.errors import StoreError
from windlass.logs import Batch, Log, Verified
from windlass.records import Asked, InboxTaken, Record, encode

from .batches import SLICE, Change, change_of, pack, records_of
from .chains import START, Chain, pack_seals
from .old_parents import is_fork
from .reading import ODD, BatchRow, checked, read_batches
from .session_rows import check_absent, check_claimed
from .shared import Execute, broken_log, from_json, from_key, key_of
from .tallies import check_tally

if TYPE_CHECKING:
    from typing import LiteralString


class Derived(Struct):
    """The row of a session, its open questions, and the keys that were taken from its inbox, as its log has them.

    A time is None if the log does not have it; the store then chose it.
    """

    status: str = "open"
    agent: str = ""
    title: str = ""
    parent: str = ""
    started: float | None = None
    updated: float | None = None
    asks: dict[str, Asked] = {}
    taken: dict[str, str] = {}

    def add(self, records: Sequence[Record], *, first: bool) -> None:
        """Add a batch, with the effect that its append has on the tables."""
        change = change_of(records)
        if change is None:
            return
        if first:
            self.started = self.updated = change.at or None
        if change.status is not None:
            self._update(change)
        if "*" in change.answered:
            self.asks.clear()
        for answered in change.answered:
            self.asks.pop(answered, None)
        self.asks |= change.asked
        if change.taken:
            self.taken |= {record.key: record.entry for record in records if isinstance(record, InboxTaken)}

    def _update(self, change: Change) -> None:
        self.status = change.status or self.status
        self.agent = self.agent if change.agent is None else change.agent
        self.title = self.title or change.title or ""
        self.parent = self.parent if change.parent is None else change.parent
        self.updated = change.at or None


async def derive(session: str, batches: Sequence[Batch]) -> Derived:
    """What a log says about its session. If the log is long, other tasks run in between."""
    derived, size = Derived(), 0
    for batch in batches:
        derived.add(records_of(session, batch.seq, batch.lines), first=not batch.seq)
        size += len(batch.lines)
        if size >= SLICE:
            size = 0
            await asyncio.sleep(0)
    return derived


# ---------------------------------------------------------------- new sessions


class NewSession(NamedTuple):
    """A session that is ready to be written."""

    session: str
    start: bytes
    records: int
    head: bytes
    derived: Derived
    rows: list[BatchRow]


async def prepare(chain: Chain, log: Log) -> NewSession:
    """Link the batches of a log, and seal what can be pruned. Seals that a batch has stay as they are."""
    session, start = log.session, log.start or os.urandom(16)
    link, seq = start, 0
    rows: list[BatchRow] = []
    for batch in log.batches:
        lines, count = batch.lines, batch.lines.count(b"\n") + 1
        if batch.seals:
            try:
                link = chain.link(session, batch.replace(seq=seq, previous=link))
            except ODD as error:
                raise broken_log(session, seq, str(error)) from error
            row = BatchRow(seq, count, link, pack(lines), pack_seals(batch.seals), batch.nonce or None)
        else:
            sealed = chain.seal(session, seq, link, lines)
            link = sealed.link
            row = BatchRow(seq, count, link, pack(lines), pack_seals(sealed.seals), sealed.nonce or None)
        rows.append(row)
        seq += count
        await asyncio.sleep(0)
    return NewSession(session, start, seq, link, await derive(session, log.batches), rows)


# ---------------------------------------------------------------- checks


class Stored(NamedTuple):
    """What the tables have of a session: its log, as `read_batches` takes it, its row, its questions, inbox entries and
    cursors, how many of the last two were written, and whose pass the row names.

    `row` has status, agent, title, parent, started and updated, and is None if there is no such session; `asks` have id
    and data; `inbox` key, kind, position, taken, data and checksum; `cursors` reader, position and checksum; `tallies`
    kind, count and checksum; `claim` owner, epoch, engine and checksum.
    """

    log: Sequence[Sequence[Any]]
    row: Sequence[Any] | None
    asks: Sequence[Sequence[Any]] = ()
    inbox: Sequence[Sequence[Any]] = ()
    cursors: Sequence[Sequence[Any]] = ()
    tallies: Sequence[Sequence[Any]] = ()
    claim: Sequence[Any] = ("", 0, "", b"")


LOG: LiteralString = (
    "SELECT status, records, head, start, checksum, seq, count, link, data, seals, nonce FROM sessions "
    "LEFT JOIN batches ON session = number "
)
"""The beginning of a query for what `read_batches` takes."""


def read_stored(execute: Execute, session: str) -> Stored:
    """All that the tables have of a session."""
    columns = ", ".join(("number", "owner", "epoch", "engine", "claim", *_COLUMNS))
    rows = execute(f"SELECT {columns} FROM sessions WHERE id = ?", session)
    log = execute(f"{LOG} WHERE id = ? ORDER BY seq", session)
    if not rows:
        check_absent(execute, session)
        return Stored(log, None)
    number, *claim = rows[0][:5]
    row = rows[0][5:]
    if row[0] == "erased":
        return Stored(log, None, claim=claim)
    inbox = "SELECT key, kind, position, taken, data, checksum FROM inbox WHERE session = ? ORDER BY position"
    return Stored(
        log,
        row,
        execute("SELECT id, data FROM asks WHERE session = ? ORDER BY position", number),
        execute(inbox, session),
        execute("SELECT reader, seq, checksum FROM cursors WHERE session = ?", session),
        execute("SELECT kind, count, checksum FROM tallies WHERE session = ?", session),
        claim,
    )


_COLUMNS = ("status", "agent", "title", "parent", "started", "updated")


async def verify_stored(chain: Chain, session: str, stored: Stored) -> Verified:
    """Raise `StoreError` unless the log of a session is sound, and the tables agree with it."""
    batches = await read_batches(chain, session, stored.log)
    check_claimed(chain, session, *stored.claim)
    if stored.row is None:
        return Verified(session, 0, "")
    derived = await derive(session, batches)
    old_fork = bool(batches) and batches[0].previous == START and is_fork([batch.lines for batch in batches])
    for name, found in zip(_COLUMNS, stored.row, strict=True):
        expected = None if name == "parent" and old_fork else getattr(derived, name)
        if expected is not None and found != expected:
            raise StoreError(f"the row of session {session!r} does not agree with its log: its {name} was changed")
    asks = [(key_of(name), encode(asked)) for name, asked in derived.asks.items()]
    if [tuple(row) for row in stored.asks] != asks:
        raise StoreError(f"the open questions of session {session!r} do not agree with its log")
    for entry in stored.inbox:
        check_entry(chain, session, entry)
        key, kind, _, taken, _, _ = entry
        if taken and derived.taken.get(key.decode("utf-8", "surrogatepass")) != kind:
            raise StoreError(f"session {session!r}: inbox entry {key!r} is marked as taken, but not by the log")
    tallies = {kind: row for kind, *row in stored.tallies}
    check_tally(chain, "inbox", session, tallies.get("inbox"), len(stored.inbox))
    check_tally(chain, "cursors", session, tallies.get("cursors"), len(stored.cursors))
    check_tally(chain, "sessions", session, tallies.get("sessions"), 1)
    records = batches[-1].seq + batches[-1].count if batches else 0
    for reader, seq, checksum in stored.cursors:
        check_cursor(chain, session, reader, seq, checksum)
        if seq > records:
            raise StoreError(f"session {session!r}: the cursor of {reader!r} is beyond the end of the log")
    head = batches[-1].link.hex() if batches else ""
    return Verified(session, records, head, sum([batch.pruned for batch in batches]))


def entry_checksum(chain: Chain, session: str, key: bytes, kind: str, position: int, taken: bool, data: bytes) -> bytes:
    """The checksum of an inbox entry."""
    return chain.checksum("inbox", session, key, kind, position, bool(taken), data)


def check_entry(chain: Chain, session: str, entry: Sequence[Any]) -> None:
    """Raise if an inbox entry was changed."""
    *values, checksum = entry
    try:
        if entry_checksum(chain, session, *values) == checksum:
            return
    except ODD:
        pass
    raise StoreError(f"session {session!r}: inbox entry {values[0]!r} was changed after it was written")


def inbox_entry(chain: Chain, session: str, entry: Sequence[Any]) -> tuple[str, str, Any]:
    """The key, the kind and the data of an inbox entry. Raises if it was changed."""
    check_entry(chain, session, entry)
    key, kind, _, _, data, _ = entry
    return checked(f"session {session!r}: inbox entry {key!r}", lambda: (from_key(key), kind, from_json(data)))


INBOX: LiteralString = (
    "SELECT written.count, written.checksum, (SELECT count(*) FROM inbox WHERE session = ?), "
    "key, inbox.kind, position, taken, data, inbox.checksum FROM (SELECT 1) one "
    "LEFT JOIN tallies written ON written.kind = 'inbox' AND written.session = ? LEFT JOIN inbox ON inbox.session = ?"
)
"""The beginning of a query for what `inbox_entries` takes. The rest is a condition on the entries."""


def inbox_entries(
    chain: Chain, session: str, rows: Sequence[Sequence[Any]], taken: Sequence[str]
) -> list[tuple[str, str, Any]]:
    """The entries of an inbox without those that were taken. Raises if one was changed or deleted."""
    written, checksum, found = rows[0][:3]
    check_tally(chain, "inbox", session, None if written is None else (written, checksum), found)
    entries = [inbox_entry(chain, session, row[3:]) for row in rows if row[3] is not None]
    return [entry for entry in entries if entry[0] not in taken]


def cursor_checksum(chain: Chain, session: str, reader: str, seq: int) -> bytes:
    """The checksum of a cursor."""
    return chain.checksum("cursor", session, reader, seq)


def check_cursor(chain: Chain, session: str, reader: str, seq: int, checksum: bytes) -> int:
    """The position of a cursor. Raises if it was changed."""
    try:
        if cursor_checksum(chain, session, reader, seq) == checksum:
            return seq
    except ODD:
        pass
    raise StoreError(f"session {session!r}: the cursor of {reader!r} was changed after it was written")


CURSOR: LiteralString = (
    "SELECT written.count, written.checksum, (SELECT count(*) FROM cursors WHERE session = ?), cursors.seq, "
    "cursors.checksum FROM (SELECT 1) one LEFT JOIN tallies written ON written.kind = 'cursors' AND "
    "written.session = ? LEFT JOIN cursors ON cursors.session = ? AND reader = ?"
)
"""The query for what `cursor_of` takes."""


def cursor_of(chain: Chain, session: str, reader: str, row: Sequence[Any]) -> int:
    """The position of a cursor, 0 if there is none. Raises if it was changed or if cursors were deleted."""
    written, tally, found, seq, checksum = row
    check_tally(chain, "cursors", session, None if written is None else (written, tally), found)
    return 0 if seq is None else check_cursor(chain, session, reader, seq, checksum)


def pipeline_checksum(chain: Chain, digest: str, data: bytes) -> bytes:
    """The checksum of the description of a pipeline."""
    return chain.checksum("pipeline", digest, data)


def check_pipeline(chain: Chain, digest: str, data: bytes, checksum: bytes) -> bytes:
    """The description of a pipeline. Raises if it was changed."""
    try:
        if pipeline_checksum(chain, digest, data) == checksum:
            return bytes(data)
    except ODD:
        pass
    raise StoreError(f"the description of pipeline {digest!r} was changed after it was written")


PIPELINE: LiteralString = (
    "SELECT written.count, written.checksum, (SELECT count(*) FROM pipelines), pipelines.data, pipelines.checksum "
    "FROM (SELECT 1) one LEFT JOIN tallies written ON written.kind = 'pipelines' AND written.session = '' "
    "LEFT JOIN pipelines ON digest = ?"
)
"""The query for what `pipeline_of` takes."""


def pipeline_of(chain: Chain, digest: str, row: Sequence[Any]) -> bytes | None:
    """The description of a pipeline, None if there is none. Raises if it was changed, or if one was deleted."""
    written, tally, found, data, checksum = row
    if data is not None:
        return check_pipeline(chain, digest, data, checksum)
    check_tally(chain, "pipelines", "", None if written is None else (written, tally), found)
    return None


def tombstone_checksum(chain: Chain, row: Sequence[Any]) -> bytes:
    """The checksum of an erased session's row: number, id, agent, title, parent, started, updated, records and head."""
    return chain.checksum("erased", *row)
