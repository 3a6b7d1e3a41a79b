"""Handing values from the loop to a consumer, through few places: a consumer that is slow slows the loop down."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ConsumerWait:
    """For how long producers have waited for their consumer, several at once counted once."""

    __slots__ = ("_began", "_monotonic", "_over", "_total", "_waiting")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = self._total = 0.0
        self._waiting = 0
        self._over = asyncio.Event()

    def seconds(self) -> float:
        """How long it was until now."""
        return self._total + (self._monotonic() - self._began if self._waiting else 0.0)

    async def during(self, waiting: Awaitable[None]) -> None:
        """Wait for the consumer."""
        if not self._waiting:
            self._began = self._monotonic()
            self._over.clear()
        self._waiting += 1
        try:
            await waiting
        finally:
            if self._waiting == 1:
                self._total = self.seconds()
                self._over.set()
            self._waiting -= 1

    async def over(self) -> None:
        """Return when nobody waits for the consumer."""
        if self._waiting:
            await self._over.wait()


class Channel(Generic[T]):
    """A channel. A value keeps its place until the consumer comes back for the next; a consumer that leaves ends it.

    With one place (the default) the producer waits for the consumer after each value.
    """

    __slots__ = ("_few", "_idle", "_places", "_ready", "_room", "_values", "closed", "full", "sent")

    def __init__(self, places: int = 1) -> None:
        self._places = places
        self._few = places // 2
        self._values: deque[T] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = False
        self.full = False
        self.closed = False
        self.sent = 0

    def offer(self, value: T) -> None:
        """Hand over a value without waiting. If it is `full` then, whoever can wait for `room` does so."""
        values = self._values
        if self.closed:
            return
        values.append(value)
        if len(values) >= self._places:
            self.full = True
        if self._idle:
            self._idle = False
            self._ready.set()

    def note_sent(self, sent: int) -> None:
        """How many events were numbered so far; another pass over the turn counts on."""
        self.sent = sent

    async def room(self) -> None:
        """Wait until there are places again."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def put(self, value: T) -> None:
        """Hand over a value and wait for room."""
        self.offer(value)
        await self.room()

    async def read(self, produce: Callable[[], Awaitable[Any]]) -> AsyncGenerator[T, None]:
        """What the producer, run in a task of its own, hands over. Its error, if it ends with one, comes last."""
        task = asyncio.ensure_future(produce())
        task.add_done_callback(lambda _: self._ready.set())
        values = self._values
        try:
            while True:
                while values:
                    yield values[0]
                    values.popleft()
                    if self.full and len(values) <= self._few:
                        self.full = False
                        self._room.set()
                if task.done():
                    break
                self._idle = True
                self._ready.clear()
                await self._ready.wait()
            await task
        finally:
            self.closed = True
            self.full = False
            self._room.set()
            if not task.done():
                task.cancel("the consumer left")
                await asyncio.gather(task, return_exceptions=True)
