"""Work and cancels: work that must not be broken off, and work that a cancelled turn waits for only
briefly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STORE_PATIENCE = 1.0
"""How many seconds a store has for a read or a write of a turn that was cancelled."""


async def shielded(work: Coroutine[Any, Any, T], patience: float | None = None) -> T:
    """Await work that must not be broken off: a cancel is raised when the work is done.

    `patience` bounds the wait from the cancel on.
    """
    task = asyncio.ensure_future(work)
    clock = asyncio.get_running_loop().time
    cancelled: asyncio.CancelledError | None = None
    until: float | None = None
    while not task.done() and (until is None or clock() < until):
        try:
            await asyncio.wait([task], timeout=None if until is None else until - clock())
        except asyncio.CancelledError as error:
            cancelled = error
            if until is None and patience is not None:
                until = clock() + patience
    if cancelled is not None:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise cancelled
    return task.result()


async def within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await work for some seconds, then leave it and raise `TimeoutError`.

    It is cancelled twice: a store finishes a write that has begun after one cancel, and abandons it
    after the second.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.cancel()
            task.cancel()
    if not task.done():
        raise TimeoutError
    return task.result()
