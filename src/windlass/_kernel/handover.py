"""Handing values from the loop to a consumer, one at a time: the loop waits until the consumer comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """A channel of one place. A slow consumer slows the producer; one that leaves ends it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[T] = asyncio.Queue(1)
        self._taken = asyncio.Event()

    async def put(self, value: T) -> None:
        """Hand over a value and wait until the consumer asks for the next one."""
        self._taken.clear()
        await self._queue.put(value)
        await self._taken.wait()

    async def read(self, produce: Callable[[], Awaitable[T]]) -> AsyncGenerator[T, None]:
        """What the producer, run in a task of its own, hands over; last of all, what it returns."""
        task = asyncio.ensure_future(produce())
        try:
            while not task.done():
                getter = asyncio.ensure_future(self._queue.get())
                await asyncio.wait({getter, task}, return_when=asyncio.FIRST_COMPLETED)
                if not getter.done():
                    getter.cancel()
                    break
                yield getter.result()
                self._taken.set()
            yield await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
