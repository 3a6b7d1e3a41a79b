"""Wake-ups for readers of logs in other processes: NOTIFY after an append, but only while somebody listens.

A process that listens to sessions holds an exclusive advisory lock for each of their buckets. An append tries to share
the lock of its bucket, which costs about a microsecond. If it cannot, somebody listens, and it sends a notification
after its COMMIT: within the transaction, NOTIFY would let all commits of the database wait for each other. What is lost
meanwhile costs a reader one poll.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from windlass._threads import threads

from .postgres_server import connect_alone
from .sharing import disinherit, watch

if TYPE_CHECKING:
    from typing import LiteralString

    from .postgres_server import Connection, Settings

_BUCKETS = 64
"""Sessions share locks, so that a process holds few of them however many sessions it listens to."""

_LOOK = 0.2
"""How often, in seconds, the locks of new listeners are taken."""

_LINGER = 5.0
"""For how many seconds the connection stays open after the last listener has left."""

SHARED: LiteralString = "pg_try_advisory_xact_lock_shared(%s, %s)"
"""Whether nobody listens to a bucket. The lock is freed by the end of the transaction."""


class _Listener(NamedTuple):
    ring: Callable[[], None]
    ends: bool


def room_of(schema: str) -> int:
    """What the locks of a schema begin with, and its channel is named after."""
    return int.from_bytes(blake2b(schema.encode(), digest_size=4).digest(), "big", signed=True)


def bucket_of(session: str, ends: bool) -> int:
    """The lock of a session, its sub-agents included: for all appends, or only for those that end a turn or let it
    wait."""
    return zlib.crc32(root_of(session).encode()) % _BUCKETS + _BUCKETS * ends


def root_of(session: str) -> str:
    """The session at the root of another."""
    return session.partition("//")[0]


def channel_of(schema: str) -> str:
    """The name of the channel of a schema."""
    return f"windlass_{room_of(schema) & 0xFFFFFFFF:08x}"


class WakeUps:
    """The listeners of this process in one schema, and the connection that hears of appends, while there are any."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._room = room_of(settings.schema)
        self._channel = channel_of(settings.schema)
        self._start_anew()

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, list[_Listener]] = {}
        self._thread: threading.Thread | None = None
        self._db: Connection | None = None
        self._closed = False

    def listen(self, session: str, ring: Callable[[], None], ends: bool) -> Callable[[], None]:
        """Call `ring`, on any thread, after appends to a session; returns how to end that."""
        root, listener = root_of(session), _Listener(ring, ends)
        with self._lock:
            self._listeners.setdefault(root, []).append(listener)
            if self._thread is None and not self._closed:
                self._thread = threads().start(self._run, "windlass-wake-ups")

        def leave() -> None:
            with self._lock, suppress(KeyError, ValueError):
                self._listeners[root].remove(listener)
                if not self._listeners[root]:
                    del self._listeners[root]

        return leave

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        import psycopg

        held, last = set[int](), time.monotonic()
        while True:
            with self._lock:
                wanted = {bucket_of(root, one.ends) for root, those in self._listeners.items() for one in those}
                now = time.monotonic()
                last = now if wanted else last
                if self._closed or now > last + _LINGER:
                    self._thread = None
                    db, self._db = self._db, None
                    break
            try:
                if (db := self._db) is None:
                    watch()
                    held, db = set(), connect_alone(self._settings)
                    db.execute(f"LISTEN {self._channel}".encode())
                    self._db = db
                self._hold(db, wanted, held)
                for heard in db.notifies(timeout=_LOOK):
                    self._ring(heard.payload)
            except psycopg.Error:
                db, self._db = self._db, None
                if db is not None:
                    db.close()
                time.sleep(_LOOK)
        if db is not None:
            db.close()

    def _hold(self, db: Connection, wanted: set[int], held: set[int]) -> None:
        """Hold the locks that are wanted. One that another process holds already does the same for this one."""
        if new := wanted - held:
            query = "SELECT bucket FROM unnest(%s::int[]) bucket WHERE pg_try_advisory_lock(%s, bucket)"
            held |= {bucket for (bucket,) in db.execute(query, (sorted(new), self._room)).fetchall()}
        if old := held - wanted:
            query = "SELECT pg_advisory_unlock(%s, bucket) FROM unnest(%s::int[]) bucket"
            db.execute(query, (self._room, sorted(old)))
            held -= old

    def _ring(self, payload: str) -> None:
        ends, root = payload[:1] == "e", payload[1:]
        with self._lock:
            listeners = list(self._listeners.get(root, ()))
        for listener in listeners:
            if ends or not listener.ends:
                listener.ring()

    # ------------------------------------------------------------ sharing

    def is_current(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is pending."""

    def close(self) -> None:
        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            thread.join(5 * _LOOK)

    def forget(self) -> None:
        disinherit(self._db)
        self._start_anew()
