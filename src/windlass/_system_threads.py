"""The machine's threads, behind the port for threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Generic
from weakref import WeakSet

from ._threads import Job, Work, Worker, repeat, start_thread

_IDLE = 32
"""How many lent threads wait for work; more than that end when they are done."""


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
        start_thread(partial(repeat, step, True), name)


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


SYSTEM = SystemThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.forget)
