"""A server at the network's edge: hands out what it was given, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from windlass.errors import ModelError
from windlass.messages import Messages, ModelReply, ModelRequest, user


class Pieces(httpx2.AsyncByteStream):
    """A body in pieces. It ends with an error if one is given, and says whether it was closed."""

    def __init__(self, pieces: list[bytes], error: Exception | None = None) -> None:
        self.pieces = pieces
        self.error = error
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.error:
            raise self.error

    async def aclose(self) -> None:
        self.closed = True


def cut(body: bytes, seed: int = 0) -> list[bytes]:
    """A body cut at random offsets."""
    offsets = sorted(random.Random(seed).sample(range(1, len(body)), min(len(body) - 1, 40))) if len(body) > 1 else []
    return [body[start:end] for start, end in zip([0, *offsets], [*offsets, len(body)], strict=True)]


class Server:
    """Serves answers in turn: a mapping as JSON, bytes as a stream of events, a response as it is."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.requests: list[httpx2.Request] = []
        self.http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.asked.append(json.loads(request.content or b"null"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        if isinstance(answer, bytes):
            answer = Pieces(cut(answer))
        if isinstance(answer, Pieces):
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=answer)
        return httpx2.Response(200, json=answer)


def asking(text: str = "Hello", **fields: Any) -> ModelRequest:
    """A request with one message of a user."""
    return ModelRequest("", Messages([user(text)]), **fields)


async def heard(model: Any, request: ModelRequest) -> tuple[list[Any], ModelReply]:
    """The deltas and the reply of a stream. The pieces of each part, joined, must be what the reply has there."""
    *deltas, reply = [piece async for piece in model.stream(request)]
    assert type(reply) is ModelReply
    joined: dict[int, str] = {}
    for delta in deltas:
        joined[delta.part] = joined.get(delta.part, "") + delta.text
    parts = dict(enumerate(reply.message.parts))
    assert joined == {
        at: text for at, part in parts.items() if (text := getattr(part, "text", getattr(part, "json", "")))
    }
    return deltas, reply


async def asked(model: Any, request: ModelRequest | None = None, *, streaming: bool) -> ModelReply:
    """The reply of a model that is asked in one of the two ways."""
    request = request or asking()
    return (await heard(model, request))[1] if streaming else await model.reply(request)


def facts(error: ModelError) -> tuple[Any, ...]:
    """All that an error says."""
    return type(error), str(error), error.status, error.retryable, error.request_id, error.retry_after


class Socket:
    """A server on the loopback that answers a request with bytes, and then does what it is told to."""

    def __init__(self, then: Callable[[Socket], Any]) -> None:
        self.then = then
        self.asked: list[bytes] = []
        self.gone = asyncio.Event()
        self.writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self.asked.append(head + await reader.readexactly(length))
            listening = asyncio.create_task(reader.read())
            listening.add_done_callback(lambda _: self.gone.set())
            await self.then(self)
            listening.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone.set()
            writer.close()


@asynccontextmanager
async def listening(then: Callable[[Socket], Any]) -> AsyncIterator[tuple[Socket, str]]:
    """A server that runs meanwhile, and its address."""
    socket = Socket(then)
    server = await asyncio.start_server(socket.serve, "127.0.0.1", 0)
    async with server:
        try:
            yield socket, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            await let_in()


async def let_in() -> None:
    """Let a server take in who has just connected: asyncio never closes one who comes while the server is closed."""
    for _ in range(20):
        await asyncio.sleep(0)
