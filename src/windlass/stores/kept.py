"""What all stores share: what they say of a session, its batches and its chain, and how they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import re
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from windlass.errors import SessionConflict, StoreError
from windlass.logs import Batch, SessionInfo, Verified
from windlass.messages import json_with_surrogates
from windlass.records import Asked, Injected, Record, decode, encode

from .batches import START, change_of, link_of, unpack


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


def verified(session: str, batches: Iterable[Batch], end: tuple[int, bytes] | None = None) -> Verified:
    """Follow a chain to its `end`: how many records it has, and its last link, as the store keeps them beside the log.

    A pruned batch has its link still, but not the bytes it was taken of.
    """
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
    if end is not None:
        check_end(session, records, end[0])
        if link != end[1]:
            raise broken(session, records, "the last link is not the one that the session's row has")
    return Verified(session, records, link.hex(), gone)


def check_end(session: str, records: int, said: int) -> None:
    """Raise if a log has not as many records as the session's row says."""
    if records < said:
        raise broken(session, records, f"it ends before what the session's row says, the last of {said} records")
    if records > said:
        raise broken(session, said, "it goes on after what the session's row says")


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


def unpacked(session: str, seq: int, data: bytes) -> bytes:
    """The lines of a batch; a damaged one is named."""
    try:
        return unpack(data)
    except zlib.error as error:
        raise broken(session, seq, f"the batch is damaged ({error})") from error


def batches_of(session: str, rows: Iterable[Sequence[Any]]) -> list[Batch]:
    """The batches of a session from their rows."""
    return [Batch(seq, count, link, unpacked(session, seq, data), bool(gone)) for seq, count, link, data, gone in rows]


def whole_of(session: str, rows: Sequence[Sequence[Any]]) -> tuple[list[Batch], tuple[int, bytes] | None]:
    """The batches of a session and where its row says that they end, from rows that have that end first.

    A session without batches has one row, in which there is nothing else.
    """
    if not rows:
        return [], None
    return batches_of(session, [row[2:] for row in rows if row[2] is not None]), (rows[0][0], rows[0][1])


def as_json(data: Any) -> bytes:
    """An entry of the inbox as bytes."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json_with_surrogates(msgspec.to_builtins(data)).encode()


def from_json(data: bytes) -> Any:
    """An entry of the inbox as it was put."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:  # a lone surrogate
        return json.loads(data)


def key_of(text: str) -> bytes:
    """A key as bytes, which may hold what no column of text can: lone surrogates and NUL."""
    return text.encode("utf-8", "surrogatepass")


def from_key(key: bytes) -> str:
    """A key as it was."""
    return key.decode("utf-8", "surrogatepass")


def escaped(text: str) -> str:
    """A text to look for with LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def below(session: str) -> tuple[str, str]:
    """Between which texts the ids of its sub-agents' sessions are, by their bytes: `0` is what follows `/`."""
    return f"{session}/", f"{session}0"


def belongs(name: str, session: str) -> bool:
    """Whether a session is this one or that of a sub-agent below it, and not one whose name only begins the same."""
    return name.startswith(session) and _BELOW.fullmatch(name, len(session)) is not None


_BELOW = re.compile(r"(?:/\d+/\d+(?:\.\d+)?)*")
"""The steps and positions of the calls that lead to a sub-agent."""


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


# ---------------------------------------------------------------- waiting


class Settling(asyncio.Future[Any]):
    """A write that somebody waits for. It goes on whatever they do, so whoever is cancelled meanwhile hears of that
    when it is done: the log is then what it is going to be."""

    def cancel(self, msg: Any = None) -> bool:
        return False

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        super().set_exception(exception)
        self.exception()  # whoever was cancelled does not ask for it, and need not be told that


# ---------------------------------------------------------------- forks

INHERITED: list[object] = []
"""What a forked process has of its parent and must neither use nor close; here nobody does."""


_AFTER_FORK: set[weakref.WeakMethod[Callable[[], None]]] = set()


def survive_forks(forked: Callable[[], None]) -> None:
    """Let the method of a store be called where it finds itself in a forked process."""
    _AFTER_FORK.add(weakref.WeakMethod(forked, _AFTER_FORK.discard))


def _after_fork() -> None:
    for method in list(_AFTER_FORK):
        if (forked := method()) is not None:
            forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
