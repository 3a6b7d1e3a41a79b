"""A PostgreSQL connection whose waits all end: when the time is over, or when nobody waits for the answer any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from windlass._threads import threads

if TYPE_CHECKING:
    from .waiting import WorkFuture

T = TypeVar("T")

INTERVAL = 0.1
"""How often, in seconds, a wait looks whether it should go on."""


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time, or nobody waits for its answer any more."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Closes itself if a statement takes longer than `limit` seconds, or if `caller` stopped and the server is silent.

    Limits that the server keeps do not help if its process is stopped or the network is gone. `backend` identifies the
    server's process for this connection, also among those that had the same number.
    """

    limit: float | None = None
    caller: WorkFuture | None = None
    backend: tuple[int, str] = (0, "")

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **options: Any) -> T:
        return super().wait(self._bounded(gen), *given, **options)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The same generator, which psycopg resumes when the socket is ready, and otherwise about every `INTERVAL`."""
        until = None if self.limit is None else time.monotonic() + self.limit
        self._check_caller()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready:
                    self._check_caller()
                if until is not None and time.monotonic() > until:
                    self.close()
                    raise NoAnswer(f"the server did not answer within {self.limit:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            gen.close()

    def _check_caller(self) -> None:
        if self.caller is not None and self.caller.stopped:
            self.close()
            raise NoAnswer("nobody waits for the answer any more")

    @contextmanager
    def without_limit(self) -> Generator[None, None, None]:
        """Let statements take as long as they need, for upgrades of large tables. Use it around a transaction."""
        limit, self.limit = self.limit, None
        try:
            with self.transaction():
                self.execute("SET LOCAL statement_timeout = 0")
                yield
        finally:
            self.limit = limit


def connect(url: str, options: dict[str, Any], seconds: float, stopped: Callable[[], bool]) -> BoundedConnection:
    """Connect within some seconds, in a thread of its own.

    libpq takes at least two seconds, and waits for a name server without any limit. A connection that comes too late is
    closed.
    """
    connecting: Future[BoundedConnection] = Future()
    threads().start(lambda: _connect(connecting, url, options), "windlass-postgres-connect")
    until = time.monotonic() + seconds
    while not connecting.done() and not stopped() and (left := until - time.monotonic()) > 0:
        wait([connecting], min(INTERVAL, left))
    if connecting.cancel():
        raise NoAnswer(f"the server did not answer within {seconds:.3g} s")
    return connecting.result()


def _connect(connecting: Future[BoundedConnection], url: str, options: dict[str, Any]) -> None:
    db: BoundedConnection | None = None
    try:
        db = BoundedConnection.connect(url, autocommit=True, **options)
        connecting.set_result(db)
    except InvalidStateError:  # it was given up
        if db is not None:
            db.close()
    except Exception as error:
        with suppress(InvalidStateError):
            connecting.set_exception(error)
