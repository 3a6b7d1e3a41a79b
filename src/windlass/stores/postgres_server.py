"""A PostgreSQL server in use: threads and connections, and the errors of both. It knows nothing of the tables.

All stores of one address with the same settings share one `ServerConnections`.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from windlass._threads import threads
from windlass.errors import ConfigError, StoreError

from .sharing import INHERITED, Lease, closed, disinherit, watch
from .waiting import WorkFuture

if TYPE_CHECKING:
    from typing import LiteralString

    import psycopg

    from .postgres_connection import BoundedConnection

    Connection: TypeAlias = BoundedConnection

T = TypeVar("T")

_PAUSE = 0.1
"""The longest pause, in seconds, between two looks at whether a write has ended."""


class Settings(NamedTuple):
    """What stores must have in common to share connections. `place` names the server in errors."""

    url: str
    place: str
    schema: str
    max_size: int
    timeout: float


class Format(NamedTuple):
    """What a store makes of a schema.

    `migrate` creates or upgrades the tables, with the first connection. `version` is a query for the version of the
    tables, which every transaction begins with. `check` raises if that version is not the one it should be.
    """

    migrate: Callable[[Connection, Settings], object]
    version: bytes
    check: Callable[[Any, Settings], object]


def settings_of(url: str, schema: str, max_size: int, timeout: float) -> Settings:
    """Check an address and name its server."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise ConfigError(f"a PostgreSQL store needs psycopg ({error}): pip install 'windlass[postgres]'") from error
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise _invalid_address(str(error)) from None
    if "@" in str(parts.get("host", "")) or not re.fullmatch(r"[\d,]*", str(parts.get("port", ""))):
        raise _invalid_address("percent-encode special characters in the user and the password")
    place = f"PostgreSQL at {parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    return Settings(url, place, schema, max_size, timeout)


def _invalid_address(why: str) -> ConfigError:
    """The error for an address that cannot be used. Quoted parts of it are left out: they may contain the password."""
    text = re.sub('".*"', '"…"', why.strip(), flags=re.DOTALL)
    return ConfigError(f"the address of the PostgreSQL store is not valid: {text}")


def use_server(store: object, settings: Settings, form: Format) -> Lease[ServerConnections]:
    """Use a server for as long as the store lives. Connections are made when they are needed."""
    key = ("postgresql", settings, form)
    return Lease(store, f"({settings.place})", key, lambda: ServerConnections(settings, form))


def connect_alone(settings: Settings) -> Connection:
    """A connection that serves one purpose, and whose end the server notices soon. Waits for a server that is gone."""
    import psycopg

    from .postgres_connection import connect

    options = _options(settings.timeout) | {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 3}
    until, pause = time.monotonic() + settings.timeout, 0.05
    while True:
        try:
            db = connect(settings.url, options, until - time.monotonic(), lambda: False)
            break
        except psycopg.OperationalError:
            if time.monotonic() + pause > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    db.limit = settings.timeout + 1.0
    with suppress(psycopg.Error):  # unknown to servers before version 14, and of some systems
        db.execute("SET client_connection_check_interval = 500")
    return db


class _Job:
    """Work for a thread, and the future that waits for it on an event loop.

    `db` is the connection with which it may change something, as long as it may.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, unsettle: Callable[[_Job], None]) -> None:
        self.loop = loop
        self.done = WorkFuture(loop=loop, when_abandoned=lambda _: unsettle(self))
        self.since = time.monotonic()
        self.db: Connection | None = None

    def stopped(self) -> bool:
        return self.done.stopped


class ServerConnections:
    """Up to `max_size` threads with one connection each. The first connection brings the tables up to date.

    Every wait for the server ends: after `timeout` if the server keeps the limit, otherwise about a second later. A
    write whose connection was lost may still be committed by the server. Before anything else is read or written, the
    server's process for that connection is ended, so that what is read does not change afterwards.
    """

    def __init__(self, settings: Settings, form: Format) -> None:
        import psycopg
        import psycopg.conninfo

        self.settings = settings
        self._format = form
        parts = psycopg.conninfo.conninfo_to_dict(settings.url)
        self._options = {key: value for key, value in _options(settings.timeout).items() if key not in parts}
        self._psycopg = psycopg
        self._ready = False
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._workers: Executor | None = None
        self._pending: set[Future[Any]] = set()
        self._local = threading.local()
        self._connections: set[Connection] = set()
        self._unsettled: set[tuple[int, str]] = set()

    # ------------------------------------------------------------ use

    async def do(self, work: Callable[[], T]) -> T:
        """Work in a thread, so that any event loop can wait for it. The work calls `attempt`."""
        job = _Job(asyncio.get_running_loop(), self._unsettle)
        with self._lock:
            if self._closed:
                raise closed(f"({self.settings.place})")
            if self._workers is None:
                self._workers = threads().pool(self.settings.max_size, "windlass-postgres")
            working = self._workers.submit(self._run, job, work)
            self._pending.add(working)
        working.add_done_callback(lambda result: self._deliver(job, result))
        value: T = await job.done.outcome(self.settings.place)
        return value

    def _run(self, job: _Job, work: Callable[[], T]) -> T:
        self._local.job = job
        try:
            return work()
        finally:
            self._local.job = None

    def _deliver(self, job: _Job, result: Future[Any]) -> None:
        """Pass the result of a thread's work to the event loop that waits for it."""
        self._pending.discard(result)
        error = result.exception()
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            job.loop.call_soon_threadsafe(job.done.deliver, None if error else result.result(), error)

    async def read(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return await self.look(lambda db: db.execute(query, values).fetchall())

    async def look(self, work: Callable[[Connection], T]) -> T:
        """Work that only reads."""
        return await self.do(lambda: self.attempt("read", work, reads=True))

    async def snapshot(self, work: Callable[[Connection], T]) -> T:
        """Read several things as they are at one moment."""

        def in_transaction(db: Connection) -> T:
            with db.transaction():
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return work(db)

        return await self.do(lambda: self.attempt("read", in_transaction, reads=True))

    async def write(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Work in a transaction. It is committed when this returns."""
        return await self.do(lambda: self.attempt("write", work, repeatable=repeatable))

    def attempt(
        self, doing: str, work: Callable[[Connection], T], *, reads: bool = False, repeatable: bool = True
    ) -> T:
        """On a thread: work with its connection; a lost one is replaced, once.

        If it is lost during the COMMIT, the outcome is unknown: only `repeatable` work is then done again. If the
        server does not answer, nothing is done again.
        """
        from .postgres_connection import NoAnswer

        job: _Job = self._local.job
        self._check_queue(doing, job)
        retried = False
        while True:
            db: Connection | None = None
            committing = False
            try:
                db = self._connected(job)
                db.caller = job.done
                if self._unsettled:
                    self._settle(doing, db, job)
                if reads:
                    return work(db)
                with self._changing(job, db), self._transaction(db):
                    value = work(db)
                    committing = True
                return value
            except UnicodeError as error:
                raise StoreError(f"could not {doing} {self.settings.place}: {error}") from error
            except self._psycopg.Error as error:
                lost = db is not None and db.closed
                if not lost or retried or isinstance(error, NoAnswer) or (committing and not repeatable):
                    raise self._error(doing, error, unknown=lost and committing) from error
                retried = True
            finally:
                if db is not None:
                    db.caller = None

    @contextmanager
    def _transaction(self, db: Connection) -> Generator[None, None, None]:
        """A transaction. Its first query, sent together with BEGIN, checks the version of the tables."""
        begin = db.execute(b"BEGIN ISOLATION LEVEL READ COMMITTED; " + self._format.version, prepare=False)
        try:
            begin.nextset()
            found = begin.fetchone()
            self._format.check(None if found is None else found[0], self.settings)
            yield
            ended = db.execute("COMMIT").statusmessage
            if ended != "COMMIT":
                raise self._psycopg.OperationalError(f"the server ended the transaction with {ended}")
        except BaseException:
            with suppress(self._psycopg.Error):
                db.execute("ROLLBACK")
            raise

    def _check_queue(self, doing: str, job: _Job) -> None:
        """Raise if a job has waited too long for a thread, or if nobody waits for it any more."""
        place, timeout = self.settings.place, self.settings.timeout
        if job.stopped():
            raise StoreError(f"did not {doing} {place}: nobody waits for it any more")
        if time.monotonic() > job.since + timeout:
            raise StoreError(
                f"could not {doing} {place}: no connection was free for {timeout:g} s; check that the server answers, "
                "or give the store a larger `max_size` or a longer `timeout`"
            )

    # ------------------------------------------------------------ writes whose end is not known

    @contextmanager
    def _changing(self, job: _Job, db: Connection) -> Generator[None, None, None]:
        """A block that may change something. If its connection is lost, that may happen later, too."""
        job.db = db
        try:
            if not job.done.begin():
                raise self._psycopg.OperationalError("nobody waits for the answer any more")
            yield
        finally:
            with self._lock:
                job.db = None
                if db.closed:
                    self._unsettled.add(db.backend)
                else:
                    self._unsettled.discard(db.backend)

    def _unsettle(self, job: _Job) -> None:
        """A job was abandoned."""
        with self._lock:
            if job.db is not None:
                self._unsettled.add(job.db.backend)

    def _settle(self, doing: str, db: Connection, job: _Job) -> None:
        """End the server's processes for lost connections, and wait until they have gone."""
        until, pause = time.monotonic() + self.settings.timeout, 0.01
        while True:
            with self._lock:
                asked = self._unsettled.copy()
            query = "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = ANY(%s)"
            left = asked.intersection(db.execute(query, ([pid for pid, _ in asked],)).fetchall())
            with self._lock:
                self._unsettled -= asked - left
            if not left:
                return
            for pid, _ in left:
                with suppress(self._psycopg.errors.InsufficientPrivilege):
                    db.execute("SELECT pg_terminate_backend(%s)", (pid,))
            if time.monotonic() > until or job.stopped():
                pids = ", ".join(str(pid) for pid, _ in left)
                raise StoreError(
                    f"could not {doing} {self.settings.place}: an earlier write has not ended, and process {pids} of "
                    "the server does not react; resume the session when it does, or end that process"
                )
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)

    # ------------------------------------------------------------ sharing

    def is_current(self) -> bool:
        return True

    def flush(self) -> None:
        wait(self._pending.copy())

    def close(self) -> None:
        with self._lock:
            workers, self._closed = self._workers, True
        if workers is not None:
            workers.shutdown()
        while self._connections:
            self._connections.pop().close()

    def forget(self) -> None:
        INHERITED.append(self._local)
        for db in self._connections:
            disinherit(db)
        self._start_anew()

    # ------------------------------------------------------------ connections

    def _connected(self, job: _Job) -> Connection:
        """The connection of this thread, opened or replaced if necessary.

        Errors of the very first connection are raised at once. Later, the store waits for a server that is gone.
        """
        db: Connection | None = getattr(self._local, "db", None)
        if db is not None and not db.closed:
            return db
        if db is not None:
            self._connections.discard(db)
        until, pause = time.monotonic() + self.settings.timeout, 0.05
        while True:
            try:
                db = self._local.db = self._connect(until - time.monotonic(), job.stopped)
                return db
            except self._psycopg.OperationalError:
                if not self._ready or job.stopped() or time.monotonic() + pause > until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _connect(self, seconds: float, stopped: Callable[[], bool]) -> Connection:
        from .postgres_connection import connect

        watch()
        db = connect(self.settings.url, self._options, seconds, stopped)
        try:
            self._configure(db)
            with self._opening:
                if not self._ready:
                    self._format.migrate(db, self.settings)
                    self._ready = True
        except BaseException:
            db.close()
            raise
        self._connections.add(db)
        return db

    def _configure(self, db: Connection) -> None:
        """Limit all waits. The server is to give up first, because its errors say more.

        It also takes locks away from a process that stalls in a transaction.
        """
        timeout = self.settings.timeout
        db.limit = timeout + 1.0
        db.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
        row = db.execute(
            "SELECT set_config('search_path', %s, false), set_config('lock_timeout', %s, false), "
            "set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false), "
            "pg_backend_pid(), "
            "(SELECT extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid())",
            (self.settings.schema, _milliseconds(timeout), _milliseconds(timeout + 0.5), _milliseconds(timeout)),
        ).fetchone()
        assert row is not None
        db.backend = (row[-2], row[-1])

    # ------------------------------------------------------------ errors

    def _error(self, doing: str, error: psycopg.Error, unknown: bool) -> StoreError:
        text = " ".join((error.diag.message_primary or str(error)).split())
        state = error.sqlstate or next((state for sign, state in _SIGNS.items() if sign in text), "")
        advice = _ADVICE.get(state) or _ADVICE.get(state[:2])
        if advice is None and isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError):
            advice = "check that the server runs and can be reached, then resume the session"
        if unknown:
            text += "; it is not known whether the last records were stored"
        return StoreError(f"could not {doing} {self.settings.place}: {text}" + (f"; {advice}" if advice else ""))


def _milliseconds(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)}ms"


def _options(timeout: float) -> dict[str, Any]:
    """Connection options that limit the wait for a server, even if it is silent because the network is gone."""
    return {
        "connect_timeout": max(2, round(timeout)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round(timeout * 1000),
        "fallback_application_name": "windlass",
    }


_ADVICE = {
    "08": "check that the server runs and can be reached, then resume the session",
    "25006": "the server accepts no writes, it may be a standby: use the address of the primary",
    "28": "check the user, the password and pg_hba.conf",
    "3D": "create the database first",
    "42501": "the user needs the right to create a schema in this database, or must own the existing schema",
    "53100": "free space on the server's disk and resume the session: all acknowledged records are safe",
    "53200": "the server is out of memory: give it more, then resume the session",
    "53300": "the server has no free connection: give the store a smaller `max_size`, or the server more connections",
    "55P03": "another process holds the session's row for too long: find it, or give the store a longer `timeout`",
    "57014": "the server did not finish in time: look for what slows it down, or give the store a longer `timeout`",
    "57": "the server is shutting down or starting: resume the session when it runs",
    "XX": "the server's data may be damaged: look at its log, and restore from a backup if necessary",
}

_SIGNS = {
    'role "': "28000",
    "does not exist": "3D000",
    "authentication failed": "28000",
    "no password supplied": "28000",
    "no pg_hba.conf entry": "28000",
    "too many clients": "53300",
    "connection slots": "53300",
    "is starting up": "57P03",
    "is shutting down": "57P03",
}
"""SQLSTATEs for connection errors that arrive as text only."""
