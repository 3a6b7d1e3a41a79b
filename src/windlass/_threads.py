"""The port for threads: everything in Windlass that runs plain code beside the event loop starts it here."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from importlib import import_module
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Job = TypeVar("Job")
JobIn = TypeVar("JobIn", contravariant=True)
Work: TypeAlias = Callable[[], object]

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
    if not _in_use:
        _in_use.append(import_module("._system_threads", __package__).SYSTEM)  # an import of Windlass needs no thread
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


def start_thread(work: Work, name: str, *, daemon: bool | None = True) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    thread.start()
    return thread


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
        repeat(step, False)


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


def repeat(step: Callable[[bool], bool], wait: bool) -> None:
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


_in_use: list[Threads] = []
