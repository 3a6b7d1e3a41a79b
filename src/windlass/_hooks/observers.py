"""Observers: told of facts off the hot path, in order, isolated from the turn and from each other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from windlass.errors import HookError, HookTimeout
from windlass.outcomes import error_value
from windlass.records import Fact, HookFailed
from windlass.states import State
from windlass.turns import Host, Turn

from .dispatch import BLOCKED_AFTER, cancelled
from .hooks import Hook
from .readers import Readers
from .threads import THREADS, Crew, outcome_of, stray

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

    __slots__ = ("_closed", "_idle", "_lock", "_loop", "awaited", "count", "failures", "lanes")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._idle: asyncio.Event | None = None
        self._closed = False
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

    async def drained(self, patience: float) -> bool:
        """Wait until all is dealt with, but no longer than `patience`: whether it is."""
        with self._lock:
            if not self.count:
                return True
            self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(patience):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def report(self, failure: HookFailed) -> bool:
        """Have a failure recorded by the segment; False if its turn is over."""
        with self._lock:
            if not self._closed:
                self.failures.append(failure)
            return not self._closed

    def close(self) -> list[HookFailed]:
        """The turn is over and records nothing more, but for these last failures."""
        with self._lock:
            self._closed = True
            left = list(self.failures)
            self.failures.clear()
            return left


class NoBacklog(Backlog):
    """The backlog of a segment that nobody listens to."""

    __slots__ = ()

    def __init__(self) -> None:
        self.awaited = []
        self.count = 0
        self.failures = deque()
        self.lanes = {}


class _Item:
    """A fact for an observer. Without an observer it marks a place in a lane: all that was before it is dealt with."""

    __slots__ = ("backlog", "fact", "hook", "turn")

    def __init__(self, hook: Hook | None, fact: Any, turn: Any, backlog: Backlog) -> None:
        self.hook = hook
        self.fact: Fact = fact
        self.turn: Turn[Any] = turn
        self.backlog = backlog


class _Lane:
    """The queue of one function, whatever facts it looks at. It has a worker only while there is something in it."""

    def __init__(self, observers: Observers) -> None:
        self.observers = observers
        self.queue: deque[_Item] = deque()
        self.busy = False
        self.dropped = 0
        self.lock = threading.Lock()

    def put(self, item: _Item) -> bool:
        """Queue an item; True if the lane needs a worker."""
        with self.lock:
            if item.hook is not None and len(self.queue) >= QUEUE_LIMIT:
                self.dropped += 1
                if self.dropped == 1:
                    text = f"observer {item.hook.name!r} is too slow: facts are dropped"
                    note_failure(item.hook, item.fact, item.backlog, HookError(text, hook=item.hook.name), "overflow")
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
                if item.hook is not None and (error := self._told(item.hook, item)) is not None:
                    note_failure(item.hook, item.fact, item.backlog, error)
            finally:
                item.backlog.done()

    def _told(self, hook: Hook, item: _Item) -> Exception | None:
        call = _call(hook, item.fact, item.turn)
        if hook.timeout is None:
            answer, error = outcome_of(call)
        else:
            future = self.observers.crew(hook).submit(call)
            try:
                answer, error = future.result(hook.timeout)
            except TimeoutError:
                future.cancel()
                return _late(hook)
        if answer is not None and inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            return HookError("it returned something to await but is not async; write it as `async def`", hook=hook.name)
        return error

    async def work_async(self) -> None:
        """Deal with all that waits, in a task."""
        try:
            while (item := self.take()) is not None:
                try:
                    assert item.hook is not None
                    error = await self.observers.outcome(item.hook, item.fact, item.turn, item.backlog)
                    if error is not None:
                        note_failure(item.hook, item.fact, item.backlog, error)
                finally:
                    item.backlog.done()
        finally:  # the loop ends, and what was not told by now is not told
            while (item := self.take()) is not None:
                item.backlog.done()


class Observers:
    """The observers of an agent."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._crews: dict[int, Crew] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.readers = Readers(self)

    def tell(
        self, hooks: Iterable[Hook], fact: Fact, teller: Teller, state: State
    ) -> list[tuple[Hook, Fact, Turn[Any]]]:
        """Queue a fact for those who look on; returns those who must be awaited before the next point."""
        awaited: list[tuple[Hook, Fact, Turn[Any]]] = []
        turn: Turn[Any] = Turn(teller, state=state)
        for hook in hooks:
            if hook.wait:
                awaited.append((hook, fact, turn))
            else:
                self._queue(hook, _Item(hook, fact, turn, teller.backlog))
        return awaited

    def _queue(self, hook: Hook, item: _Item) -> None:
        lanes = item.backlog.lanes if hook.is_async else self._lanes
        lane = lanes.get(id(hook.fn))
        if lane is None:
            lane = lanes[id(hook.fn)] = _Lane(self)
        if not lane.put(item):
            return
        if hook.is_async:
            self.start(lane.work_async())
        else:
            THREADS.start(lane.work)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in a task of its own, which is remembered until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def crew(self, hook: Hook) -> Crew:
        """The threads of an observer."""
        return self._crews.setdefault(id(hook.fn), Crew())

    async def wait_for(self, hook: Hook, fact: Fact, turn: Turn[Any], backlog: Backlog) -> None:
        """Tell an observer that is awaited before the next point."""
        error = await self.outcome(hook, fact, turn, backlog)
        if error is not None:
            note_failure(hook, fact, backlog, error)

    async def outcome(self, hook: Hook, fact: Fact, turn: Turn[Any], backlog: Backlog | None) -> BaseException | None:
        """Tell one observer of one fact and wait for it: what it failed with, if it did.

        Only what was meant for the caller is raised: that somebody cancels its task, or interrupts the process.
        """
        telling = self._outcome(hook, fact, turn, backlog)
        if hook.timeout is None:
            return await telling
        task = self.start(telling)
        try:
            done, _ = await asyncio.wait([task], timeout=hook.timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return stray(asyncio.CancelledError()) if task.cancelled() else task.result()
        task.cancel()
        return _late(hook)

    async def _outcome(self, hook: Hook, fact: Fact, turn: Turn[Any], backlog: Backlog | None) -> BaseException | None:
        try:
            call = _call(hook, fact, turn)
            if hook.in_thread:
                answer, error = await asyncio.wrap_future(self.crew(hook).submit(call))
                if error is not None:
                    return error  # type: ignore[no-any-return]
            else:
                started = perf_counter()
                answer = call()
                if not hook.is_async and backlog is not None and perf_counter() - started > BLOCKED_AFTER:
                    note_failure(hook, fact, backlog, _blocked(hook, perf_counter() - started), "blocked the loop")
            if answer is not None and inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if cancelled():
                raise
            return stray(error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return error if isinstance(error, Exception) else stray(error)
        return None

    async def drain(self, patience: float) -> bool:
        """Wait until everybody has been told everything, but no longer than `patience`: whether they have."""
        clock = asyncio.get_running_loop().time
        until = clock() + patience
        while tasks := self._tasks_here():
            _, late = await asyncio.wait(tasks, timeout=max(until - clock(), 0.0))
            if late:
                return False
        backlog = Backlog()
        for lane in list(self._lanes.values()):
            if lane.put(_Item(None, None, None, backlog)):
                THREADS.start(lane.work)
        return await backlog.drained(max(until - clock(), 0.0))

    async def give_up(self) -> None:
        """End what is still at work on this loop."""
        tasks = self._tasks_here()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)  # one that does not let itself be cancelled is left

    def _tasks_here(self) -> list[asyncio.Task[Any]]:
        loop = asyncio.get_running_loop()
        return [task for task in list(self._tasks) if task.get_loop() is loop]


def note_failure(hook: Hook, fact: Fact, backlog: Backlog, error: BaseException, effect: str = "failed") -> None:
    """Log that an observer failed, and have it recorded. Of a failure to look at failures nothing is recorded."""
    value = error_value(error)
    log.warning("observer %r failed on %s: %s: %s", hook.name, type(fact).__name__, value.type, value.message)
    if not isinstance(fact, HookFailed):
        backlog.report(HookFailed(hook.name, type(fact).__name__, value, effect))


def _call(hook: Hook, fact: Fact, turn: Turn[Any]) -> Callable[[], Any]:
    return lambda: hook.fn(fact, **{n: turn if src == "turn" else turn.get(src) for n, src in hook.wants})  # type: ignore[arg-type]


def _late(hook: Hook) -> HookTimeout:
    text = f"observer {hook.name!r} took longer than {hook.timeout} s"
    return HookTimeout(text, hook=hook.name, event=hook.event.__name__)


def _blocked(hook: Hook, seconds: float) -> HookError:
    text = f"observer {hook.name!r} blocked the event loop for {seconds * 1000:.0f} ms"
    return HookError(f"{text}; make it async or add thread=True", hook=hook.name)
