"""An SQLite file in use: its connections, the thread that writes and those that read. It knows nothing of the tables.

All stores of one file with the same settings share one `SQLiteFile`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from windlass._threads import Worker, threads
from windlass.errors import ConfigError, StoreError, WindlassError

from .read_only import copy_of, is_read_only, open_read_only, state_of
from .sharing import INHERITED, Lease, closed, wait_for_closing, watch
from .waiting import WorkFuture

T = TypeVar("T")

QUICK = 200e-6
"""The caller makes commits that are at most this slow (in seconds): waking the writer thread would cost as much."""

PAGE = 2048
"""How many bytes a page of a new file has. Every table and index takes at least one page, and a commit writes whole
pages; most records are much smaller than a page."""

_TRIES = 5
"""How often a read-only file is read again if it was changed meanwhile."""

SLOW = 2
"""After this many slow commits in a row the writer thread takes over; a single slow one may be a checkpoint."""


TOGETHER = 256
"""At most this many writes are committed together: thousands would keep the first of them waiting for the last."""


class Format(NamedTuple):
    """What a store makes of a file. The functions get a connection and the path, for errors.

    `check` raises if the file must not be changed; `migrate` creates or upgrades its tables. `is_current` tells whether
    the file need not be upgraded. `check_current` raises if it was upgraded since it was opened.
    """

    check: Callable[[sqlite3.Connection, Path], object]
    migrate: Callable[[sqlite3.Connection, Path], object]
    is_current: Callable[[sqlite3.Connection], bool]
    check_current: Callable[[sqlite3.Connection, Path], object]


class _Job(NamedTuple):
    """Work for the writer thread, and the future that waits for it on an event loop."""

    work: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    done: WorkFuture


_Result: TypeAlias = tuple[_Job, Any, Exception | None]


def use_file(store: object, path: Path, synchronous: str, timeout: float, form: Format) -> Lease[SQLiteFile]:
    """Use a file for as long as the store lives. It is opened when it is first read or written."""
    key = ("sqlite", os.path.realpath(path), synchronous, timeout, form)
    return Lease(store, str(path), key, lambda: SQLiteFile(path, synchronous, timeout, form))


class SQLiteFile:
    """One writer thread, which commits waiting writes together, and two threads that read.

    Where the disk is quick and no other write waits, the caller commits by itself (`write_here`). `known` is for what
    the stores remember of their last writes; it is emptied when a transaction fails. Only transactions may use it.
    """

    def __init__(self, path: Path, synchronous: str, timeout: float, form: Format) -> None:
        self.path = path
        self.synchronous = synchronous
        self.timeout = timeout
        self.known: OrderedDict[str, Any] = OrderedDict()
        self._format = form
        self._identity: tuple[int, int] | None = None
        self._slow = SLOW
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._writer: Worker[_Job] | None = None
        self._readers: Executor | None = None
        self._local = threading.local()
        self._connections: set[sqlite3.Connection] = set()
        self._db: sqlite3.Connection | None = None
        self._here: sqlite3.Connection | None = None
        self._unsettled: set[WorkFuture] = set()

    # ------------------------------------------------------------ use

    async def read(self, query: str, *values: Any) -> list[Any]:
        return await self._reading(lambda db: db.execute(query, values).fetchall())

    async def snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read several things as they are at one moment."""

        def in_transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN")
            try:
                return work(db)
            finally:
                db.execute("ROLLBACK")

        return await self._reading(in_transaction)

    async def _reading(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            self._check_open()
            if self._readers is None:
                self._readers = threads().pool(2, "windlass-sqlite-read")
            reading = self._readers.submit(self._query, work)
        return await asyncio.wrap_future(reading)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        """Work in a transaction of the writer thread. It is committed when what this returns was awaited.

        While the writer waits for another process, a cancel takes effect at once, and nothing is written.
        """
        loop = asyncio.get_running_loop()
        done = WorkFuture(loop=loop, when_abandoned=self._unsettled.add)
        with self._lock:
            self._check_open()
            if self._writer is None:
                self._writer = threads().worker(self._handle, "windlass-sqlite")
            self._writer.put(_Job(work, loop, done))
        return done.outcome(str(self.path))

    def write_here(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Work in a transaction on the caller's thread, if the disk is fast and no other write is pending.

        None if it was not done: use `write`. The work itself must not return None.
        """
        if self._slow >= SLOW:
            return None
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
            self._format.check_current(db, self.path)
            value = work(db)
            db.execute("COMMIT")
            self._note_duration(time.perf_counter() - started)
            return value
        except sqlite3.Error:
            self._slow = SLOW
            self._here = None
            self.known.clear()
            self._disconnect(db)
            return None
        except BaseException:
            self.known.clear()
            if db is not None:
                db.execute("ROLLBACK")
            raise
        finally:
            self._writing.release()

    def _note_duration(self, seconds: float) -> None:
        """Note how long a commit took."""
        self._slow = 0 if seconds < QUICK else self._slow + 1

    # ------------------------------------------------------------ sharing

    def is_current(self) -> bool:
        """Whether the path still names the file that is open."""
        try:
            return self._identity is None or self._identity == _identity(self.path)
        except OSError:
            return False

    def flush(self) -> None:
        if (writer := self._writer) is not None:
            writer.flush()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            writer, readers = self._writer, self._readers
        if writer is not None:
            writer.close()
        if readers is not None:
            readers.shutdown()
        with self._writing:  # another thread may be about to write without the writer
            while self._connections:
                self._connections.pop().close()

    def forget(self) -> None:
        INHERITED.append((self._connections, self._local))
        self.known.clear()
        self._start_anew()

    def _check_open(self) -> None:
        if self._closed:
            raise closed(str(self.path))

    # ------------------------------------------------------------ on the threads

    def _query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._settle()
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        try:
            if db is None and is_read_only(self.path):
                return self._query_read_only(work)
            if db is None:
                db = self._local.db = self._connect()
            self._format.check_current(db, self.path)
            return work(db)
        except (sqlite3.Error, OSError, UnicodeError) as error:
            self._local.db = None
            self._disconnect(db)
            raise self._error("read", error) from error

    def _query_read_only(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read a file that this process may not write. It stays as it is: an older format is upgraded in a copy."""
        for _ in range(_TRIES):
            state = state_of(self.path)
            copied, copy = getattr(self._local, "copy", (None, None))
            if copy is not None and copied == state:
                return work(copy)
            db, locked = open_read_only(self.path, self.timeout)
            with closing(db):
                self._format.check(db, self.path)
                if self._format.is_current(db):
                    found = work(db)
                    if locked or state == state_of(self.path):
                        return found
                    continue
                self._disconnect(copy)
                copy = copy_of(db)
                self._connections.add(copy)
                self._local.copy = (state, copy)
                self._format.migrate(copy, self.path)
        raise StoreError(f"could not read {self.path}: another process is writing it; try again")

    def _settle(self) -> None:
        """Wait for writes that were abandoned, so that what is read does not change afterwards."""
        if not (unsettled := self._unsettled.copy()):
            return
        if self._writer is not None and not self._writer.flush(self.timeout):
            raise StoreError(
                f"could not read {self.path}: an earlier write has not ended; check the disk, then resume the session"
            )
        self._unsettled -= unsettled

    def _handle(self, jobs: list[_Job]) -> None:
        """On the writer thread: commit the waiting jobs, many of them together."""
        for start in range(0, len(jobs), TOGETHER):
            self._handle_together(jobs[start : start + TOGETHER])

    def _handle_together(self, jobs: list[_Job]) -> None:
        """Commit some jobs. After an error, reopen the file."""
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
                self._format.check_current(db, self.path)
                for job in jobs:
                    if not job.done.begin():
                        continue
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
            self.known.clear()
            self._slow = SLOW
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    # ------------------------------------------------------------ connections

    def _connect(self, timeout: float | None = None) -> sqlite3.Connection:
        watch()
        wait = self.timeout if timeout is None else timeout
        try:
            return self._open(wait)
        except (sqlite3.OperationalError, OSError):
            if timeout is not None or not _out_of_descriptors():
                raise
        gc.collect()  # dropped stores may wait for the garbage collector
        wait_for_closing(wait)
        return self._open(wait)

    def _open(self, wait: float) -> sqlite3.Connection:
        if is_read_only(self.path):
            raise StoreError(
                f"could not write {self.path}: it is read-only, and can only be shown, verified and exported; make the "
                "file and its folder writable for this user, or copy the file to another folder"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        create_private(self.path)
        db = sqlite3.connect(self.path, timeout=wait, isolation_level=None, check_same_thread=False)
        self._connections.add(db)
        try:
            self._format.check(db, self.path)
            db.execute(f"PRAGMA page_size = {PAGE}")  # of a new file
            write_ahead(db, wait)
            db.execute(f"PRAGMA synchronous = {self.synchronous}")
            db.execute("PRAGMA cache_size = -8000")
            db.execute("PRAGMA secure_delete = ON")
            self._format.migrate(db, self.path)
            self._identity = _identity(self.path)
        except BaseException:
            self._disconnect(db)
            raise
        return db

    def _disconnect(self, db: sqlite3.Connection | None) -> None:
        if db is not None:
            self._connections.discard(db)
            db.close()

    # ------------------------------------------------------------ errors

    def _as_store_error(self, doing: str, error: Exception) -> Exception:
        return self._error(doing, error) if isinstance(error, sqlite3.Error | OSError | UnicodeError) else error

    def _error(self, doing: str, error: Exception) -> StoreError:
        text = str(error)
        if ("unable to open" in text or isinstance(error, OSError)) and _out_of_descriptors():
            return StoreError(f"could not {doing} {self.path}: {text}; {_DESCRIPTORS}")
        for sign, advice in _ADVICE.items():
            if sign in text:
                return StoreError(f"could not {doing} {self.path}: {text}; {advice}")
        return StoreError(f"could not {doing} {self.path}: {text}")


def _deliver(results: list[_Result]) -> None:
    """Pass results to the event loops that wait for them, with one wake-up per loop."""
    for loop in {job.loop for job, _, _ in results}:
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            loop.call_soon_threadsafe(_set_results, [result for result in results if result[0].loop is loop])


def _set_results(results: list[_Result]) -> None:
    for job, value, failure in results:
        job.done.deliver(value, failure)


def create_private(path: Path) -> None:
    """Create a file that only this user may read and write, unless it exists.

    SQLite gives the same permissions to the files beside it.
    """
    try:
        made = os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:  # it exists, or SQLite says why it cannot be created
        return
    try:
        if hasattr(os, "fchmod"):  # whatever the umask
            os.fchmod(made, 0o600)
    finally:
        os.close(made)


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


def absolute(path: str | Path) -> Path:
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


def _identity(path: Path) -> tuple[int, int]:
    """Tells a file from another one that takes its place."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _out_of_descriptors() -> bool:
    """Whether the process cannot open as many files as a connection needs. SQLite does not say so."""
    opened: list[int] = []
    try:
        while len(opened) < 4:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for one in opened:
            os.close(one)
    return False


_DESCRIPTORS = (
    "too many files are open: close stores, files and sockets that are not needed, or raise the limit (`ulimit -n`)"
)

_ADVICE = {
    "locked": "another process holds it for too long: find that process, or give the store a longer `timeout`",
    "busy": "another process holds it for too long: find that process, or give the store a longer `timeout`",
    "full": "free space on the disk and resume the session: all acknowledged records are safe",
    "readonly": "make the file and its folder writable for this user",
    "Permission denied": "make the file and its folder writable for this user",
    "File exists": "part of its path is a file, not a folder: use another path",
    "Not a directory": "part of its path is a file, not a folder: use another path",
    "unable to open": "its folder must exist and be writable for this user, and the process must not have too many "
    "open files",
    "not a database": "it is not an SQLite file, or it is damaged: restore it from a backup, or use another file",
    "malformed": "it is damaged: restore it from a backup, or recover what can be read with `sqlite3 FILE .recover`",
    "disk I/O": "the disk failed or the file was truncated: check the disk, and restore from a backup if necessary",
}
