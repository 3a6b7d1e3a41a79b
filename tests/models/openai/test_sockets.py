"""Both adapters over real sockets: a server that is slow, that breaks off, that waits, and that sees us leave."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from windlass.deltas import TextDelta
from windlass.errors import ConnectionFailed, ModelTimeout
from windlass.messages import ModelReply, assistant
from windlass.models.openai import OpenAIChat, OpenAIResponses

from .serving import Socket, asking, events, listening

Act = Callable[[Socket], Awaitable[None]]

WHOLE_CHAT = {"choices": [{"finish_reason": "stop", "message": {"content": "Hi"}}], "usage": {"prompt_tokens": 3}}
CHAT = [
    {"choices": [{"delta": {"content": "Hi"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3}},
]
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
WHOLE_RESPONSE = {"status": "completed", "output": [MESSAGE], "usage": {"input_tokens": 3}}
RESPONSE = [
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"},
    {"type": "response.completed", "response": WHOLE_RESPONSE},
]
ADAPTERS = [
    pytest.param(OpenAIChat, WHOLE_CHAT, events(*CHAT), id="chat"),
    pytest.param(OpenAIResponses, WHOLE_RESPONSE, events(*RESPONSE, done=False), id="responses"),
]


@asynccontextmanager
async def talking(adapter: Any, act: Act, **settings: Any) -> AsyncIterator[Any]:
    """A model with a client of its own that talks to such a server."""
    async with listening(act) as (_, address):
        model = adapter("m", base_url=f"{address}/v1", api_key="k", settings=settings)
        try:
            yield model
        finally:
            await model.aclose()


def raw(body: bytes, kind: str = "text/event-stream", framing: str = "chunked", **headers: str) -> bytes:
    """An answer as it is on the wire: in chunks, with its length, or until the server hangs up."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", *[f"{name}: {value}" for name, value in headers.items()]]
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    lines.append(f"Content-Length: {len(body)}" if framing == "length" else "Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def sending(answer: bytes) -> Act:
    return lambda socket: socket.send(answer)


async def streamed(model: Any) -> ModelReply:
    *_, reply = [piece async for piece in model.stream(asking())]
    assert type(reply) is ModelReply
    return reply


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_stream_that_breaks_off_after_any_byte_can_be_tried_again(
    adapter: Any, whole: Any, stream: bytes, framing: str
) -> None:
    """Nothing less than the whole is ever taken for it, wherever the connection breaks."""
    answer = raw(stream, framing=framing)
    length = 0
    outcomes: list[ModelReply | None] = []

    async def act(socket: Socket) -> None:
        await socket.send(answer[:length])

    async with talking(adapter, act) as model:
        for length in range(len(answer)):  # noqa: B007
            try:
                outcomes.append(await streamed(model))
            except ConnectionFailed as error:
                outcomes.append(None if error.retryable else ModelReply(assistant("not to be tried again")))
        length = len(answer)
        complete = await streamed(model)
    assert (complete.text, complete.usage.input) == ("Hi", 3)
    assert set(outcomes[:-60]) == {None}
    assert set(outcomes) <= {None, complete}


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
async def test_an_answer_that_breaks_off_after_any_byte_can_be_tried_again(
    adapter: Any, whole: Any, stream: bytes
) -> None:
    answer = raw(json.dumps(whole).encode(), "application/json", "length")
    length = 0

    async def act(socket: Socket) -> None:
        await socket.send(answer[:length])

    async with talking(adapter, act) as model:
        for length in range(0, len(answer), 5):  # noqa: B007
            with pytest.raises(ConnectionFailed) as caught:
                await model.reply(asking())
            assert caught.value.retryable


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
async def test_the_first_delta_comes_as_soon_as_it_is_sent(adapter: Any, whole: Any, stream: bytes) -> None:
    first, rest = stream[: stream.index(b"\n\n") + 2], stream[stream.index(b"\n\n") + 2 :]
    heard = asyncio.Event()

    async def act(socket: Socket) -> None:
        await socket.send(raw(first, framing="close"))
        await heard.wait()
        await socket.send(rest)

    async with talking(adapter, act) as model, aclosing(model.stream(asking())) as pieces:
        assert await anext(pieces) == TextDelta("Hi", 0)
        heard.set()
        assert [type(piece) async for piece in pieces] == [ModelReply]


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_who_stops_listening_closes_the_connection(adapter: Any, whole: Any, stream: bytes, how: str) -> None:
    gone, heard = asyncio.Event(), asyncio.Event()

    async def act(socket: Socket) -> None:
        await socket.send(raw(stream[: stream.index(b"\n\n") + 2], framing="close"))
        await socket.gone.wait()
        gone.set()

    async def listen(model: Any) -> None:
        async with aclosing(model.stream(asking())) as pieces:
            async for _ in pieces:
                heard.set()
                if how == "close":
                    return

    async with talking(adapter, act) as model:
        listening = asyncio.create_task(listen(model))
        await heard.wait()
        if how == "cancel":
            listening.cancel()
        await asyncio.wait([listening])
        assert listening.cancelled() == (how == "cancel")
        await asyncio.wait_for(gone.wait(), 50)


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
@pytest.mark.parametrize("streaming", [False, True])
async def test_who_does_not_wait_for_an_answer_closes_the_connection(
    adapter: Any, whole: Any, stream: bytes, streaming: bool
) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def act(socket: Socket) -> None:
        asked.set()
        await socket.gone.wait()
        gone.set()

    async with talking(adapter, act) as model:
        waiting = asyncio.create_task(streamed(model) if streaming else model.reply(asking()))
        await asked.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await asyncio.wait_for(gone.wait(), 50)


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("from_the_first_byte", [False, True])
async def test_a_server_that_sends_byte_by_byte_for_ever_is_too_late(
    adapter: Any, whole: Any, stream: bytes, streaming: bool, from_the_first_byte: bool
) -> None:
    """No byte is late, and yet nothing ever comes."""
    start = b"HTTP/1.1 200 OK\r\n" if from_the_first_byte else raw(b"data: {", framing="close")
    begun, gone = asyncio.Event(), asyncio.Event()

    async def act(socket: Socket) -> None:
        begun.set()
        await socket.send(start)
        try:
            while not socket.gone.is_set():
                await socket.send(b"x")
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    for patience in (0.15, 1.5, 15.0):
        async with talking(adapter, act, timeout=patience) as model:
            with pytest.raises(ModelTimeout) as caught:
                await (streamed(model) if streaming else model.reply(asking()))
            assert caught.value.retryable
            if begun.is_set():
                await asyncio.wait_for(gone.wait(), 50)
                return
    raise AssertionError("the server was never asked")


@pytest.mark.parametrize(("adapter", "whole", "stream"), ADAPTERS)
async def test_a_compressed_answer_is_read(adapter: Any, whole: Any, stream: bytes) -> None:
    packed = {"Content-Encoding": "gzip"}
    answer = raw(gzip.compress(json.dumps(whole).encode()), "application/json", "length", **packed)
    async with talking(adapter, sending(answer)) as model:
        assert (await model.reply(asking())).text == "Hi"
    async with talking(adapter, sending(raw(gzip.compress(stream), **packed))) as model:
        assert (await streamed(model)).text == "Hi"


async def test_nobody_there_is_a_failed_connection() -> None:
    async with listening(sending(b"")) as (_, address):
        pass
    model = OpenAIChat("m", base_url=address, api_key="k")
    with pytest.raises(ConnectionFailed) as caught:
        await model.reply(asking())
    assert caught.value.retryable
    await model.aclose()
