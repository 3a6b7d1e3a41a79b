"""A bounded channel from the loop to a consumer: a slow consumer slows the loop down."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PLACES = 64
"""How many deltas and facts may wait for the consumer before the turn waits for it."""


class ConsumerWait:
    """How long producers have waited for their consumer. Overlapping waits count once."""

    __slots__ = ("_began", "_idle", "_monotonic", "_total", "_waiting")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = self._total = 0.0
        self._waiting = 0
        self._idle = asyncio.Event()

    def seconds(self) -> float:
        """The time waited until now."""
        return self._total + (self._monotonic() - self._began if self._waiting else 0.0)

    async def during(self, waiting: Awaitable[None]) -> None:
        """Await something and count the time as a wait for the consumer."""
        if not self._waiting:
            self._began = self._monotonic()
            self._idle.clear()
        self._waiting += 1
        try:
            await waiting
        finally:
            if self._waiting == 1:
                self._total = self.seconds()
                self._idle.set()
            self._waiting -= 1

    async def over(self) -> None:
        """Return when no producer waits for the consumer."""
        if self._waiting:
            await self._idle.wait()


class Channel(Generic[T]):
    """A channel with a number of places.

    A value keeps its place until the consumer asks for the next. If the consumer leaves, the
    channel ends. With one place (the default) the producer waits for the consumer after each value.
    `bells` are called after each value, for watchers that are not the consumer.
    """

    __slots__ = (
        "_idle", "_places", "_ready", "_resume_below", "_room", "_values", "bells", "closed", "full", "sent",
    )  # fmt: skip

    def __init__(self, places: int = 1) -> None:
        self._places = places
        self._resume_below = places // 2
        self._values: deque[T] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = False
        self.full = False
        self.closed = False
        self.sent = 0
        self.bells: list[Callable[[], None]] = []

    def offer(self, value: T) -> None:
        """Hand over a value without waiting.

        A caller that can wait awaits `room` if it is `full`.
        """
        values = self._values
        if self.closed:
            return
        values.append(value)
        if len(values) >= self._places:
            self.full = True
        if self._idle:
            self._idle = False
            self._ready.set()
        if self.bells:
            for ring in self.bells:
                ring()

    def note_sent(self, sent: int) -> None:
        """Note the number of events sent so far, where the next pass over the turn continues."""
        self.sent = sent

    async def room(self) -> None:
        """Wait until there is a free place."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def put(self, value: T) -> None:
        """Hand over a value and wait for room."""
        self.offer(value)
        await self.room()

    async def read(self, produce: Callable[[], Awaitable[Any]]) -> AsyncGenerator[T, None]:
        """Run the producer in a task and yield its values. If it fails, its error comes last."""
        task = asyncio.ensure_future(produce())
        task.add_done_callback(lambda _: self._ready.set())
        values = self._values
        try:
            while True:
                while values:
                    yield values[0]
                    values.popleft()
                    if self.full and len(values) <= self._resume_below:
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
