"""Checks the tables of a store as a whole: rows that belong to no session, tombstones, and what no log covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from windlass.errors import StoreError

from .chains import Chain
from .derived import check_cursor, check_entry, check_pipeline, tombstone_checksum
from .reading import ODD
from .session_rows import check_claimed
from .tallies import tally_problems

Select: TypeAlias = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query. The queries here are valid in SQLite and PostgreSQL."""

TOMBSTONE = "number, id, agent, title, parent, started, updated, records, head"
"""The columns of an erased session's row that its checksum covers."""


def store_problems(select: Select, chain: Chain) -> list[str]:
    """What is wrong with a store besides its sessions, one sentence each."""
    return [
        *_orphans(select),
        *_tombstones(select, chain),
        *_claims(select, chain),
        *_entries(select, chain),
        *_pipelines(select, chain),
        *tally_problems(select, chain),
    ]


def missing_numbers(select: Select) -> list[str]:
    """Whether rows of sessions were deleted. Sessions are numbered without gaps, and erased ones keep their row."""
    count, last = select("SELECT count(*), coalesce(max(number), 0) FROM sessions")[0]
    if count == last:
        return []
    return [f"{last - count} of {last} sessions are missing: their rows were deleted"]


def _orphans(select: Select) -> list[str]:
    problems: list[str] = []
    for table in ("batches", "asks"):
        query = f"SELECT DISTINCT session FROM {table} WHERE session NOT IN (SELECT number FROM sessions)"
        problems += [
            f"session number {number!r} does not exist, but has rows in {table}" for (number,) in select(query)
        ]
    query = (
        "SELECT id FROM sessions WHERE status != 'erased' AND (records IS NULL OR records <= 0) AND "
        "EXISTS (SELECT 1 FROM batches WHERE session = number)"
    )
    problems += [f"the row of session {name!r} says that it has no records, but it has" for (name,) in select(query)]
    return problems


def _tombstones(select: Select, chain: Chain) -> list[str]:
    problems: list[str] = []
    for *row, checksum, start in select(f"SELECT {TOMBSTONE}, checksum, start FROM sessions WHERE status = 'erased'"):
        try:
            sound = tombstone_checksum(chain, row) == checksum and start == b""
        except ODD:
            sound = False
        if not sound:
            problems.append(f"the tombstone of session {row[1]!r} was changed, or was not left by an erase")
    for (session,) in select(
        "SELECT id FROM sessions WHERE status = 'erased' AND (EXISTS (SELECT 1 FROM asks WHERE session = number) OR "
        "EXISTS (SELECT 1 FROM batches WHERE session = number AND NOT (seq = records AND count = 0 AND link = head AND "
        "length(data) = 0 AND seals IS NULL AND nonce IS NULL)) OR "
        "EXISTS (SELECT 1 FROM inbox WHERE session = id) OR EXISTS (SELECT 1 FROM cursors WHERE session = id))"
    ):
        problems.append(f"session {session!r} was erased, but there are still rows of it")
    live = "('open', 'running', 'suspended', 'ended', 'erased')"
    for session, status in select(f"SELECT id, status FROM sessions WHERE status NOT IN {live}"):
        problems.append(f"the row of session {session!r} has an unknown status: {status!r}")
    return problems


def _claims(select: Select, chain: Chain) -> list[str]:
    """Owners and epochs of sessions without a log. Those of other sessions are verified with them."""
    problems: list[str] = []
    no_log = "status = 'erased' OR records IS NULL OR records <= 0"
    query = f"SELECT id, owner, epoch, engine, claim FROM sessions WHERE {no_log}"
    for row in select(query):
        problems += _problem(lambda row=row: check_claimed(chain, *row))  # type: ignore[misc]
    return problems


def _entries(select: Select, chain: Chain) -> list[str]:
    """Inbox entries and cursors whose session does not exist. Those of other sessions are verified with them."""
    problems: list[str] = []
    unknown = "session NOT IN (SELECT id FROM sessions)"
    for session, *entry in select(
        f"SELECT session, key, kind, position, taken, data, checksum FROM inbox WHERE {unknown}"
    ):
        problems += _problem(lambda session=session, entry=entry: check_entry(chain, session, entry))  # type: ignore[misc]
        if entry[3]:
            problems.append(f"inbox entry {entry[0]!r} was taken by session {session!r}, which does not exist")
    for session, *cursor in select(f"SELECT session, reader, seq, checksum FROM cursors WHERE {unknown}"):
        problems += _problem(lambda session=session, cursor=cursor: check_cursor(chain, session, *cursor))  # type: ignore[misc]
        if cursor[1]:
            problems.append(f"session {session!r} does not exist, but {cursor[0]!r} has a cursor in it")
    return problems


def _pipelines(select: Select, chain: Chain) -> list[str]:
    problems: list[str] = []
    for row in select("SELECT digest, data, checksum FROM pipelines"):
        problems += _problem(lambda row=row: check_pipeline(chain, *row))  # type: ignore[misc]
    return problems


def _problem(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except StoreError as error:
        return [str(error)]
    return []
