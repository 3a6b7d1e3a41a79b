"""Code shared by the stores: session summaries, batches, hash chains, encodings and errors."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from windlass.errors import SessionConflict, StoreError
from windlass.logs import Batch, SessionInfo, Verified
from windlass.messages import json_with_surrogates
from windlass.records import Asked, Injected, Record, decode, encode

from .batches import SLICE, START, change_of, link_of, unpack, unpack_in_slices


def info_of(session: str, records: Sequence[Record]) -> tuple[SessionInfo, dict[str, Asked]]:
    """Derive a session's summary and its open questions from its log, for a store that keeps only logs."""
    info, asks = SessionInfo(session, records=len(records)), dict[str, Asked]()
    for record in records:
        change = change_of((record,))
        if change is None:
            continue
        if change.status is not None:
            info = info.replace(
                status=change.status,
                agent=change.agent or info.agent,
                title=info.title or change.title or "",
                started=info.started or change.at,
                updated=change.at,
            )
        asks |= change.asked
        for answered in change.answered:
            if answered == "*":
                asks.clear()
            asks.pop(answered, None)
    return info.replace(waiting=len(asks)), asks


def matches(info: SessionInfo, search: str, status: str | None) -> bool:
    """Whether a session matches a search text and a status."""
    text = f"{info.session}\n{info.title}\n{info.agent}".casefold()
    return search.casefold() in text and status in (None, info.status)


def verify_chain(session: str, batches: Iterable[Batch], end: tuple[int, bytes] | None = None) -> Verified:
    """Follow a chain to its `end`: the number of records and the last link, as the session's row has them.

    A pruned batch still has its link, but no longer the bytes that the link was computed from.
    """
    link, records, gone = START, 0, 0
    for batch in batches:
        if batch.seq != records:
            raise broken_log(session, batch.seq, f"the records before it end at {records}")
        if batch.pruned:
            gone += 1
        elif link_of(link, batch.lines) != batch.link:
            raise broken_log(session, batch.seq, "its records were changed after they were written")
        elif batch.lines.count(b"\n") + 1 != batch.count:
            raise broken_log(session, batch.seq, f"it should have {batch.count} records")
        link = batch.link
        records += batch.count
    if end is not None:
        check_end(session, records, end[0])
        if link != end[1]:
            raise broken_log(session, records, "the last link differs from the one in the session's row")
    return Verified(session, records, link.hex(), gone)


def check_end(session: str, records: int, expected: int) -> None:
    """Raise if a log has more or fewer records than the session's row says."""
    if records < expected:
        raise broken_log(session, records, f"it ends early: the session's row says that it has {expected} records")
    if records > expected:
        raise broken_log(session, expected, "it has more records than the session's row says")


def prune_lines(lines: bytes) -> bytes | None:
    """The lines without the parts that were injected for one turn only; None if there are no such parts."""
    rest: list[bytes] = []
    changed = False
    for line in lines.split(b"\n"):
        record = decode(line) if b'"Injected"' in line else None
        if isinstance(record, Injected) and not record.durable and record.parts:
            line, changed = encode(record.replace(parts=())), True
        rest.append(line)
    return b"\n".join(rest) if changed else None


def unpack_batch(session: str, seq: int, data: bytes) -> bytes:
    """Decompress the lines of a batch. The error for a damaged batch names it."""
    try:
        return unpack(data)
    except zlib.error as error:
        raise _damaged_batch(session, seq, error) from error


def _damaged_batch(session: str, seq: int, error: zlib.error) -> StoreError:
    return broken_log(session, seq, f"the batch is damaged ({error})")


def batches_of(session: str, rows: Iterable[Sequence[Any]]) -> list[Batch]:
    """The batches of a session from their rows."""
    return [
        Batch(seq, count, link, unpack_batch(session, seq, data), bool(pruned))
        for seq, count, link, data, pruned in rows
    ]


async def unpack_rows(session: str, rows: Iterable[Sequence[Any]]) -> list[Batch]:
    """`batches_of`, but for many or large rows other tasks run in between."""
    batches: list[Batch] = []
    size = 0
    for seq, count, link, data, pruned in rows:
        if len(data) > SLICE:
            try:
                lines = await unpack_in_slices(data)
            except zlib.error as error:
                raise _damaged_batch(session, seq, error) from error
        else:
            lines = unpack_batch(session, seq, data)
        batches.append(Batch(seq, count, link, lines, bool(pruned)))
        size += len(lines)
        if size >= SLICE:
            size = 0
            await asyncio.sleep(0)
    return batches


def whole_of(session: str, rows: Sequence[Sequence[Any]]) -> tuple[list[Batch], tuple[int, bytes] | None]:
    """The batches of a session and the end that its row states, from joined rows that start with that end.

    A session without batches has one row, whose other columns are empty.
    """
    if not rows:
        return [], None
    return batches_of(session, [row[2:] for row in rows if row[2] is not None]), (rows[0][0], rows[0][1])


def as_json(data: Any) -> bytes:
    """Encode an entry of the inbox."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json_with_surrogates(msgspec.to_builtins(data)).encode()


def from_json(data: bytes) -> Any:
    """Decode an entry of the inbox."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:  # a lone surrogate
        return json.loads(data)


def key_of(text: str) -> bytes:
    """Encode a key as bytes: unlike text columns, they can hold lone surrogates and NUL."""
    return text.encode("utf-8", "surrogatepass")


def from_key(key: bytes) -> str:
    """Decode a key."""
    return key.decode("utf-8", "surrogatepass")


def escape_like(text: str) -> str:
    """Escape a search text for LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def child_id_range(session: str) -> tuple[str, str]:
    """The range, in byte order, that contains the ids of its sub-agents' sessions: `0` follows `/`."""
    return f"{session}/", f"{session}0"


def belongs_to(name: str, session: str) -> bool:
    """Whether `name` is this session or the session of a sub-agent below it, and does not merely start the same."""
    return name.startswith(session) and _CHILD_PATH.fullmatch(name, len(session)) is not None


_CHILD_PATH = re.compile(r"(?:/\d+/\d+(?:\.\d+)?)*")
"""The steps and positions of the calls that lead to a sub-agent."""


def conflict(session: str, found: int | None, expected: int) -> SessionConflict:
    """The error for an append at a position where the log no longer ends."""
    has = "more" if found is None else str(found)
    text = f"session {session!r} has {has} records, not {expected}: another process or task advanced it"
    return SessionConflict(text, session=session)


def erased_session(session: str) -> SessionConflict:
    """The error for a write to a session that was erased."""
    return SessionConflict(f"session {session!r} was erased; its id cannot be used again", session=session)


def broken_log(session: str, seq: int, why: str) -> StoreError:
    """The error for a log that differs from what was written."""
    return StoreError(f"the log of session {session!r} is broken at record {seq}: {why}")
