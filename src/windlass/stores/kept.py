"""What all stores share: what they say of a session, its batches and its chain, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.errors import SessionConflict, StoreError
from windlass.logs import Batch, SessionInfo, Verified
from windlass.records import Asked, Injected, Record, decode, encode

from .batches import START, change_of, link_of


def info_of(session: str, records: Sequence[Record]) -> tuple[SessionInfo, dict[str, Asked]]:
    """What a log says of its session, for a store that keeps nothing beside it; and its open questions."""
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


def found(info: SessionInfo, search: str, status: str | None) -> bool:
    """Whether a session is among those that are looked for."""
    text = f"{info.session}\n{info.title}\n{info.agent}".casefold()
    return search.casefold() in text and status in (None, info.status)


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
