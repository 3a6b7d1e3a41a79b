"""One open file or server per address and process: stores of the same address share it, and the last one closes it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from windlass._threads import run_alone, threads
from windlass.errors import StoreClosed

log = logging.getLogger("windlass")


class Resource(Protocol):
    """What stores share: its threads and its connections."""

    def is_current(self) -> bool:
        """Whether a new store may use it; false if what it has open is no longer what its address names."""
        ...

    def flush(self) -> None:
        """Wait for the writes that have been put so far. Blocks."""
        ...

    def close(self) -> None:
        """Finish pending work, end the threads, close the connections. Blocks; may be called more than once."""
        ...

    def forget(self) -> None:
        """Start anew in a forked process: it has no threads, and must not use or close inherited connections."""
        ...


R = TypeVar("R", bound=Resource)


class _Entry:
    """A resource and the stores that use it, each as a token."""

    def __init__(self, key: Hashable, resource: Any) -> None:
        self.key = key
        self.resource = resource
        self.users: set[object] = set()


_Dropped: TypeAlias = "tuple[_Entry, object] | threading.Event | None"


class Lease(Generic[R]):
    """A store's use of a shared resource. It begins at the first `get`, and ends with `end` or when the store is
    garbage collected.

    A finalizer may run at any point of any thread, so it takes no lock and waits for nothing: it only puts the entry on
    a queue. A thread of its own closes what nobody uses any more, see `watch`.
    """

    def __init__(self, store: object, name: str, key: Hashable, make: Callable[[], R]) -> None:
        self._store = weakref.ref(store)
        self._name = name
        self._key = key
        self._make = make
        self._user = object()
        self._ended = False
        self._entry: _Entry | None = None
        self._resource: R | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        threads()  # loads them now: when the resource is made, no file may be left to open

    def get(self) -> R:
        """The resource. Raises if the store is closed."""
        found = self._resource
        return self._begin() if found is None else found

    def _begin(self) -> R:
        with _state.lock:
            if self._ended:
                raise closed(self._name)
            if self._entry is None:
                key = (self._key, threads())
                entry = _state.entries.get(key)
                if entry is None or not entry.resource.is_current():
                    entry = _state.entries[key] = _Entry(key, self._make())
                    _state.open.add(entry)
                entry.users.add(self._user)
                self._entry = entry
                self._finalizer = weakref.finalize(self._store(), _drop, entry, self._user)
                self._finalizer.atexit = False
            found: R = self._entry.resource
            self._resource = found
            return found

    async def end(self) -> None:
        """Stop using the resource. Waits for pending writes; the last user closes the resource."""
        with _state.lock:
            self._ended, self._resource = True, None
            entry, finalizer = self._entry, self._finalizer
        if entry is None or finalizer is None:
            return
        finalizer.detach()
        last = _leave(entry, self._user)
        await run_alone(partial(_close, entry) if last else entry.resource.flush, "windlass-close")


def closed(name: str) -> StoreClosed:
    """The error for the use of a store that was closed."""
    return StoreClosed(f"the store {name} is closed; make a new one")


def watch() -> None:
    """Start the thread that closes what is dropped, unless it runs. It ends when nothing is open any more.

    A resource calls this before it opens anything. A forked process has no such thread until then. Without threads,
    what was dropped so far is closed here.
    """
    with _state.lock:
        if _state.watched:
            return
        _state.watched = True
    threads().serve(_state.close_next, "windlass-stores")


def wait_for_closing(seconds: float) -> None:
    """Wait until everything is closed whose stores were dropped before."""
    watch()
    done = threading.Event()
    with _state.lock:
        if not _state.watched:
            return
        _state.dropped.put(done)
    done.wait(seconds)


def _drop(entry: _Entry, user: object) -> None:
    """A store was garbage collected."""
    _state.dropped.put((entry, user))


def _leave(entry: _Entry, user: object) -> bool:
    """Note that a store does not use an entry any more. Whether nobody does; then nobody will."""
    with _state.lock:
        entry.users.discard(user)
        if not entry.users and _state.entries.get(entry.key) is entry:
            del _state.entries[entry.key]
        return not entry.users


def _close(entry: _Entry) -> None:
    try:
        entry.resource.close()
    finally:
        with _state.lock:
            _state.open.discard(entry)
            if not _state.open:
                _state.dropped.put(None)


class _State:
    """What is open in this process. A forked process gets a new one for the same entries."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[Hashable, _Entry] = {}
        self.open: set[_Entry] = set()
        self.dropped: SimpleQueue[_Dropped] = SimpleQueue()
        self.watched = False

    def close_next(self, wait: bool) -> bool:
        """Close the resource of the next store that is dropped, if no other store uses it. Whether to go on."""
        try:
            dropped = self.dropped.get(wait)
        except Empty:
            dropped = None
        if isinstance(dropped, tuple):
            entry, user = dropped
            if _leave(entry, user):
                try:
                    _close(entry)
                except Exception:
                    log.exception("a store that was dropped could not be closed")
        elif dropped is not None:
            dropped.set()
        with self.lock:
            self.watched = not self.dropped.empty() or (wait and bool(self.open))
            return self.watched


_state = _State()

# ---------------------------------------------------------------- forks

INHERITED: list[object] = []
"""Connections inherited across a fork, parked so that they are neither used nor closed."""


class Socket(Protocol):
    """A connection to a server."""

    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...


def disinherit(connection: Socket | None) -> None:
    """In a forked process: let go of a connection of the parent without a word to the server.

    The server sees that the parent died when the last process with the socket open has closed it; until then the
    parent's locks are held. The number of the socket stays in use: its library may still write to it.
    """
    if connection is not None and not connection.closed:
        INHERITED.append(connection)
        nothing = os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        os.dup2(nothing, connection.fileno(), inheritable=False)
        os.close(nothing)


_AFTER_FORK: set[weakref.WeakMethod[Callable[[], None]]] = set()


def call_after_fork(method: Callable[[], None]) -> None:
    """Have a store's method called in every forked child process."""
    _AFTER_FORK.add(weakref.WeakMethod(method, _AFTER_FORK.discard))


def _after_fork() -> None:
    """Start anew, with the same entries. A thread of the parent may hold a lock, or may be closing an entry."""
    global _state
    parent, _state = _state, _State()
    _state.entries, _state.open = parent.entries, parent.open
    while not parent.dropped.empty():
        _state.dropped.put(parent.dropped.get())
    for entry in _state.open:
        entry.resource.forget()
    for reference in list(_AFTER_FORK):
        if (method := reference()) is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
