"""Handing values from the loop to a consumer, one at a time: the loop waits until the consumer comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """A channel of one place. A slow consumer slows the producer; one that leaves ends it."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._ready = asyncio.Event()
        self._taken = asyncio.Event()

    async def put(self, value: T) -> None:
        """Hand over a value and wait until the consumer asks for the next one."""
        self._taken.clear()
        self._values.append(value)
        self._ready.set()
        await self._taken.wait()

    async def read(self, produce: Callable[[], Awaitable[T]]) -> AsyncGenerator[T, None]:
        """What the producer, run in a task of its own, hands over; last of all, what it returns."""
        task = asyncio.ensure_future(produce())
        task.add_done_callback(lambda _: self._ready.set())
        try:
            while self._values or not task.done():
                await self._ready.wait()
                self._ready.clear()
                if self._values:
                    yield self._values.pop()
                    self._taken.set()
            yield await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
