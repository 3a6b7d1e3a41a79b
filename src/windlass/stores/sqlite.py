"""The embedded store: one SQLite file and one writer thread. An append returns after its COMMIT."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from windlass._threads import Worker, run_alone, threads
from windlass.errors import ConfigError, StoreError, WindlassError
from windlass.logs import Batch, SessionInfo, Verified
from windlass.records import Asked, Record, decode, encode

from .batches import START, Change, change_of, lines_of, link_of, pack, records_of
from .shared import (
    INHERITED,
    WriteFuture,
    as_json,
    batches_of,
    belongs_to,
    call_after_fork,
    check_end,
    child_id_range,
    conflict,
    erased_session,
    escape_like,
    from_json,
    from_key,
    key_of,
    prune_lines,
    unpack_batch,
    verify_chain,
    whole_of,
)

T = TypeVar("T")

VERSION = 2
APPLICATION = 0x57494E44  # "WIND"
SCHEMA = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL DEFAULT 'open',
    agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', started REAL NOT NULL, updated REAL NOT NULL,
    records INTEGER, head BLOB
);
CREATE TABLE batches (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, link BLOB NOT NULL, data BLOB NOT NULL,
    pruned INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE TABLE asks (
    position INTEGER PRIMARY KEY, session INTEGER NOT NULL, id BLOB NOT NULL, data BLOB NOT NULL, UNIQUE (session, id)
);
CREATE TABLE inbox (
    session TEXT NOT NULL, key BLOB NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, key)
) WITHOUT ROWID;
CREATE INDEX waiting ON inbox (session) WHERE taken = 0;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (session, reader)
) WITHOUT ROWID;
CREATE TABLE pipelines (digest TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
"""
MIGRATIONS: dict[int, str] = {
    1: """
UPDATE sessions SET records = coalesce((SELECT max(seq + count) FROM batches WHERE session = number), 0),
    head = coalesce((SELECT link FROM batches WHERE session = number ORDER BY seq DESC LIMIT 1), zeroblob(16))
    WHERE status != 'erased';
UPDATE inbox SET data = x'' WHERE taken = 1;
""",
}
"""The SQL that upgrades each version to the next."""

QUICK = 200e-6
"""The caller makes commits that are at most this slow (in seconds): waking the writer thread would cost as much."""

SLOW = 2
"""After this many slow commits in a row the writer thread takes over; a single slow one may be a checkpoint."""

_KNOWN = 4096
"""For how many sessions the writer remembers the head of the chain."""


class _Head(NamedTuple):
    """The end of a session's log."""

    number: int
    records: int
    link: bytes


class _Job(NamedTuple):
    """Work for the writer thread, and the future that waits for it on an event loop."""

    work: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


_Result: TypeAlias = tuple[_Job, Any, Exception | None]


def _deliver(results: list[_Result]) -> None:
    """Pass results to the event loops that wait for them, with one wake-up per loop."""
    for loop in {job.loop for job, _, _ in results}:
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            loop.call_soon_threadsafe(_set_results, [result for result in results if result[0].loop is loop])


def _set_results(results: list[_Result]) -> None:
    for job, value, failure in results:
        if job.done.done():
            continue
        if failure is None:
            job.done.set_result(value)
        else:
            job.done.set_exception(failure)


class SQLiteStore:
    """Keeps logs in one SQLite file. Any number of processes may share it; one at a time advances a session.

    With `synchronous="FULL"`, the default, acknowledged records survive a power cut. With "NORMAL" they survive a crash
    of the process, but a power cut may lose the last ones.
    """

    durable = True

    def __init__(
        self, path: str | Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL", timeout: float = 30.0
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise StoreError(f"synchronous={synchronous!r} must be 'FULL' or 'NORMAL'")
        self.path = _path(path)
        self.synchronous = synchronous
        self.timeout = timeout
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._writer: Worker[_Job] | None = None
        self._db: sqlite3.Connection | None = None
        self._readers: Executor | None = None
        self._pipelines: set[str] = set()
        self._local = threading.local()
        self._connections: set[sqlite3.Connection] = set()
        self._writing = threading.Lock()
        self._here: sqlite3.Connection | None = None
        self._slow = SLOW
        self._closed = False
        call_after_fork(self._reset_after_fork)

    # ------------------------------------------------------------ the log

    async def append(self, session: str, records: Sequence[Record], expected: int) -> bool:
        if self._slow < SLOW and (waiting := self._append_here(session, records, expected)) is not None:
            return waiting
        return await self._write(lambda db: self._append(db, session, records, expected))

    def _append_here(self, session: str, records: Sequence[Record], expected: int) -> bool | None:
        """Append on the caller's thread, if the disk is fast and no other write is pending. None: use the writer."""
        writer = self._writer
        if (writer is not None and not writer.empty()) or not self._writing.acquire(blocking=False):
            return None
        db = self._here
        try:
            if self._closed:
                return None
            if db is None:
                db = self._here = self._connect(timeout=0.0)
            started = time.perf_counter()
            db.execute("BEGIN IMMEDIATE")
            waiting = self._append(db, session, records, expected)
            db.execute("COMMIT")
            self._note_duration(time.perf_counter() - started)
            return waiting
        except sqlite3.Error:
            self._slow = SLOW
            self._here = None
            self._heads.clear()
            self._disconnect(db)
            return None
        except BaseException:
            self._heads.clear()
            if db is not None:
                db.execute("ROLLBACK")
            raise
        finally:
            self._writing.release()

    def _note_duration(self, seconds: float) -> None:
        """Note how long a commit took."""
        self._slow = 0 if seconds < QUICK else self._slow + 1

    def _append(self, db: sqlite3.Connection, session: str, records: Sequence[Record], expected: int) -> bool:
        head = self._heads.get(session)
        if head is None or head.records != expected:
            head = _head(db, session)
        found = 0 if head is None else head.records
        if found != expected:
            if head is not None:
                check_end(session, _length(db, head.number), head.records)
            raise conflict(session, found, expected)
        if records:
            lines, change = lines_of(records), change_of(records)
            if head is None:
                head = _new(db, session, change)
            link = link_of(head.link, lines)
            row = (head.number, expected, len(records), link, pack(lines))
            try:
                db.execute("INSERT INTO batches (session, seq, count, link, data) VALUES (?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                self._heads.pop(session, None)
                now = _head(db, session)
                raise conflict(session, None if now is None else now.records, expected) from None
            length = expected + len(records)
            db.execute("UPDATE sessions SET records = ?, head = ? WHERE number = ?", (length, link, head.number))
            self._heads[session] = _Head(head.number, length, link)
            self._heads.move_to_end(session)
            if len(self._heads) > _KNOWN:
                self._heads.popitem(last=False)
            if change is not None:
                _apply(db, session, head.number, change)
        return db.execute("SELECT 1 FROM inbox WHERE session = ? AND taken = 0", (session,)).fetchone() is not None

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        records: list[Record] = []
        for batch in await self.batches(session, start):
            found = records_of(session, batch.seq, batch.lines)
            records += found[max(start - batch.seq, 0) :]
        return records

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        """The append batches that contain the records from `start` on."""
        rows = await self._read(
            "SELECT seq, count, link, data, pruned FROM batches JOIN sessions ON session = number "
            "WHERE id = ? AND status != 'erased' AND seq + count > ? ORDER BY seq",
            session, start,
        )  # fmt: skip
        return batches_of(session, rows)

    # ------------------------------------------------------------ sessions and their questions

    async def sessions(self) -> Sequence[str]:
        rows = await self._read("SELECT id FROM sessions WHERE status != 'erased' ORDER BY number")
        return [row[0] for row in rows]

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        like = f"%{escape_like(search)}%"
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number) FROM sessions "
            "WHERE (id LIKE ? ESCAPE '\\' OR title LIKE ? ESCAPE '\\' OR agent LIKE ? ESCAPE '\\') "
            "AND (? IS NULL OR status = ?) ORDER BY updated DESC, number DESC LIMIT ?",
            like, like, like, status, status, -1 if limit is None else limit,
        )  # fmt: skip
        return [SessionInfo(*row) for row in rows]

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        rows = await self._read(
            "SELECT sessions.id, data FROM asks JOIN sessions ON session = number "
            "WHERE ? IS NULL OR sessions.id = ? ORDER BY number, position",
            session, session,
        )  # fmt: skip
        return [(name, ask) for name, data in rows if isinstance(ask := decode(data), Asked)]

    async def prune(self, *, before: float) -> int:
        """Delete the injected parts of turns that have ended; returns how many batches were pruned."""
        return await self._write(lambda db: self._prune(db, before))

    def _prune(self, db: sqlite3.Connection, before: float) -> int:
        count = 0
        for number, session in db.execute(
            "SELECT number, id FROM sessions WHERE status IN ('open', 'ended') AND updated < ?", (before,)
        ).fetchall():
            for seq, data in db.execute(
                "SELECT seq, data FROM batches WHERE session = ? AND pruned = 0", (number,)
            ).fetchall():
                if (smaller := prune_lines(unpack_batch(session, seq, data))) is not None:
                    db.execute(
                        "UPDATE batches SET data = ?, pruned = 1 WHERE session = ? AND seq = ?",
                        (pack(smaller), number, seq),
                    )
                    count += 1
        return count

    async def erase(self, session: str) -> bool:
        """Erase a session and the sessions of its sub-agents. A tombstone with the chain's head remains.

        An empty batch remains at the end of the log, too: it makes a late append there fail.
        """
        return await self._write(lambda db: self._erase(db, session))

    def _erase(self, db: sqlite3.Connection, session: str) -> bool:
        rows = db.execute(
            "SELECT number, id FROM sessions WHERE (id = ? OR id > ? AND id < ?) AND status != 'erased'",
            (session, *child_id_range(session)),
        ).fetchall()
        rows = [(number, name) for number, name in rows if belongs_to(name, session)]
        for number, name in rows:
            head = _head(db, name)
            assert head is not None
            self._heads.pop(name, None)
            for statement in ("DELETE FROM batches WHERE session = ?", "DELETE FROM asks WHERE session = ?"):
                db.execute(statement, (number,))
            for statement in ("DELETE FROM inbox WHERE session = ?", "DELETE FROM cursors WHERE session = ?"):
                db.execute(statement, (name,))
            db.execute("INSERT INTO batches VALUES (?, ?, 0, ?, x'', 1)", (number, head.records, head.link))
            db.execute(
                "UPDATE sessions SET status = 'erased', title = '', records = ?, head = ?, updated = ? "
                "WHERE number = ?",
                (head.records, head.link, time.time(), number),
            )
        return bool(rows)

    async def verify(self, session: str) -> Verified:
        """Verify the chain of a session up to the end that its row states; raises `StoreError` where it is broken."""
        rows = await self._read(
            "SELECT records, head, seq, count, link, data, pruned FROM sessions LEFT JOIN batches ON session = number "
            "WHERE id = ? AND status != 'erased' ORDER BY seq",
            session,
        )
        return verify_chain(session, *whole_of(session, rows))

    # ------------------------------------------------------------ inbox, cursors, pipelines

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        encoded = as_json(data)
        return await self._write(
            lambda db: db.execute(
                "INSERT OR IGNORE INTO inbox (session, key, position, kind, data) "
                "SELECT ?, ?, coalesce(max(position), 0) + 1, ?, ? FROM inbox WHERE session = ?",
                (session, key_of(key), kind, encoded, session),
            ).rowcount > 0
        )  # fmt: skip

    async def take(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        rows = await self._read(
            "SELECT key, kind, data FROM inbox WHERE session = ? AND taken = 0 ORDER BY position", session
        )
        entries = [(from_key(key), kind, from_json(data)) for key, kind, data in rows]
        return [entry for entry in entries if entry[0] not in taken]

    async def cursor(self, session: str, reader: str) -> int:
        rows = await self._read("SELECT seq FROM cursors WHERE session = ? AND reader = ?", session, reader)
        return int(rows[0][0]) if rows else 0

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        if expected:
            query = "UPDATE cursors SET seq = ? WHERE session = ? AND reader = ? AND seq = ?"
            values: tuple[Any, ...] = (seq, session, reader, expected)
        else:
            query = (
                "INSERT INTO cursors VALUES (?, ?, ?) ON CONFLICT (session, reader) DO UPDATE SET seq = excluded.seq "
                "WHERE ? IS NULL OR seq = 0"
            )
            values = (session, reader, seq, expected)
        return await self._write(lambda db: db.execute(query, values).rowcount > 0)

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        rows = await self._read(
            "SELECT id, status, agent, title, started, updated, records, "
            "(SELECT count(*) FROM asks WHERE session = number) FROM sessions "
            "LEFT JOIN cursors ON cursors.session = id AND reader = ? "
            "WHERE status != 'erased' AND records > coalesce(seq, 0) ORDER BY number",
            reader,
        )
        return [SessionInfo(*row) for row in rows]

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        if digest not in self._pipelines:
            await self._write(
                lambda db: db.execute("INSERT OR IGNORE INTO pipelines VALUES (?, ?)", (digest, data)).rowcount
            )
            self._pipelines.add(digest)

    async def pipeline(self, digest: str) -> bytes | None:
        rows = await self._read("SELECT data FROM pipelines WHERE digest = ?", digest)
        return bytes(rows[0][0]) if rows else None

    # ------------------------------------------------------------ threads

    async def close(self) -> None:
        """Wait for pending writes, then close the file."""
        with self._lock:
            self._closed = True
            writer, readers = self._writer, self._readers
        if writer is not None:
            await writer.close()
        if readers is not None:
            await run_alone(readers.shutdown, "windlass-sqlite-close")
        with self._writing:  # another thread may be about to append without the writer
            while self._connections:
                self._connections.pop().close()

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        done = WriteFuture(loop=loop)
        with self._lock:
            self._check_open()
            if self._writer is None:
                self._writer = threads().worker(self._handle, "windlass-sqlite")
            self._writer.put(_Job(work, loop, done))
        value: T = await done
        return value

    async def _read(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            self._check_open()
            if self._readers is None:
                self._readers = threads().pool(2, "windlass-sqlite-read")
            readers = self._readers
        return await asyncio.wrap_future(readers.submit(self._query, query, values))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed; make a new one")

    def _reset_after_fork(self) -> None:
        """Start anew in a forked process: it has no threads of the store, and must not use or close its connections."""
        INHERITED.append((self._connections, self._local))
        self._connections, self._local = set(), threading.local()
        self._writer = self._readers = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._db = self._here = None
        self._heads.clear()

    def _query(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        try:
            if db is None:
                db = self._local.db = self._connect()
            return db.execute(query, values).fetchall()
        except (sqlite3.Error, OSError, UnicodeError) as error:
            self._local.db = None
            self._disconnect(db)
            raise self._error("read", error) from error

    def _handle(self, jobs: list[_Job]) -> None:
        """On the writer thread: commit all waiting jobs together. After an error, reopen the file."""
        try:
            db = self._db = self._db or self._connect()
        except Exception as error:
            _deliver([(job, None, self._as_store_error("open", error)) for job in jobs])
            return
        results, sound = self._commit(db, jobs)
        if not sound:
            self._db = None
            self._disconnect(db)
        _deliver(results)

    def _commit(self, db: sqlite3.Connection, jobs: list[_Job]) -> tuple[list[_Result], bool]:
        """Commit all jobs in one transaction. If that fails, commit each in its own, so that only the culprit fails.

        Returns the result of each job, and whether the connection is still sound. The writer closes an unsound one
        before it delivers the results.
        """
        results: list[_Result] = []
        begun = False
        try:
            with self._writing, self._rollback_on_error(db):
                started = time.perf_counter()
                begun = bool(db.execute("BEGIN IMMEDIATE"))
                for job in jobs:
                    try:
                        results.append((job, job.work(db), None))
                    except WindlassError as error:
                        results.append((job, None, error))
                db.execute("COMMIT")
                self._note_duration((time.perf_counter() - started) / len(jobs))
        except Exception as error:
            if begun and len(jobs) > 1 and not db.in_transaction:
                each = [self._commit(db, [job]) for job in jobs]
                return [result for results, _ in each for result in results], all(sound for _, sound in each)
            failure = self._as_store_error("write", error)
            return [(job, None, failure) for job in jobs], not isinstance(error, sqlite3.Error)
        return results, True

    @contextmanager
    def _rollback_on_error(self, db: sqlite3.Connection) -> Generator[None, None, None]:
        """Undo a failed transaction before another one may begin."""
        try:
            yield
        except Exception:
            self._heads.clear()
            self._slow = SLOW
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    # ------------------------------------------------------------ the file

    def _connect(self, timeout: float | None = None) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wait = self.timeout if timeout is None else timeout
        db = sqlite3.connect(self.path, timeout=wait, isolation_level=None, check_same_thread=False)
        self._connections.add(db)
        try:
            self._check_version(db)
            write_ahead(db, wait)
            db.execute(f"PRAGMA synchronous = {self.synchronous}")
            db.execute("PRAGMA cache_size = -8000")
            db.execute("PRAGMA secure_delete = ON")
            self._migrate(db)
        except BaseException:
            self._disconnect(db)
            raise
        return db

    def _disconnect(self, db: sqlite3.Connection | None) -> None:
        if db is not None:
            self._connections.discard(db)
            db.close()

    def _check_version(self, db: sqlite3.Connection) -> int:
        """The version of the file. A file of a newer version or of another application is refused and not changed.

        The tables are counted first: a process that creates the file right now writes all three in one transaction.
        """
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = int(db.execute("PRAGMA application_id").fetchone()[0])
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if application != APPLICATION and tables:
            raise StoreError(f"{self.path} is an SQLite file of another application; use another file")
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer Windlass (format {version}; this version reads up to {VERSION}); "
                "install the newer version, or use another file. Nothing was changed"
            )
        return version

    def _migrate(self, db: sqlite3.Connection) -> None:
        if self._check_version(db) == VERSION:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            version = self._check_version(db)
            if version == 0:
                _run(db, SCHEMA)
            while 0 < version < VERSION:
                _run(db, MIGRATIONS[version])
                version += 1
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _as_store_error(self, doing: str, error: Exception) -> Exception:
        return self._error(doing, error) if isinstance(error, sqlite3.Error | OSError | UnicodeError) else error

    def _error(self, doing: str, error: Exception) -> StoreError:
        text = str(error)
        for sign, advice in _ADVICE.items():
            if sign in text:
                return StoreError(f"could not {doing} {self.path}: {text}; {advice}")
        return StoreError(f"could not {doing} {self.path}: {text}")


def write_ahead(db: sqlite3.Connection, wait: float) -> None:
    """Switch the file to a write-ahead log.

    Unlike elsewhere, SQLite does not wait here while another process writes: if several processes opened a new file at
    once, all but one would fail.
    """
    until = time.monotonic() + wait
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
            time.sleep(0.005)


def _path(path: str | Path) -> Path:
    """The absolute path of the file. SQLite's ':memory:' is refused: every connection would be a separate store."""
    if str(path) == ":memory:":
        raise ConfigError("an SQLite store is a file, not ':memory:'; for a store in memory use store=\"memory:\"")
    try:
        found = Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"the path {str(path)!r} cannot be resolved: {error}") from error
    if not str(path) or found.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name a file in it" if str(path) else "the path is empty")
    return found


_ADVICE = {
    "locked": "another process holds it for too long: find that process, or give the store a longer `timeout`",
    "busy": "another process holds it for too long: find that process, or give the store a longer `timeout`",
    "full": "free space on the disk and resume the session: all acknowledged records are safe",
    "readonly": "make the file and its folder writable for this user",
    "Permission denied": "make the file and its folder writable for this user",
    "File exists": "part of its path is a file, not a folder: use another path",
    "Not a directory": "part of its path is a file, not a folder: use another path",
    "unable to open": "its folder must exist and be writable for this user",
    "not a database": "it is not an SQLite file, or it is damaged: restore it from a backup, or use another file",
    "malformed": "it is damaged: restore it from a backup, or recover what can be read with `sqlite3 FILE .recover`",
    "disk I/O": "the disk failed or the file was truncated: check the disk, and restore from a backup if necessary",
}


def _new(db: sqlite3.Connection, session: str, change: Change | None) -> _Head:
    now = time.time() if change is None else change.at
    made = db.execute("INSERT INTO sessions (id, started, updated) VALUES (?, ?, ?)", (session, now, now))
    return _Head(made.lastrowid or 0, 0, START)


def _head(db: sqlite3.Connection, session: str) -> _Head | None:
    """The end of a session's log, as its row states it; None if there is no such session."""
    row = db.execute("SELECT number, status, records, head FROM sessions WHERE id = ?", (session,)).fetchone()
    if row is None:
        return None
    number, status, records, head = row
    if status == "erased":
        raise erased_session(session)
    return _Head(number, records, head)


def _length(db: sqlite3.Connection, number: int) -> int:
    """The number of records in the batches of a session."""
    query = "SELECT seq + count FROM batches WHERE session = ? ORDER BY seq DESC LIMIT 1"
    last = db.execute(query, (number,)).fetchone()
    return 0 if last is None else int(last[0])


def _run(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)


def _apply(db: sqlite3.Connection, session: str, number: int, change: Change) -> None:
    if change.status is not None:
        db.execute(
            "UPDATE sessions SET status = ?, agent = coalesce(?, agent), title = CASE WHEN title = '' THEN "
            "coalesce(?, '') ELSE title END, updated = ? WHERE number = ?",
            (change.status, change.agent, change.title, change.at, number),
        )
    if "*" in change.answered:
        db.execute("DELETE FROM asks WHERE session = ?", (number,))
    for answered in change.answered:
        db.execute("DELETE FROM asks WHERE session = ? AND id = ?", (number, key_of(answered)))
    for asked in change.asked.values():
        db.execute(
            "INSERT OR REPLACE INTO asks (session, id, data) VALUES (?, ?, ?)",
            (number, key_of(asked.id), encode(asked)),
        )
    for key in change.taken:
        db.execute("UPDATE inbox SET taken = 1, data = x'' WHERE session = ? AND key = ?", (session, key_of(key)))
