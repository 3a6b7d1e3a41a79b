"""What workers find in a durable store: queued messages, turns that were interrupted, and turns that were answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from windlass.ownership import Lost, queued_kinds

from .batches import column_text
from .shared import Execute


class Dialect(NamedTuple):
    """What differs between databases: the session at the root of another, and unread entries of the inbox."""

    root: str
    unread: str


class Candidate(NamedTuple):
    """A session with work, as its row was when it was looked for. Without a row it has no records and no epoch."""

    session: str
    records: int = 0
    epoch: int = 0
    background: bool = False


def find_work(
    execute: Execute,
    dialect: Dialect,
    is_alive: Callable[[str], bool],
    agent: str,
    due: Sequence[str],
    limit: int,
) -> list[Candidate]:
    """The sessions of an agent that nobody works on and that have work, the most urgent first.

    Turns that have begun come before new ones: first those whose process died or let go of them, then those that were
    answered or whose question is `due`.
    """
    search = _search(execute, dialect, is_alive, agent, "")
    return _first(limit, search.interrupted, search.answered, lambda most: search.suspended(due, most), search.queued)


def find_unserved(
    execute: Execute, dialect: Dialect, is_alive: Callable[[str], bool], engine: str, agent: str, limit: int
) -> list[str]:
    """The sessions of an agent that an engine drives, that nobody works on, and whose inbox is to be read."""
    search = _search(execute, dialect, is_alive, agent, engine)
    return [found.session for found in _first(limit, search.answered, search.queued)]


def _first(limit: int, *looks: Callable[[int], list[Candidate]]) -> list[Candidate]:
    """What some searches find, each session once."""
    found: dict[str, Candidate] = {}
    for look in looks:
        for candidate in look(limit - len(found)) if len(found) < limit else ():
            found.setdefault(candidate.session, candidate)
    return list(found.values())


def find_owners(execute: Execute, dialect: Dialect, engine: str) -> list[str]:
    """The processes that work on sessions which an engine drives, or on sessions below them."""
    return [owner for (owner,) in execute(f"SELECT DISTINCT owner FROM sessions WHERE {_below(dialect)}", engine)]


def find_lost(
    execute: Execute,
    dialect: Dialect,
    is_alive: Callable[[str], bool],
    engine: str,
    limit: int,
    silent: Collection[str],
) -> list[Lost]:
    """The sessions that an engine drives, or below them, of processes that have died or are `silent`."""
    owners = find_owners(execute, dialect, engine)
    dead = [owner for owner in owners if owner in silent or not is_alive(owner)]
    if not dead:
        return []
    query = (
        f"SELECT id, owner FROM sessions WHERE {_below(dialect)} AND owner IN ({_places(dead)}) ORDER BY number LIMIT ?"
    )
    return [Lost(session, owner) for session, owner in execute(query, engine, *dead, limit)]


def _below(dialect: Dialect) -> str:
    """The condition for sessions with an owner whose root an engine drives."""
    above = dialect.root.format("sessions.id")
    return f"owner != '' AND EXISTS (SELECT 1 FROM sessions above WHERE above.id = {above} AND above.engine = ?)"


def _search(execute: Execute, dialect: Dialect, is_alive: Callable[[str], bool], agent: str, engine: str) -> _Search:
    owners = [owner for (owner,) in execute("SELECT DISTINCT owner FROM sessions WHERE owner != ''")]
    free = ["", *[owner for owner in owners if not is_alive(owner)]]
    return _Search(execute, dialect, column_text(agent), free, engine)


class _Search:
    """Looks for sessions whose last pass belongs to one of some owners: none, or a process that has ended."""

    def __init__(self, execute: Execute, dialect: Dialect, agent: str, owners: list[str], engine: str) -> None:
        self._execute = execute
        self._root = dialect.root
        self._unread = dialect.unread
        self._agent = agent
        self._owners = owners
        self._engine = engine

    def interrupted(self, limit: int) -> list[Candidate]:
        """Turns that run, but nowhere. The session of a sub-agent has an epoch only if it works in the background."""
        return self._sessions("status = 'running'", [], limit)

    def answered(self, limit: int) -> list[Candidate]:
        """Suspended turns with unread answers or cancels, in their own inbox or in that of an agent below."""
        entries = f"SELECT {{}} FROM inbox WHERE {self._unread} AND kind IN ('answer', 'cancel')"
        below = entries.format(self._root.format("inbox.session"))
        return self._sessions(f"status = 'suspended' AND id IN ({entries.format('session')} UNION {below})", [], limit)

    def suspended(self, due: Sequence[str], limit: int) -> list[Candidate]:
        """Those of some sessions that are suspended."""
        return self._sessions(f"status = 'suspended' AND id IN ({_places(due)})", due, limit) if due else []

    def _sessions(self, condition: str, values: Sequence[str], limit: int) -> list[Candidate]:
        above = self._root.format("sessions.id")
        rows = self._execute(
            f"SELECT id, records, epoch, parent FROM sessions WHERE {condition} AND owner IN ({_places(self._owners)}) "
            "AND epoch > 0 AND engine = ? AND (agent = ? OR parent != '') AND "
            f"(parent = '' OR EXISTS (SELECT 1 FROM sessions above WHERE above.id = {above} AND above.agent = ?)) "
            "ORDER BY updated, number LIMIT ?",
            *values, *self._owners, self._engine, self._agent, self._agent, limit,
        )  # fmt: skip
        return [Candidate(session, records, epoch, parent != "") for session, records, epoch, parent in rows]

    def queued(self, limit: int) -> list[Candidate]:
        """Sessions without a turn that have queued messages: the highest priority first, then the earliest."""
        kinds = queued_kinds(self._agent)
        rows = self._execute(
            "SELECT inbox.session, min(inbox.kind) AS urgency, min(inbox.position) AS place, "
            "coalesce(max(records), 0), coalesce(max(epoch), 0) FROM inbox LEFT JOIN sessions "
            f"ON sessions.id = inbox.session WHERE {self._unread} AND inbox.kind IN ({_places(kinds)}) "
            "AND ((sessions.id IS NULL AND ? = '') OR (status IN ('open', 'ended') AND engine = ? AND parent = '' "
            f"AND owner IN ({_places(self._owners)}))) GROUP BY inbox.session ORDER BY urgency, place LIMIT ?",
            *kinds, self._engine, self._engine, *self._owners, limit,
        )  # fmt: skip
        return [Candidate(session, records, epoch) for session, _, _, records, epoch in rows]


def _places(values: Collection[Any]) -> str:
    return ", ".join("?" * len(values))
