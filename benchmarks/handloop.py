"""The limit of pure Python: an agent's loop written by hand with asyncio, dicts and lists."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from work import work

Message = dict[str, Any]
Call = Callable[[Any], Awaitable[Any]]


async def loop(
    model: Call,
    tools: dict[str, Callable[..., Awaitable[Any]]],
    prompt: str,
    before: Sequence[Callable[..., Awaitable[None]]] = (),
    after: Sequence[Callable[..., Awaitable[None]]] = (),
    wrap_model: Sequence[Callable[[Call], Call]] = (),
    wrap_tool: Sequence[Callable[[Call], Call]] = (),
    sink: Callable[[list[Message]], None] | None = None,
    earlier: Sequence[Message] = (),
) -> tuple[str, list[Message]]:
    """A turn from a prompt to the final text and the messages; `sink` gets the messages of each step to store them."""

    async def call_tool(call: Message) -> Any:
        return await tools[call["name"]](**json.loads(call["args"]))

    for wrap in reversed(wrap_model):
        model = wrap(model)
    for wrap in reversed(wrap_tool):
        call_tool = wrap(call_tool)
    messages: list[Message] = [*earlier, {"role": "user", "content": prompt}]
    if sink:
        sink(messages[-1:])
    while True:
        for hook in before:
            await hook(messages)
        reply = await model(messages)
        for hook in after:
            await hook(messages, reply)
        messages.append(reply)
        new = [reply]
        for call in reply.get("tool_calls", ()):
            new.append({"role": "tool", "id": call["id"], "content": str(await call_tool(call))})  # noqa: PERF401
        messages += new[1:]
        if sink:
            sink(new)
        if len(new) == 1:
            return reply["content"], messages


async def fake_model(messages: list[Message]) -> Message:
    if work.delay:
        await asyncio.sleep(work.delay)
    i = len(messages) // 2 + 1
    if i < work.steps:
        return {
            "role": "assistant",
            "tool_calls": [{"id": f"c{i}", "name": "add", "args": f'{{"a": {i}, "b": 1}}'}],
        }
    return {"role": "assistant", "content": "done"}


async def add(a: int, b: int) -> int:
    return work.add(a, b)


async def see_messages(messages: list[Message]) -> None: ...


async def see_reply(messages: list[Message], reply: Message) -> None: ...


def pass_on(inner: Call) -> Call:
    async def call(given: Any) -> Any:
        return await inner(given)

    return call


def ready(hooks: int = 0) -> Callable[[], Awaitable[str]]:
    """A function that runs one turn with this many no-op hooks at each of four points."""

    async def turn() -> str:
        text, _ = await loop(
            fake_model,
            {"add": add},
            "go",
            before=[see_messages] * hooks,
            after=[see_reply] * hooks,
            wrap_model=[pass_on] * hooks,
            wrap_tool=[pass_on] * hooks,
        )
        return text

    return turn


class File:
    """An SQLite file into which the loop puts its messages, committed step by step."""

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute("pragma synchronous=full")
        self.db.execute(
            "create table if not exists messages(run text, seq integer, body text, primary key(run, seq)) without rowid"
        )
        self.seq = 0

    def __call__(self, messages: list[Message]) -> None:
        self.db.execute("begin")
        for message in messages:
            self.db.execute("insert into messages values(?, ?, ?)", ("run", self.seq, json.dumps(message)))
            self.seq += 1
        self.db.execute("commit")

    def close(self) -> None:
        self.db.execute("pragma wal_checkpoint(truncate)")
        self.db.close()


async def kept(file: File) -> str:
    """One turn whose messages are kept in a file."""
    text, _ = await loop(fake_model, {"add": add}, "go", sink=file)
    return text


async def stream_loop(model: Callable[[], AsyncGenerator[str, None]]) -> AsyncGenerator[Message, None]:
    """The events of one streamed reply, which is put together on the way."""
    said = []
    async for piece in model():
        said.append(piece)
        yield {"type": "text_delta", "text": piece}
    yield {"type": "reply", "text": "".join(said)}


def streaming(pieces: int, transformers: int = 0) -> Callable[[], Awaitable[tuple[int, int]]]:
    """A function that streams one reply through this many generators that pass everything on."""

    async def model() -> AsyncGenerator[str, None]:
        for _ in range(pieces):
            yield "hello"

    async def transform(stream: AsyncGenerator[Message, None]) -> AsyncGenerator[Message, None]:
        async for event in stream:
            yield event

    async def turn() -> tuple[int, int]:
        events, deltas = stream_loop(model), 0
        for _ in range(transformers):
            events = transform(events)
        async for event in events:
            deltas += event["type"] == "text_delta"
        return deltas, 0

    return turn
