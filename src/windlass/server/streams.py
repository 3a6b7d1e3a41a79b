"""Server-sent events, written by hand: one write for all that is ready, and a comment when nothing happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse

log = logging.getLogger("windlass.server")

PING = b": ping\n\n"
KEEP_ALIVE = 15.0
"""After this many seconds without an event a comment is sent, so that proxies keep the connection."""

_PLACES = 256

Left = Callable[[], Awaitable[Any]]


def sse(data: bytes, *, event: str = "", id: str = "") -> bytes:
    """One event as bytes. `data` is one line of JSON."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


class Streams:
    """The open streams of a server. They end when it stops."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Queue[bytes | None], asyncio.Task[None]] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    async def close(self, patience: float) -> None:
        """Let streams end by themselves for some seconds, then end the rest, and those that begin later."""
        if self._open:
            await asyncio.wait(self._open.values(), timeout=patience)
        self._closing = True
        for queue in self._open:
            _end(queue)

    def respond(self, events: AsyncGenerator[bytes, None], *, left: Left | None = None) -> StreamingResponse:
        """Stream events to a client. If it leaves before their end, `left` is called."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
        return StreamingResponse(self._write(events, left), 200, headers, "text/event-stream")

    async def _write(self, events: AsyncGenerator[bytes, None], left: Left | None) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_PLACES)
        pump = self._open[queue] = asyncio.create_task(_pump(events, queue))
        if self._closing:
            _end(queue)
        ended = False
        try:
            while not ended:
                chunks = await _ready(queue)
                ended = None in chunks
                if data := b"".join([chunk for chunk in chunks if chunk is not None]):
                    yield data
        finally:
            del self._open[queue]
            if not pump.done():
                pump.cancel()
            if not ended and left is not None:
                await asyncio.shield(left())
            with suppress(asyncio.CancelledError):
                await pump


async def _pump(events: AsyncGenerator[bytes, None], queue: asyncio.Queue[bytes | None]) -> None:
    """Move the events into a queue. A full queue makes the source wait."""
    try:
        async for event in events:
            await queue.put(event)
    except Exception as error:
        log.error("a stream failed: %s", type(error).__name__, exc_info=error)
    finally:
        await events.aclose()
    await queue.put(None)


async def _ready(queue: asyncio.Queue[bytes | None]) -> list[bytes | None]:
    """All events that are ready: at least one, or a comment if none comes for a while."""
    try:
        async with asyncio.timeout(KEEP_ALIVE):
            chunks = [await queue.get()]
    except TimeoutError:
        return [PING]
    while not queue.empty():
        chunks.append(queue.get_nowait())
    return chunks


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    """Put the end into a queue. A full one loses its newest event: the client can continue after those before it."""
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    for chunk in [*waiting[: _PLACES - 1], None]:
        queue.put_nowait(chunk)
