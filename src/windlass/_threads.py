"""The port for threads: everything in Windlass that runs plain code beside the event loop starts it here."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

T = TypeVar("T")
Job = TypeVar("Job")
JobIn = TypeVar("JobIn", contravariant=True)
Work: TypeAlias = Callable[[], object]

_IDLE = 32
"""How many lent threads wait for work; more than that end when they are done."""

_LOOK = 0.1
"""How often, in seconds, somebody who waits for another event loop looks whether it still runs."""


class Worker(Protocol[JobIn]):
    """Does jobs in the order in which they are put. The jobs that wait are done together."""

    def put(self, job: JobIn, /) -> None: ...

    def empty(self) -> bool:
        """Whether no job waits to be started."""
        ...

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the jobs that were put are done. Blocks; False if that took longer than `timeout`."""
        ...

    def close(self) -> None:
        """Finish the jobs that were put, then end. Blocks; may be called more than once."""
        ...


class Threads(Protocol):
    """Starts threads. Only `start` is for work that waits for its caller; the others may run work inline."""

    def start(self, work: Work, name: str, *, daemon: bool | None = True) -> threading.Thread:
        """Start a real thread for work that blocks until its caller, or the caller's event loop, has answered."""
        ...

    def lend(self, work: Work) -> None:
        """Run work in a daemon thread of its own, which may have done other work before."""
        ...

    def pool(self, size: int, name: str) -> Executor:
        """Make a pool that runs at most `size` functions at a time."""
        ...

    def worker(self, handle: Callable[[list[Job]], None], name: str) -> Worker[Job]:
        """Make a worker that passes its jobs to `handle`, in a daemon thread of its own. `handle` must not raise."""
        ...

    def serve(self, step: Callable[[bool], bool], name: str) -> None:
        """Call `step(True)`, which may wait for something to do, in a daemon thread until it returns False.

        Without threads, call `step(False)` here, which does only what is there to do.
        """
        ...


def threads() -> Threads:
    """The implementation in use."""
    return _in_use[-1]


@contextmanager
def use_threads(implementation: Threads) -> Generator[None, None, None]:
    """Use another implementation within a block, in the whole process.

    A pool or worker stays what it was when it was made: enter the block before the first use of an agent or a store.
    """
    _in_use.append(implementation)
    try:
        yield
    finally:
        _in_use.remove(implementation)


async def run_alone(fn: Callable[[], T], name: str) -> T:
    """Run a function in a thread of its own and wait for it. If the wait is cancelled, the thread goes on."""
    pool = threads().pool(1, name)
    try:
        return await asyncio.wrap_future(pool.submit(fn))
    finally:
        pool.shutdown(wait=False)


async def run_in_loop(work: Callable[[], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop | None) -> T:
    """Run some work in the event loop of another thread and wait for it. It runs here if there is no such loop, if it
    is this one, or if it stops before it gets to the work."""
    if loop is not None and loop is not asyncio.get_running_loop() and loop.is_running():
        coroutine = work()
        try:
            there = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
        except RuntimeError:  # it was closed just now
            coroutine.close()
            return await work()
        try:
            while not there.done() and loop.is_running():
                await asyncio.wait([there], timeout=_LOOK)
            if there.done() and not there.cancelled():
                return there.result()
        finally:
            there.cancel()
    return await work()


# ---------------------------------------------------------------- with threads


def start_thread(work: Work, name: str, *, daemon: bool | None = True) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    thread.start()
    return thread


class SystemThreads:
    """The machine's threads.

    As many threads are lent as are busy at once, so that work that blocks does not hold up other work. They are
    daemons: work that blocks for ever does not keep the process from exiting.
    """

    def __init__(self) -> None:
        self._pools: WeakSet[_ThreadPool] = WeakSet()
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process, which does not have the threads."""
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []
        for pool in list(self._pools):
            pool.forget()

    start = staticmethod(start_thread)

    def lend(self, work: Work) -> None:
        with self._lock:
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = SimpleQueue()
            start_thread(partial(self._work, jobs), "windlass-observer")
        jobs.put(work)

    def _work(self, jobs: SimpleQueue[Work]) -> None:
        while True:
            jobs.get()()
            with self._lock:
                if len(self._idle) >= _IDLE:
                    return
                self._idle.append(jobs)

    def pool(self, size: int, name: str) -> Executor:
        pool = _ThreadPool(size, name)
        self._pools.add(pool)
        return pool

    def worker(self, handle: Callable[[list[Job]], None], name: str) -> Worker[Job]:
        return _ThreadWorker(handle, name)

    def serve(self, step: Callable[[bool], bool], name: str) -> None:
        start_thread(partial(_repeat, step, True), name)


class _ThreadPool(ThreadPoolExecutor):
    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, thread_name_prefix=name)
        self._arguments = (size, name)

    def forget(self) -> None:
        """Start anew in a forked process: the executor would wait for threads that are not there."""
        size, name = self._arguments
        super().__init__(size, thread_name_prefix=name)


class _Mark:
    """A place in the queue of a worker that somebody waits for."""

    def __init__(self, *, last: bool) -> None:
        self.last = last
        self.reached = threading.Event()


class _ThreadWorker(Generic[Job]):
    def __init__(self, handle: Callable[[list[Job]], None], name: str) -> None:
        self._handle = handle
        self._jobs: SimpleQueue[Job | _Mark] = SimpleQueue()
        self.put = self._jobs.put
        self.empty = self._jobs.empty
        self._thread = start_thread(self._work, name)

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Do the jobs that wait. On return nothing refers to them: what they hold may be freed."""
        jobs = self._jobs
        batch = [jobs.get()]
        while not jobs.empty():
            batch.append(jobs.get())
        if todo := [job for job in batch if not isinstance(job, _Mark)]:
            self._handle(todo)
        marks = [job for job in batch if isinstance(job, _Mark)]
        for mark in marks:
            mark.reached.set()
        return not any(mark.last for mark in marks)

    def flush(self, timeout: float | None = None) -> bool:
        mark = _Mark(last=False)
        self._jobs.put(mark)
        until = None if timeout is None else time.monotonic() + timeout
        while not mark.reached.wait(1.0 if until is None else min(1.0, max(until - time.monotonic(), 0.0))):
            if not self._thread.is_alive():
                return True
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def close(self) -> None:
        self._jobs.put(_Mark(last=True))
        self._thread.join()


# ---------------------------------------------------------------- without threads


class InlineThreads:
    """Runs work on the caller's thread, at the next turn of its event loop; without a loop, at once.

    As in a thread, work sees no running event loop and no context variables of its caller, so it may call
    `asyncio.run` or `run_sync`. The loop stands still meanwhile: work that waits for it hangs, and a timeout strikes
    only when the work is done. Two things therefore get a real thread: a plain wrap, which waits for `call_next`, and
    `run_sync` in a coroutine, which blocks a running loop.
    """

    start = staticmethod(start_thread)

    def lend(self, work: Work) -> None:
        _run_soon(work)

    def pool(self, size: int, name: str) -> Executor:
        return _InlinePool()

    def worker(self, handle: Callable[[list[Job]], None], name: str) -> Worker[Job]:
        return _InlineWorker(handle)

    def serve(self, step: Callable[[bool], bool], name: str) -> None:
        _repeat(step, False)


class _InlinePool(Executor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        _run_soon(lambda: _fulfil(future, partial(fn, *args, **kwargs)))
        return future


class _InlineWorker(Generic[Job]):
    def __init__(self, handle: Callable[[list[Job]], None]) -> None:
        self._handle = handle
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()  # several threads may each have an event loop

    def put(self, job: Job, /) -> None:
        self._jobs.append(job)
        _run_soon(self._work)

    def empty(self) -> bool:
        return not self._jobs

    def _work(self) -> None:
        with self._lock:
            if todo := [self._jobs.popleft() for _ in range(len(self._jobs))]:
                self._handle(todo)

    def flush(self, timeout: float | None = None) -> bool:
        self._work()
        return True

    def close(self) -> None:
        self._work()


def _repeat(step: Callable[[bool], bool], wait: bool) -> None:
    while step(wait):
        pass


def _run_soon(work: Work) -> None:
    loop = asyncio._get_running_loop()
    if loop is None:
        Context().run(work)
    else:
        loop.call_soon(_run_off_loop, loop, work, context=Context())


def _run_off_loop(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    asyncio._set_running_loop(None)
    try:
        work()
    finally:
        asyncio._set_running_loop(loop)


def _fulfil(future: Future[T], fn: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn())
    except BaseException as error:
        future.set_exception(error)


_SYSTEM = SystemThreads()
_in_use: list[Threads] = [_SYSTEM]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SYSTEM.forget)
