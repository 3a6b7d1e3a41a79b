"""Who this process is to a store, and whether other processes are alive.

Every process that writes to a store has a random owner id and holds a lock under that id for as long as it runs. The
system frees the lock when the process dies. So a session whose row names an owner is alive if that owner's lock is
held. An owner's name is its id, its process and its host: `3f0c…:4711@web-1`.
"""

from __future__ import annotations

import errno
import gc
import os
import secrets
import select
import socket
import struct
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from windlass.errors import StoreError
from windlass.ownership import Passes

from .sharing import disinherit, wait_for_closing, watch

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path
    from typing import LiteralString

    from .postgres_server import Connection


class Lock(Protocol):
    """The lock that this process holds for a store."""

    def take(self, number: int) -> None:
        """Take the lock with this number, unless this process holds it already."""
        ...

    def close(self) -> None:
        """Free the lock of this process."""
        ...

    def forget(self) -> None:
        """In a forked process: let go of what was inherited, without freeing the parent's lock."""
        ...


LockT = TypeVar("LockT", bound=Lock)


class Owner(Generic[LockT]):
    """This process, as the owner of sessions in one store. All stores of one address share it."""

    def __init__(self, lock: LockT) -> None:
        self.lock = lock
        self._start_anew()

    def _start_anew(self) -> None:
        self.number = secrets.randbits(62)
        self.name = f"{self.number:016x}:{os.getpid()}@{socket.gethostname()}"
        self.passes = Passes(self.name)

    def take(self) -> None:
        """Hold the lock that tells others that this process runs."""
        self.lock.take(self.number)

    def is_alive(self, name: str, is_held: Callable[[int], bool]) -> bool:
        """Whether an owner is another process that runs. For this process, `passes` knows what runs."""
        number = number_of(name)
        return number is not None and number != self.number and is_held(number)

    # ------------------------------------------------------------ sharing

    def is_current(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is pending."""

    def close(self) -> None:
        self.lock.close()

    def forget(self) -> None:
        self.lock.forget()
        self._start_anew()


def number_of(name: str) -> int | None:
    """The number of an owner's lock; None if the name is not an owner's."""
    with suppress(ValueError):
        return int(name.partition(":")[0], 16)
    return None


class FileLocks:
    """Locks of single bytes of one small file beside an SQLite file, each at the offset of its owner's number.

    One file serves all processes, and is never removed: were it, two processes could hold "the same" lock on two
    files. Linux has locks that belong to an open file, which are not freed when the file is opened and closed
    elsewhere in the process. Other systems have locks of the process; there the file is opened once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + "-owners")
        self._store = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._held = False

    def take(self, number: int) -> None:
        with self._lock, self._errors():
            file = self._open()
            if not self._held:
                _take(file, number)
                self._held = True

    def is_held(self, number: int) -> bool:
        with self._lock, self._errors():
            return _is_held(self._open(), number)

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"could not use {self.path}: {error.strerror}; all processes that use the store must be able to write "
                "and lock this file"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._close()

    def forget(self) -> None:
        """A lock of an open file would last as long as any forked process has the file open."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        file, self._file, self._held = self._file, None, False
        if file is not None:
            os.close(file)

    def _open(self) -> int:
        if self._file is not None and not os.fstat(self._file).st_nlink:  # the file was removed: others see a new one
            self._close()
        if self._file is None:
            watch()
            try:
                self._file = self._open_file()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                gc.collect()  # dropped stores may wait for the garbage collector
                wait_for_closing(_PATIENCE)
                self._file = self._open_file()
        return self._file

    def _open_file(self) -> int:
        """Open the file. A new one may be used by all who may use the store, as with the other files of SQLite."""
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        with suppress(FileNotFoundError):
            return os.open(self.path, flags)
        file = os.open(self.path, flags | os.O_CREAT, 0o600)
        with suppress(OSError):
            store = os.stat(self._store)
            if os.geteuid() == 0:
                os.fchown(file, store.st_uid, store.st_gid)
            os.fchmod(file, store.st_mode & 0o666)
        return file


_PATIENCE = 5.0
"""How many seconds to wait for dropped stores to close their files."""


_FLOCK = "hhqqi4x"
"""The layout of `struct flock` on 64-bit Linux: type, whence, start, length, process."""

if sys.platform == "linux":

    def _take(file: int, number: int) -> None:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))

    def _is_held(file: int, number: int) -> bool:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        found: int = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0]
        return found != fcntl.F_UNLCK

elif sys.platform != "win32":

    def _take(file: int, number: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)

    def _is_held(file: int, number: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return True
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)
        return False

else:
    import msvcrt

    def _take(file: int, number: int) -> None:
        os.lseek(file, number, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _is_held(file: int, number: int) -> bool:
        os.lseek(file, number, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return True
        os.lseek(file, number, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
        return False


class ServerLock:
    """An advisory lock of a PostgreSQL server, held by a connection that serves nothing else.

    A pooled connection would give the lock to whatever uses it next. The server frees the lock when the connection
    ends. If it ends while this process lives, the lock is taken again before the next pass; if another process took a
    session over meanwhile, the epoch decides.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._db: Connection | None = None

    def take(self, number: int) -> None:
        with self._lock:
            if self._db is not None:
                if not _has_ended(self._db):
                    return
                self._db.close()
                self._db = None
            watch()
            db = self._connect()
            db.execute("SELECT pg_advisory_lock(%s)", (number,))
            self._db = db

    def show_life(self) -> None:
        """Use the connection. The server notes when: see `signs_of_life`."""
        with self._lock:
            if self._db is not None:
                self._db.execute("SELECT")

    def close(self) -> None:
        with self._lock:
            db, self._db = self._db, None
            if db is not None:
                db.close()

    def forget(self) -> None:
        disinherit(self._db)
        self._lock, self._db = threading.Lock(), None


def _has_ended(db: Connection) -> bool:
    """Whether an idle connection has ended: then its socket has something to read, the end of the stream."""
    return db.closed or _is_readable(db.fileno())


def _is_readable(file: int) -> bool:
    """Whether a socket has something to read. `select` takes no number above 1023, `poll` any."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([file], [], [], 0)[0])
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


_HOLDERS: LiteralString = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid = (%s::bigint >> 32)::int::oid AND objid = (%s::bigint & 4294967295)::oid"
)


def is_held_by_server(db: Connection, number: int) -> bool:
    """Whether some connection to this database holds an advisory lock."""
    row = db.execute(f"SELECT EXISTS ({_HOLDERS})", (number, number)).fetchone()
    return row is not None and bool(row[0])


def signs_of_life(db: Connection) -> dict[int, str]:
    """When the connections that hold advisory locks were last used, as far as the server says, by number."""
    query: LiteralString = (
        "SELECT (classid::bigint << 32) | objid::bigint, state_change::text FROM pg_locks JOIN pg_stat_activity "
        "USING (pid) WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND state_change IS NOT NULL "
        "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return dict(db.execute(query).fetchall())
