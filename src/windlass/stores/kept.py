"""What all stores share: what they say of a session, its batches and its chain, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from windlass.errors import SessionConflict, StoreError
from windlass.messages import Value
from windlass.records import Injected, decode, encode

from .batches import START, link_of

Inbox: TypeAlias = tuple[str, str, Any]
"""Key, kind and data of an entry."""


class SessionInfo(Value, frozen=True):
    """A session as a list shows it. `status` is open, running, suspended, ended or erased."""

    session: str
    status: str = "open"
    agent: str = ""
    title: str = ""
    started: float = 0.0
    updated: float = 0.0
    records: int = 0
    waiting: int = 0


class Batch(Value, frozen=True):
    """An append batch: where it begins, its link in the chain, and the JSON of its records, one a line."""

    seq: int
    count: int
    link: bytes
    lines: bytes
    pruned: bool = False


class Verified(Value, frozen=True):
    """A chain that holds: how many records it covers, its last link, and how many batches were pruned."""

    session: str
    records: int
    head: str
    pruned: int = 0


def verified(session: str, batches: Iterable[Batch]) -> Verified:
    """Follow a chain. A pruned batch has its link still, but not the bytes it was taken of."""
    link, records, gone = START, 0, 0
    for batch in batches:
        if batch.seq != records:
            raise broken(session, batch.seq, f"the records before it end at {records}")
        if batch.pruned:
            gone += 1
        elif link_of(link, batch.lines) != batch.link:
            raise broken(session, batch.seq, "its records are not those that were written")
        elif batch.lines.count(b"\n") + 1 != batch.count:
            raise broken(session, batch.seq, f"it should have {batch.count} records")
        link = batch.link
        records += batch.count
    return Verified(session, records, link.hex(), gone)


def pruned(lines: bytes) -> bytes | None:
    """The lines without what was injected for one turn only; None if there is nothing of the kind."""
    kept: list[bytes] = []
    changed = False
    for line in lines.split(b"\n"):
        record = decode(line) if b'"Injected"' in line else None
        if isinstance(record, Injected) and not record.durable and record.parts:
            line, changed = encode(record.replace(parts=())), True
        kept.append(line)
    return b"\n".join(kept) if changed else None


def conflict(session: str, found: int | None, expected: int) -> SessionConflict:
    """The error of whoever wanted to go on from where the log no longer ends."""
    has = "more" if found is None else str(found)
    text = f"session {session!r} has {has} records, not {expected}: somebody else advanced it"
    return SessionConflict(text, session=session)


def erased_session(session: str) -> SessionConflict:
    """The error of writing to a session that was erased."""
    return SessionConflict(f"session {session!r} was erased; its id is not used again", session=session)


def broken(session: str, seq: int, why: str) -> StoreError:
    """The error of a log that is not what was written."""
    return StoreError(f"the log of session {session!r} is broken at record {seq}: {why}")
