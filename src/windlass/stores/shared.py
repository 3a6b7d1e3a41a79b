"""Code shared by the stores: session summaries, encodings and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from string import ascii_uppercase
from typing import Any, TypeAlias, get_args

import msgspec

from windlass.errors import ConfigError, SessionConflict, StoreError
from windlass.logs import SessionInfo
from windlass.messages import json_with_surrogates
from windlass.records import Asked, Record

from .batches import Status, change_of, is_column_text

Execute: TypeAlias = Callable[..., Sequence[Sequence[Any]]]
"""Runs a statement with its values, in a transaction, and returns its rows. Parameters are written as `?`."""


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


class Search:
    """What `find` looks for, checked, so that all stores answer alike.

    Case is ignored. A database looks for ASCII texts by itself: `text` is in lower case, and the database lowers only
    ASCII letters. If `text` is None, the rows of all sessions must be looked through with `matches`. A text that no
    store can hold, such as one with NUL, is not found: then `nothing` is true.
    """

    def __init__(self, search: Any, status: Any, limit: Any) -> None:
        if not isinstance(search, str):
            raise ConfigError(f"find(search={search!r:.80}) must be a str")
        if status is not None and status not in STATUSES:
            raise ConfigError(f"find(status={status!r:.80}) must be one of {', '.join(STATUSES)}, or None for all")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ConfigError(f"find(limit={limit!r:.80}) must be a whole number, 0 or more, or None for all")
        self.search: str = search
        self.status: str | None = status
        self.limit: int = _MOST if limit is None else min(limit, _MOST)
        self.text: str | None = search.lower() if search.isascii() else None
        self.nothing = not is_column_text(search or "-")

    def matches(self, info: SessionInfo) -> bool:
        """Whether a session matches."""
        if self.nothing or self.status not in (None, info.status):
            return False
        texts = (info.session, info.title, info.agent)
        if self.text is not None:
            return any(self.text in text.translate(_LOWER) for text in texts)
        return any(self.search.casefold() in text.casefold() for text in texts)

    def among(self, infos: Iterable[SessionInfo]) -> list[SessionInfo]:
        """The sessions that match, in the same order, up to the limit."""
        return [info for info in infos if self.matches(info)][: self.limit]


STATUSES: tuple[str, ...] = get_args(Status)
_MOST = 2**62
_LOWER = {ord(letter): letter.lower() for letter in ascii_uppercase}


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
