"""Observers: told of facts off the hot path, in order, isolated from the turn and from each other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from windlass.errors import HookError
from windlass.outcomes import error_value
from windlass.protocols import Store
from windlass.records import Fact, HookFailed
from windlass.states import State
from windlass.turns import Host, Turn

from .hooks import Hook

log = logging.getLogger("windlass")

QUEUE_LIMIT = 10_000
"""How many facts may wait for one observer; what comes on top is dropped and counted."""


class Teller(Host, Protocol):
    """The segment that tells of a fact."""

    backlog: Backlog


class Backlog:
    """What one segment has told and nobody has dealt with yet, and the failures that came of it.

    `awaited` are those who must be told before the next point.
    """

    __slots__ = ("_idle", "_lock", "_loop", "awaited", "count", "failures", "lanes")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._idle: asyncio.Event | None = None
        self.awaited: list[tuple[Hook, Fact, Turn[Any]]] = []
        self.count = 0
        self.failures: deque[HookFailed] = deque()
        self.lanes: dict[int, _Lane] = {}

    def add(self) -> None:
        with self._lock:
            self.count += 1

    def done(self) -> None:
        with self._lock:
            self.count -= 1
            wake = self.count == 0 and self._idle is not None
        if wake:
            with suppress(RuntimeError):  # the loop is closed: the turn was over long ago
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._idle is not None and self.count == 0:
            self._idle.set()

    async def drained(self, patience: float) -> None:
        """Wait until all is dealt with, but no longer than `patience`."""
        with self._lock:
            if not self.count:
                return
            self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(patience):
                await self._idle.wait()
        except TimeoutError:
            log.warning("observers still had %d facts to deal with when the turn was over", self.count)


class NoBacklog(Backlog):
    """The backlog of a segment that nobody listens to."""

    __slots__ = ()

    def __init__(self) -> None:
        self.awaited = []
        self.count = 0
        self.failures = deque()
        self.lanes = {}


class _Item:
    __slots__ = ("backlog", "fact", "hook", "turn")

    def __init__(self, hook: Hook, fact: Fact, turn: Turn[Any], backlog: Backlog) -> None:
        self.hook = hook
        self.fact = fact
        self.turn = turn
        self.backlog = backlog


class _Lane:
    """The queue of one function, whatever facts it looks at. It has a worker only while there is something in it."""

    def __init__(self) -> None:
        self.queue: deque[_Item] = deque()
        self.busy = False
        self.dropped = 0
        self.lock = threading.Lock()

    def put(self, item: _Item) -> bool:
        """Queue an item; True if the lane needs a worker."""
        with self.lock:
            if len(self.queue) >= QUEUE_LIMIT:
                self.dropped += 1
                if self.dropped == 1:
                    text = f"observer {item.hook.name!r} is too slow: facts are dropped"
                    _failed(item, HookError(text, hook=item.hook.name), "overflow")
                return False
            item.backlog.add()
            self.queue.append(item)
            if self.busy:
                return False
            self.busy = True
            return True

    def take(self) -> _Item | None:
        with self.lock:
            if self.queue:
                return self.queue.popleft()
            self.busy = False
            return None

    def work(self) -> None:
        """Deal with all that waits, in a thread."""
        while (item := self.take()) is not None:
            try:
                item.hook.fn(item.fact, **_supply(item.hook, item.turn))
            except Exception as error:
                _failed(item, error, "failed")
            finally:
                item.backlog.done()

    async def work_async(self) -> None:
        """Deal with all that waits, in a task."""
        while (item := self.take()) is not None:
            try:
                await tell(item.hook, item.fact, item.turn)
            except Exception as error:
                _failed(item, error, "failed")
            finally:
                item.backlog.done()


class Observers:
    """The observers of an agent."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool: ThreadPoolExecutor | None = None

    def tell(
        self, hooks: Iterable[Hook], fact: Fact, teller: Teller, state: State
    ) -> list[tuple[Hook, Fact, Turn[Any]]]:
        """Queue a fact for those who look on; returns those who must be awaited before the next point."""
        awaited: list[tuple[Hook, Fact, Turn[Any]]] = []
        turn: Turn[Any] = Turn(teller, state=state)
        for hook in hooks:
            if hook.durable:
                continue
            if hook.wait:
                awaited.append((hook, fact, turn))
            else:
                self._queue(hook, _Item(hook, fact, turn, teller.backlog))
        return awaited

    def _queue(self, hook: Hook, item: _Item) -> None:
        lanes = item.backlog.lanes if hook.is_async else self._lanes
        lane = lanes.get(id(hook.fn))
        if lane is None:
            lane = lanes[id(hook.fn)] = _Lane()
        if not lane.put(item):
            return
        if hook.is_async:
            task = asyncio.get_running_loop().create_task(lane.work_async())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(8, thread_name_prefix="windlass-observer")
            self._pool.submit(lane.work)

    async def catch_up(self, hooks: Iterable[Hook], session: str, store: Store, teller: Teller) -> None:
        """Let durable observers read the log behind their cursors: at least once, also what an earlier process left."""
        for hook in hooks:
            seq = await store.cursor(session, hook.name)
            for record in await store.read(session, seq):
                seq += 1
                if isinstance(record, hook.event):
                    record = record.replace(path=session) if hook.inherited else record
                    try:
                        await tell(hook, record, Turn(teller, state=teller.state))
                    except Exception as error:
                        _failed(_Item(hook, record, Turn(teller), teller.backlog), error, "will be told again")
                        return
                await store.advance(session, hook.name, seq)


async def tell(hook: Hook, fact: Fact, turn: Turn[Any]) -> None:
    """Tell one observer of one fact and wait for it."""
    supplied = _supply(hook, turn)
    if hook.timeout is None:
        answer = hook.fn(fact, **supplied)
        if inspect.isawaitable(answer):
            await answer
        return
    async with asyncio.timeout(hook.timeout):
        answer = hook.fn(fact, **supplied)
        if inspect.isawaitable(answer):
            await answer


def note_failure(hook: Hook, fact: Fact, turn: Turn[Any], backlog: Backlog, error: Exception) -> None:
    """Log, count and report that an observer failed."""
    _failed(_Item(hook, fact, turn, backlog), error, "failed")


def _supply(hook: Hook, turn: Turn[Any]) -> dict[str, Any]:
    return {name: turn if source == "turn" else turn.get(source) for name, source in hook.wants}  # type: ignore[arg-type]


def _failed(item: _Item, error: Exception, effect: str) -> None:
    log.warning("observer %r failed on %s: %s", item.hook.name, type(item.fact).__name__, error)
    if not isinstance(item.fact, HookFailed):
        item.backlog.failures.append(HookFailed(item.hook.name, type(item.fact).__name__, error_value(error), effect))
