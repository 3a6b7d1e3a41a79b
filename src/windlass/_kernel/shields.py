"""Work that must not be broken off: a cancel waits until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
