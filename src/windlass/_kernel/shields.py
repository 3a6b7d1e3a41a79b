"""Work and cancels: work that must not be broken off, and work that a cancelled turn waits for only
briefly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from windlass.ownership import Passes

T = TypeVar("T")

STORE_PATIENCE = 1.0
"""For how many seconds a turn that was cancelled waits for a store that answers nobody."""

_LOOKS = 4
"""How often the wait looks whether the store has answered anybody. Each look lets the event loop, which may be busy
with thousands of other turns, bring answers in."""


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


async def within(work: Coroutine[Any, Any, T], seconds: float, passes: Passes) -> T:
    """Await work of a store. Leave it and raise `TimeoutError` if for some seconds the store has answered neither
    this nor anybody else: a store that is busy with the turns of others is waited for.

    The work is cancelled twice: a store finishes a write that has begun after one cancel, and abandons it
    after the second.
    """
    task = asyncio.ensure_future(work)
    looks = _LOOKS
    try:
        while looks and not task.done():
            before = passes.answers
            await asyncio.wait([task], timeout=seconds / _LOOKS)
            looks = looks - 1 if passes.answers == before else _LOOKS
    finally:
        if not task.done():
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.cancel()
            task.cancel()
    if not task.done():
        raise TimeoutError
    value = task.result()
    passes.answers += 1
    return value
