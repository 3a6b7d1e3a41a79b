"""Code shared by the stores: session summaries, encodings and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import SessionConflict, StoreError
from windlass.logs import SessionInfo
from windlass.messages import json_with_surrogates
from windlass.records import Asked, Record

from .batches import change_of


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
                parent=change.parent or info.parent,
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


def check_end(session: str, records: int, expected: int) -> None:
    """Raise if a log has more or fewer records than the session's row says."""
    if not isinstance(expected, int):
        raise broken_log(session, records, "the session's row does not say how many records it has")
    if records < expected:
        raise broken_log(session, records, f"it ends early: the session's row says that it has {expected} records")
    if records > expected:
        raise broken_log(session, expected, "it has more records than the session's row says")


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


def conflict(session: str, found: int | None, expected: int) -> SessionConflict:
    """The error for an append at a position where the log no longer ends."""
    has = "more" if found is None else str(found)
    text = f"session {session!r} has {has} records, not {expected}: another process or task advanced it"
    return SessionConflict(text, session=session)


def erased_session(session: str) -> SessionConflict:
    """The error for a write to a session that was erased."""
    return SessionConflict(f"session {session!r} was erased; its id cannot be used again", session=session)


def used_session(session: str) -> SessionConflict:
    """The error for a new session whose id is in use."""
    return SessionConflict(f"session {session!r} already exists; use another id", session=session)


def broken_log(session: str, seq: int, why: str) -> StoreError:
    """The error for a log that differs from what was written."""
    return StoreError(f"the log of session {session!r} is broken at record {seq}: {why}")
