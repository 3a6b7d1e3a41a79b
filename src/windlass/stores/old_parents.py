"""Finds the parents of sub-agents' sessions in logs of formats 1 and 2, whose rows do not state them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from windlass.errors import StoreError
from windlass.records import Delegated, Record, SessionOpened, decode

from .batches import unpack
from .shared import Execute

R = TypeVar("R", bound=Record)

Read: TypeAlias = Callable[[str], Iterator[bytes]]
"""Gives the batches of a session one by one, in their order, as the store keeps them."""


def old_parent(session: str, read: Read) -> str:
    """The session that started this one, according to the logs; "" if no session did, or if a log is damaged.

    In these formats a fork of a sub-agent's session still named the parent of the original. Its own parent is the
    session whose id its own id begins with, if that says so.
    """
    try:
        opened = next(_records(map(unpack, read(session)), SessionOpened), None)
        if opened is None or not opened.parent:
            return ""
        if opened.how != "forked":
            return opened.parent
        above = session.rsplit("/", 2)[0]
        started = _records(map(unpack, read(above)), Delegated)
        return above if any(record.session == session for record in started) else ""
    except (StoreError, ValueError, zlib.error):
        return ""


def fill_parents(execute: Execute) -> None:
    """Write into the rows which sessions belong to sub-agents."""

    def read(session: str) -> Iterator[bytes]:
        query = (
            "SELECT seq + count, data FROM batches JOIN sessions ON session = number "
            "WHERE id = ? AND seq >= ? AND count > 0 ORDER BY seq LIMIT 1"
        )
        end = 0
        while rows := execute(query, session, end):
            end = rows[0][0]
            yield rows[0][1]

    for (session,) in execute("SELECT id FROM sessions WHERE status != 'erased' ORDER BY number"):
        if parent := old_parent(session, read):
            execute("UPDATE sessions SET parent = ? WHERE id = ?", parent, session)


def is_fork(batches: Iterable[bytes]) -> bool:
    """Whether a log, given as the lines of its batches, is that of a fork."""
    opened = next(_records(batches, SessionOpened), None)
    return opened is not None and opened.how == "forked"


def _records(batches: Iterable[bytes], kind: type[R]) -> Iterator[R]:
    """The records of a kind, as far as they are asked for."""
    name = f'"{kind.__name__}"'.encode()
    for lines in batches:
        for line in lines.split(b"\n"):
            if name in line:
                record = decode(line)
                if isinstance(record, kind):
                    yield record
