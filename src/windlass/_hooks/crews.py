"""Calls of plain observers in threads, in which an observer that hangs does not hold up the
others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from windlass._threads import threads
from windlass.errors import HookError

CREW = 8
"""How many threads one awaited or durable observer may hold at a time, over all sessions."""


class Crew:
    """The threads of one observer, `CREW` at a time.

    A call that finds none free waits for one, and is dropped if its caller gives up before that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """The answer of the call, or what it raised, as a value: whatever it was, it is not raised
        here."""
        future: Future[Any] = Future()
        context = copy_context()
        with self._lock:
            self._waiting.append((future, lambda: context.run(outcome_of, call)))
            if self._busy == CREW:
                return future
            self._busy += 1
        threads().lend(self._work)
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy -= 1
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(call())


def outcome_of(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, stray(error)


def stray(error: BaseException) -> HookError:
    """What would end a task or a thread, and nobody asked for that, as the failure of the observer
    that raised it."""
    failure = HookError(
        f"it raised {type(error).__name__}{f': {error}' if str(error) else ''}", hook=""
    )
    failure.__cause__ = error
    return failure
