"""Observers: told of facts off the hot path, in order, isolated from the turn and from each
other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass._threads import threads
from windlass.errors import HookError, HookTimeout
from windlass.logs import Link
from windlass.outcomes import error_value
from windlass.records import Fact, HookFailed

from .crews import Crew, stray
from .dispatch import BLOCKED_AFTER, cancelled
from .hooks import Hook
from .runs import AnyTurn, Run, call_matching, call_observer

if TYPE_CHECKING:
    from .readers import Readers

log = logging.getLogger("windlass")

QUEUE_LIMIT = 10_000
"""How many facts may wait for one observer; what comes on top is dropped and counted."""


BATCH = 256
"""So many facts in one go wake the thread of a plain observer at once; fewer wait until the event
loop is free."""

Item: TypeAlias = "tuple[Hook | None, Any, AnyTurn, Backlog]"
"""A fact for an observer.

Without an observer it marks a place in a lane: all facts before it are dealt with.
"""


class Backlog:
    """The facts of one pass that observers have not dealt with yet, and the failures that came of
    them.

    `awaited` are the observers to await before the next point; `used` are the lanes that got facts
    since the last wait.
    """

    __slots__ = (
        "_closed",
        "_idle",
        "_lock",
        "awaited",
        "count",
        "failures",
        "lanes",
        "loop",
        "used",
    )

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._idle: asyncio.Future[bool] | None = None
        self._closed = False
        self.awaited: list[tuple[Hook, Fact, AnyTurn]] = []
        self.count = 0
        self.failures: deque[HookFailed] = deque()
        self.lanes: dict[int, _TaskLane] = {}
        self.used: set[_ThreadLane] = set()

    @property
    def busy(self) -> bool:
        """Whether an observer may still be at work."""
        return bool(self.count or self.used)

    def add(self) -> None:
        """One more thing to wait for."""
        with self._lock:
            self.count += 1

    def done(self) -> None:
        """One thing less to wait for."""
        with self._lock:
            self.count -= 1
            wake = self.count == 0 and self._idle is not None
        if wake:
            with suppress(RuntimeError):  # the loop is closed: the turn was over long ago
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self, *, late: bool = False) -> None:
        """End the wait if all is dealt with, or if it has been too long."""
        if self._idle is not None and not self._idle.done() and (late or not self.count):
            self._idle.set_result(not self.count)

    async def drained(self, patience: float) -> bool:
        """Wait until all is dealt with, but no longer than `patience` seconds. Whether it is."""
        used, self.used = self.used, set()
        for lane in used:
            lane.mark(self)
        with self._lock:
            if not self.count:
                return True
            self._idle = self.loop.create_future()
        timer = self.loop.call_later(patience, partial(self._wake, late=True))
        try:
            return await self._idle
        finally:
            timer.cancel()

    def report(self, failure: HookFailed) -> bool:
        """Have the pass record a failure; False if its turn is over."""
        with self._lock:
            if not self._closed:
                self.failures.append(failure)
            return not self._closed

    def close(self) -> list[HookFailed]:
        """The turn is over and records nothing more, except for these last failures."""
        for lane in self.used:
            lane.start()
        with self._lock:
            self._closed = True
            left = list(self.failures)
            self.failures.clear()
            return left


class _ThreadLane:
    """The queue of one plain function, whatever facts it looks at. It has a thread only while facts
    wait.

    `awake` says that the thread works or is about to be started, `running` that it works.
    """

    __slots__ = ("_lock", "_loop", "_observers", "_process", "awake", "dropped", "queue", "running")

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._lock = threading.Lock()
        self.queue: deque[Item] = deque()
        self.awake = self.running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self.dropped = 0

    def put(self, hook: Hook, fact: Fact, turn: AnyTurn, backlog: Backlog) -> None:
        """Queue a fact.

        The thread is started when the event loop is next free, or at once if many facts wait.
        """
        queue = self.queue
        waiting = len(queue)
        if waiting >= QUEUE_LIMIT:
            self._drop(hook, fact, backlog)
            return
        queue.append((hook, fact, turn, backlog))
        backlog.used.add(self)
        if not self.awake:
            self._schedule(backlog.loop)
        elif waiting == BATCH or backlog.loop is not self._loop:
            self.start()  # the loop that was to start it may be blocked, or gone

    def mark(self, backlog: Backlog) -> None:
        """Let a backlog know when all facts queued so far are dealt with."""
        backlog.add()
        self.queue.append((None, None, None, backlog))
        self.start()

    def _drop(self, hook: Hook, fact: Fact, backlog: Backlog) -> None:
        self.dropped += 1
        if self.dropped == 1:
            text = f"observer {hook.name!r} is too slow: facts are dropped"
            note_failure(hook, fact, backlog, HookError(text, hook=hook.name), "overflow")

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self.awake:
                return
            self.awake = True
            self._loop = loop
        loop.call_soon(self.start)

    def start(self) -> None:
        """Start the thread, unless it works already."""
        with self._lock:
            if (
                self.running and self._process == os.getpid()
            ):  # a forked process does not have the thread
                return
            self.awake = self.running = True
            self._process = os.getpid()
        threads().lend(self._work)

    def _work(self) -> None:
        queue = self.queue
        while True:
            while queue:
                hook, fact, turn, backlog = queue.popleft()
                if hook is None:
                    backlog.done()
                elif (error := self._tell(hook, fact, turn)) is not None:
                    note_failure(hook, fact, backlog, error)
            with self._lock:  # a fact put after this look at the queue finds the lane asleep
                self.awake = self.running = False
                if not queue:
                    return
                self.awake = self.running = True

    def _tell(self, hook: Hook, fact: Fact, turn: AnyTurn) -> Exception | None:
        """Tell an observer of a fact: what it failed with, if it did."""
        try:
            if hook.timeout is None:
                answer = hook.fn(fact) if turn is None else call_observer(hook, fact, turn)
            else:
                future = self._observers.crew(hook).submit(lambda: call_observer(hook, fact, turn))
                try:
                    answer, error = future.result(hook.timeout)
                except TimeoutError:
                    future.cancel()
                    return _late(hook)
                if error is not None:
                    return error  # type: ignore[no-any-return]
        except Exception as error:
            return error
        except BaseException as error:
            return stray(error)
        if answer is None or not inspect.isawaitable(answer):
            return None
        if inspect.iscoroutine(answer):
            answer.close()
        return HookError(
            "it returned an awaitable but is not async; write it as `async def`", hook=hook.name
        )


class _TaskLane:
    """The queue of one async function in one pass. It has a task only while facts wait.

    The backlog counts the task, not its facts.
    """

    __slots__ = ("_busy", "_observers", "dropped", "queue")

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._busy = False
        self.queue: deque[tuple[Hook, Fact, AnyTurn]] = deque()
        self.dropped = 0

    def put(self, hook: Hook, fact: Fact, turn: AnyTurn, backlog: Backlog) -> None:
        """Queue a fact, and start a task if none works."""
        if len(self.queue) >= QUEUE_LIMIT:
            self.dropped += 1
            if self.dropped == 1:
                text = f"observer {hook.name!r} is too slow: facts are dropped"
                note_failure(hook, fact, backlog, HookError(text, hook=hook.name), "overflow")
            return
        self.queue.append((hook, fact, turn))
        if not self._busy:
            self._busy = True
            backlog.add()
            self._observers.start(self._work(backlog))

    async def _work(self, backlog: Backlog) -> None:
        queue = self.queue
        try:
            while queue:
                hook, fact, turn = queue.popleft()
                error = await self._observers.outcome(hook, fact, turn, backlog)
                if error is not None:
                    note_failure(hook, fact, backlog, error)
        finally:
            self._busy = False
            queue.clear()  # the loop ends, and what was not told by now is not told
            backlog.done()


class Observers:
    """The observers of an agent."""

    def __init__(self) -> None:
        self._lanes: dict[int, _ThreadLane] = {}
        self._crews: dict[int, Crew] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @cached_property
    def readers(self) -> Readers:
        """The readers of durable observers, which most agents do not have."""
        from .readers import Readers

        return Readers(self)

    def queue(self, hook: Hook, fact: Fact, turn: AnyTurn, backlog: Backlog) -> None:
        """Queue a fact for an observer that nobody waits for."""
        if hook.is_async:
            key = id(hook.fn)
            if key not in backlog.lanes:
                backlog.lanes[key] = _TaskLane(self)
            backlog.lanes[key].put(hook, fact, turn, backlog)
            return
        self.lane(hook).put(hook, fact, turn, backlog)

    def lane(self, hook: Hook) -> _ThreadLane:
        """The queue of a plain observer, in this agent."""
        lane = self._lanes.get(id(hook.fn))
        if lane is None:
            lane = self._lanes.setdefault(id(hook.fn), _ThreadLane(self))
        hook.lane = lane
        return lane

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in a task of its own, which is remembered until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def crew(self, hook: Hook) -> Crew:
        """The threads of an observer."""
        return self._crews.setdefault(id(hook.fn), Crew())

    async def wait_for(self, hook: Hook, fact: Fact, turn: AnyTurn, backlog: Backlog) -> None:
        """Tell an observer that is awaited before the next point."""
        error = await self.outcome(hook, fact, turn, backlog)
        if error is not None:
            note_failure(hook, fact, backlog, error)

    def outcome(
        self,
        hook: Hook,
        fact: Fact,
        turn: AnyTurn,
        backlog: Backlog | None,
        link: Link | None = None,
    ) -> Coroutine[Any, Any, BaseException | None]:
        """Tell one observer of one fact and wait for it: what it failed with, if it did.

        Only what was meant for the caller is raised: that somebody cancels its task, or interrupts
        the process.
        """
        call = partial(call_matching if hook.durable else call_observer, hook, fact, turn, link)
        telling = self._outcome(hook, call, fact, backlog)
        return telling if hook.timeout is None else self._in_time(hook, telling)

    async def _in_time(
        self, hook: Hook, telling: Coroutine[Any, Any, BaseException | None]
    ) -> BaseException | None:
        """The outcome of an observer that has a timeout."""
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

    async def tell(self, run: Run) -> BaseException | None:
        """Tell a durable observer of several facts, or of some of them: what it failed with, if it
        did."""
        hook = run.hook
        if not hook.in_thread or hook.timeout is not None:
            fact, turn, link = run.facts[run.done]
            error = await self.outcome(hook, fact, turn, None, link)
            run.done += error is None
            return error
        try:
            error = await self._outcome(hook, run, None, None)
        except BaseException:
            run.stop()
            raise
        if error is None:
            run.finish_answer()
        return error

    async def _outcome(
        self, hook: Hook, call: Callable[[], Any], fact: Fact | None, backlog: Backlog | None
    ) -> BaseException | None:
        try:
            if hook.is_async:
                answer = call()
            elif hook.in_thread:
                future = self.crew(hook).submit(call)
                answer, error = await asyncio.wrap_future(future)
                if error is not None:
                    return error  # type: ignore[no-any-return]
            else:
                started = perf_counter()
                answer = call()
                held = perf_counter() - started
                if fact is not None and backlog is not None and held > BLOCKED_AFTER:
                    note_failure(hook, fact, backlog, _blocked(hook, held), "blocked the loop")
            if answer is not None and (hook.is_async or inspect.isawaitable(answer)):
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
        """Wait until everybody has been told everything, but no longer than `patience`: whether
        they have."""
        clock = asyncio.get_running_loop().time
        until = clock() + patience
        while tasks := self._tasks_here():
            _, late = await asyncio.wait(tasks, timeout=max(until - clock(), 0.0))
            if late:
                return False
        backlog = Backlog()
        for lane in list(self._lanes.values()):
            lane.mark(backlog)
        return await backlog.drained(max(until - clock(), 0.0))

    async def give_up(self) -> None:
        """End what is still at work on this loop."""
        tasks = self._tasks_here()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(
                tasks, timeout=1.0
            )  # one that does not let itself be cancelled is left

    def _tasks_here(self) -> list[asyncio.Task[Any]]:
        loop = asyncio.get_running_loop()
        return [task for task in list(self._tasks) if task.get_loop() is loop]


def is_wanted(hook: Hook, fact: Fact, backlog: Backlog) -> bool:
    """Whether the conditions of an observer hold for a fact.

    They are asked when the fact happens, so that nothing is queued in vain. A condition that raises
    is a failure of the observer.
    """
    try:
        return hook.matches is None or bool(hook.matches(fact))
    except Exception as error:
        note_failure(hook, fact, backlog, error)
        return False


def note_failure(
    hook: Hook, fact: Fact, backlog: Backlog, error: BaseException, effect: str = "failed"
) -> None:
    """Log that an observer failed, and have it recorded.

    Of a failure to look at failures nothing is recorded.
    """
    value = error_value(error)
    log.warning(
        "observer %r failed on %s: %s: %s",
        hook.name,
        type(fact).__name__,
        value.type,
        value.message,
    )
    if not isinstance(fact, HookFailed):
        backlog.report(HookFailed(hook.name, type(fact).__name__, value, effect))


def _late(hook: Hook) -> HookTimeout:
    text = f"observer {hook.name!r} took longer than {hook.timeout} s"
    return HookTimeout(text, hook=hook.name, event=hook.event.__name__)


def _blocked(hook: Hook, seconds: float) -> HookError:
    text = f"observer {hook.name!r} blocked the event loop for {seconds * 1000:.0f} ms"
    return HookError(f"{text}; make it async or add thread=True", hook=hook.name)
