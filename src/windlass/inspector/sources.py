"""What the inspector looks at: a store, or a file with exported sessions; and the logs that were read last."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.errors import SessionUnknown, StoreError
from windlass.evals import EvalRun
from windlass.logs import SessionInfo
from windlass.protocols import Store
from windlass.records import Record
from windlass.stores import MemoryStore, open_store
from windlass.transfer import import_session

from .score import Score

KEPT = 6
"""How many logs are kept in memory."""

SLICE = 2000
"""How many records are read without letting other requests run."""


class SessionLog(Struct):
    """The log of a session as far as it was read, and its score."""

    records: list[Record]
    score: Score


class Source:
    """A store, read through a small cache: logs only grow, so that only what is new is read again."""

    def __init__(self, store: Store, name: str, *, shared: bool = False) -> None:
        self.store = store
        self.name = name
        self.shared = shared
        self._logs: OrderedDict[str, SessionLog] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        """Close the store, unless it is shared."""
        if not self.shared:
            await self.store.close()

    async def log(self, session: str) -> SessionLog:
        """The log of a session, up to date. Raises `SessionUnknown` if there is none."""
        lock = self._locks.setdefault(session, asyncio.Lock())
        try:
            async with lock:
                return await self._read(session)
        finally:
            if not lock.locked():
                self._locks.pop(session, None)

    async def _read(self, session: str) -> SessionLog:
        known = self._logs.pop(session, None)
        if known is not None:
            # The last known record is read again: if it differs, the session was erased or pruned meanwhile.
            start = len(known.records) - 1
            fresh = list(await self.store.read(session, start))
            if fresh and fresh[0] == known.records[-1]:
                await _extend(known, fresh[1:])
                return self._keep(session, known)
        records = list(await self.store.read(session))
        if not records:
            raise SessionUnknown(f"there is no session {session!r}", session=session)
        log = SessionLog([], Score(session))
        await _extend(log, records)
        return self._keep(session, log)

    def _keep(self, session: str, log: SessionLog) -> SessionLog:
        self._logs[session] = log
        while len(self._logs) > KEPT:
            self._logs.popitem(last=False)
        return log


async def _extend(log: SessionLog, records: list[Record]) -> None:
    for start in range(0, len(records), SLICE):
        part = records[start : start + SLICE]
        log.records += part
        log.score.extend(part)
        if len(records) > SLICE:
            await asyncio.sleep(0)


def top_of(session: str) -> str:
    """The session of a user that the session of a sub-agent belongs to."""
    return session.partition("//")[0]


async def is_live(store: Store, info: SessionInfo) -> bool:
    """Whether a process works on a session, or on that of its parent."""
    top = top_of(info.parent or info.session)
    return (await store.ownership(top)).alive or store.passes.get(top) is not None


def source_of(store: Store, *, shared: bool = False) -> Source:
    """A store that is open. One that is `shared` with others stays open."""
    return Source(store, Path(str(getattr(store, "path", type(store).__name__))).name, shared=shared)


async def open_source(where: str | Store) -> Source:
    """Open a store by its address, or a file by its path: an SQLite store, or sessions exported as JSON lines."""
    if not isinstance(where, str):
        return source_of(where)
    exported = None if "://" in where else _exported_lines(Path(where))
    if exported is not None:
        return Source(await _imported(where, exported), Path(where).name)
    address = where if "://" in where else f"sqlite:///{where}"
    return Source(open_store(address), _name(where))


def _name(where: str) -> str:
    """What a store is called on the page: the last part of its address, without what may be secret."""
    plain = where.partition("?")[0] if "://" in where else where
    return plain.rpartition("/")[2].rpartition("@")[2] or plain.partition("://")[0]


def _exported_lines(path: Path) -> list[str] | None:
    """The lines of a file with exported sessions; None if it is an SQLite store."""
    with path.open("rb") as file:
        if file.read(15) == b"SQLite format 3":
            return None
    try:
        return path.read_bytes().decode("utf-8", "surrogatepass").split("\n")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is neither a store nor an exported session: {error}") from None


def _is_run(lines: list[str]) -> bool:
    """Whether a text is an evaluation that was saved."""
    try:
        msgspec.json.decode("\n".join(lines), type=EvalRun)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


async def _imported(where: str, lines: list[str]) -> MemoryStore:
    """Exported sessions, one after the other, checked and in memory."""
    store = MemoryStore()
    starts = [at for at, line in enumerate(lines) if line.startswith('{"windlass":')]
    if not starts:
        hint = "; it looks like a saved evaluation: name it with --evals" if _is_run(lines) else ""
        raise StoreError(f"{where} is neither a store nor a session exported by Windlass{hint}")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            await import_session(store, lines[start:end], key=os.environ.get("WINDLASS_EXPORT_KEY") or None)
        except StoreError as error:
            raise StoreError(f"{where}: {error}") from error
    return store
