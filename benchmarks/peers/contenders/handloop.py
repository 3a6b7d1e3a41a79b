"""A loop written by hand with plain asyncio: the limit of pure Python, without any of the guarantees."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import handloop
from contender import DELTA, DELTAS, Contender, Turn, arguments, hooked, script
from work import work

Message = dict[str, Any]


async def model(messages: list[Message]) -> Message:
    if work.delay:
        await asyncio.sleep(work.delay)
    if number := script.call_due(len(messages)):
        call = {"id": f"c{number}", "name": "add", "args": arguments(number)}
        return {"role": "assistant", "tool_calls": [call]}
    return {"role": "assistant", "content": "done"}


async def see_messages(messages: list[Message]) -> None:
    hooked()


async def see_reply(messages: list[Message], reply: Message) -> None:
    hooked()


def pass_on(inner: handloop.Call) -> handloop.Call:
    async def call(given: Any) -> Any:
        hooked()
        return await inner(given)

    return call


class HandLoop(Contender):
    name = "hand loop"
    statement = "import asyncio, json"
    hook_points = "before and after (await in a for loop), wraps of model and tool (closures)"
    streams = ("generator", "generator, 1 transformer")
    stores = ("SQLite, a commit a step",)

    def make(self, hooks: int = 0, **options: Any) -> dict[str, Any]:
        return {
            "model": model,
            "tools": {"add": handloop.add},
            "before": [see_messages] * hooks,
            "after": [see_reply] * hooks,
            "wrap_model": [pass_on] * hooks,
            "wrap_tool": [pass_on] * hooks,
        }

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 1

    async def turn(self, agent: dict[str, Any]) -> str:
        text, _ = await handloop.loop(prompt="go", **agent)
        return text

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        async def model() -> AsyncGenerator[str, None]:
            for _ in range(DELTAS):
                yield DELTA

        async def transform(stream: AsyncGenerator[Message, None]) -> AsyncGenerator[Message, None]:
            async for event in stream:
                hooked()
                yield event

        events = handloop.stream_loop(model)
        async for event in transform(events) if "transformer" in variant else events:
            if event["type"] == "text_delta":
                yield event["text"]

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        file = handloop.File(os.path.join(folder, "s.db"))
        stored = [json.loads(body) for (body,) in file.db.execute("select body from messages order by seq")]
        file.seq = len(stored)

        async def turn() -> str:
            text, _ = await handloop.loop(prompt="go", earlier=stored, sink=file, **self.make())
            return text

        yield turn
        file.close()


CONTENDER = HandLoop()
