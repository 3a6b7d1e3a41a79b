"""Tallies: how many rows a session has in a table, so that a deleted row is missed.

No log covers the inbox, the cursors and the descriptions of pipelines. The checksums of their rows show that a row was
changed, but not that it is gone. A tally counts the rows; it is written in the transaction that writes the row. The row
of the session itself has a tally, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from windlass.errors import StoreError

from .chains import Chain
from .reading import ODD
from .shared import Execute

TABLE = """
CREATE TABLE tallies (
    kind TEXT NOT NULL, session TEXT NOT NULL, count BIGINT NOT NULL, checksum {bytes} NOT NULL,
    PRIMARY KEY (kind, session)
);
"""
"""Valid in SQLite and PostgreSQL, with their name for the type of bytes."""

KINDS = {
    "inbox": ("inbox entry", "inbox entries"),
    "cursors": ("cursor of an observer", "cursors of observers"),
    "pipelines": ("description of a pipeline", "descriptions of pipelines"),
    "sessions": ("row of the session", "rows of the session"),
}
"""The tables that are counted, and what one and several of their rows are called.

Pipelines belong to no session: their tally has an empty one.
"""


def begin_row(execute: Execute, chain: Chain, kind: str, session: str = "", lock: str = "") -> int:
    """The tally before a row is written, locked until the transaction ends. Raises `StoreError` if it was changed."""
    query = "INSERT INTO tallies VALUES (?, ?, 0, ?) ON CONFLICT DO NOTHING"
    execute(query, kind, session, tally_checksum(chain, kind, session, 0))
    [row] = execute(f"SELECT count, checksum FROM tallies WHERE kind = ? AND session = ? {lock}", kind, session)
    if not _is_sound(chain, kind, session, row):
        raise _changed(kind, session)
    return int(row[0])


def count_row(execute: Execute, chain: Chain, kind: str, before: int, session: str = "") -> None:
    """Count a row that was written."""
    count = before + 1
    query = "UPDATE tallies SET count = ?, checksum = ? WHERE kind = ? AND session = ?"
    execute(query, count, tally_checksum(chain, kind, session, count), kind, session)


def check_tally(chain: Chain, kind: str, session: str, row: Sequence[Any] | None, found: int) -> None:
    """Raise `StoreError` unless a table has as many rows as were counted. `row` has the count and its checksum."""
    if row is None:
        count: Any = 0
    elif _is_sound(chain, kind, session, row):
        count = row[0]
    else:
        raise _changed(kind, session)
    if count != found:
        raise StoreError(f"{_of(session)}{_difference(kind, count, found)}")


def fill_tallies(execute: Execute, chain: Chain) -> None:
    """Count all rows of a store from before there were tallies."""
    for kind, session, count in execute(_COUNTS):
        if count:
            row = (kind, session, count, tally_checksum(chain, kind, session, count))
            execute("INSERT INTO tallies VALUES (?, ?, ?, ?)", *row)


def tally_problems(select: Callable[[str], Sequence[Sequence[Any]]], chain: Chain) -> list[str]:
    """What is wrong with the tallies of a store, one sentence each."""
    counts = {
        (kind, session): count
        for kind, session, count in select(f"{_COUNTS} UNION ALL SELECT 'sessions', id, 1 FROM sessions")
    }
    tallies = {(kind, session): row for kind, session, *row in select("SELECT * FROM tallies")}
    problems: list[str] = []
    for kind, session in {**counts, **tallies}:
        try:
            if kind not in KINDS:
                raise _changed(kind, session)
            check_tally(chain, kind, session, tallies.get((kind, session)), counts.get((kind, session), 0))
        except StoreError as error:
            problems.append(str(error))
    return problems


_COUNTS = (
    "SELECT 'inbox', session, count(*) FROM inbox GROUP BY session UNION ALL "
    "SELECT 'cursors', session, count(*) FROM cursors GROUP BY session UNION ALL "
    "SELECT 'pipelines', '', count(*) FROM pipelines"
)


def _is_sound(chain: Chain, kind: str, session: str, row: Sequence[Any]) -> bool:
    try:
        return tally_checksum(chain, kind, session, row[0]) == bytes(row[1])
    except ODD:
        return False


def tally_checksum(chain: Chain, kind: str, session: str, count: int) -> bytes:
    """The checksum of a tally."""
    return chain.checksum("tally", kind, session, count)


def _difference(kind: str, written: int, found: int) -> str:
    """What is wrong with the number of rows."""
    one, several = KINDS[kind]
    if found > written:
        return f"there {_are(found, one, several)}, but {written} {_were(written)} written: rows were added"
    return f"{written} {one if written == 1 else several} {_were(written)} written, but there {_are(found)}: " + (
        "it was deleted" if written == 1 else "rows were deleted"
    )


def _are(count: int, one: str = "", several: str = "") -> str:
    named = f" {one if count == 1 else several}" if one else ""
    return f"{'is' if count == 1 else 'are'} {count or 'none'}{named}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _changed(kind: str, session: str) -> StoreError:
    several = KINDS[kind][1] if kind in KINDS else f"rows of {kind!r}"
    return StoreError(f"{_of(session)}the count of {several} was changed after it was written")


def _of(session: str) -> str:
    return f"session {session!r}: " if session else "the store: "
