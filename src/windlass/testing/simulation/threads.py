"""The threads of a simulation: their work runs inline, as a whole, at moments that the seed decides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from windlass._threads import InlineThreads, Work

from .lives import LIFE
from .refusals import refuse

T = TypeVar("T")


class SimulatedThreads(InlineThreads):
    """Starts no thread. What a plain tool, hook or observer does happens at one moment of virtual time."""

    def start(self, work: Work, name: str, *, daemon: bool | None = True) -> threading.Thread:
        if name == "windlass-wrap":
            refuse("needs a real thread for a plain wrap", "write the wrap as `async def`")
        refuse("starts an event loop of its own with a *_sync method", "await the async method")

    def lend(self, work: Work) -> None:
        _run_later(work, bare=True)

    def pool(self, size: int, name: str) -> Executor:
        return _SimulatedPool()


class _SimulatedPool(Executor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return in_simulated_thread(lambda: fn(*args, **kwargs))


def in_simulated_thread(fn: Callable[[], T]) -> Future[T]:
    """Run a function as if in a thread."""
    future: Future[T] = Future()

    def fulfil() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(fn())
            except BaseException as error:
                future.set_exception(error)

    _run_later(fulfil)
    return future


def _run_later(work: Work, *, bare: bool = False) -> None:
    life = LIFE.get()
    loop = asyncio._get_running_loop()
    context = copy_context()
    if bare:
        context = Context()
        context.run(LIFE.set, life)
    if loop is None:  # work of a thread that starts work of its own
        context.run(work)
        return
    delay = 0.0 if life is None else life.world.thread_delay()
    loop.call_later(delay, _run_off_loop, loop, work, context=context)


def _run_off_loop(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    asyncio._set_running_loop(None)
    try:
        work()
    finally:
        asyncio._set_running_loop(loop)
