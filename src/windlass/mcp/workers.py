"""The thread on which all MCP connections of this process live, with an event loop of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_EXIT = 8.0
"""How many seconds the end of the process waits for servers to end."""


class Worker:
    """An event loop in a daemon thread. Agents of any event loop, or of none, use connections through it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self._closers: dict[int, Callable[[], Awaitable[None]]] = {}
        threading.Thread(target=self._work, name="windlass-mcp", daemon=True).start()
        atexit.register(self._close_all)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start some work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work on the loop and wait for it. If the caller is cancelled, the work is cancelled."""
        return await asyncio.wrap_future(self.submit(work))

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work on the loop, and block this thread until it is done."""
        return self.submit(work).result()

    def keep(self, key: object, close: Callable[[], Awaitable[None]]) -> None:
        """Call a function at the end of the process."""
        self._closers[id(key)] = close

    def forget(self, key: object) -> None:
        """Do not call the function of this key."""
        self._closers.pop(id(key), None)

    def _close_all(self) -> None:
        if self.pid != os.getpid() or not self._closers:
            return

        async def close() -> None:
            await asyncio.gather(*[one() for one in list(self._closers.values())], return_exceptions=True)

        try:
            self.submit(close()).result(_EXIT)
        except Exception:  # the servers see the end of their input, and on Linux die with this process
            pass


_lock = threading.Lock()
_worker: Worker | None = None


def worker() -> Worker:
    """The worker of this process, started on first use. A forked child gets its own."""
    global _worker
    with _lock:
        if _worker is None or _worker.pid != os.getpid():
            _worker = Worker()
        return _worker


__all__ = ["Worker", "worker"]
