"""Windlass."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from contender import DELTA, DELTAS, ENDLESS, Contender, Turn, arguments, hooked, script
from work import work

from windlass import (
    Agent,
    Lifecycle,
    Message,
    ModelReply,
    ModelRequest,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallPart,
    tool,
)


class Fake:
    name = "fake"

    async def reply(self, request: ModelRequest) -> ModelReply:
        if work.delay:
            await asyncio.sleep(work.delay)
        if number := script.call_due(len(request.messages)):
            call = ToolCallPart("add", arguments(number), vendor_id=f"c{number}")
            return ModelReply(Message("assistant", (call,)), finish="tool_calls")
        return ModelReply(Message("assistant", (TextPart("done"),)))


class Streaming(Fake):
    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | ModelReply, None]:
        for _ in range(DELTAS):
            yield DELTA
        yield ModelReply(Message("assistant", (TextPart(DELTA * DELTAS),)))


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


@tool(name="add", effect="pure")
async def pure_add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class NoOp(Lifecycle):
    async def before_model(self, messages: Sequence[Message]) -> None:
        hooked()

    async def after_model(self, reply: ModelReply) -> None:
        hooked()

    async def wrap_model_call(self, request: ModelRequest, call_next: Any) -> Any:
        hooked()
        return await call_next(request)

    async def wrap_tool_call(self, call: ToolCall, call_next: Any) -> Any:
        hooked()
        return await call_next(call)


class PassOn:
    """A transformer that changes nothing."""

    def feed(self, text: str) -> Iterator[str]:
        hooked()
        yield text

    def flush(self) -> tuple[str, ...]:
        return ()


class Windlass(Contender):
    name = "Windlass"
    distribution = "windlass"
    statement = "from windlass import Agent"
    hook_points = "`Lifecycle`: `before_model`, `after_model`, `wrap_model_call`, `wrap_tool_call`"
    streams = ("`stream`", "`stream`, 1 transformer")
    stores = ("SQLite, unsafe tool (default)", "SQLite, pure tool")

    def make(self, hooks: int = 0, **options: Any) -> Agent[Any, str]:
        agent = Agent(Fake(), tools=[add], max_steps=ENDLESS)
        for _ in range(hooks):
            agent.with_lifecycle(NoOp())
        return agent

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 1

    async def turn(self, agent: Agent[Any, str]) -> str:
        return (await agent.run("go")).text

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent = Agent(Streaming(), tools=[add])
        if "transformer" in variant:
            agent.transform(PassOn)
        async for event in agent.stream("go"):
            if type(event) is TextDelta:
                yield event.text

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        from windlass.stores.sqlite import SQLiteStore

        store = SQLiteStore(os.path.join(folder, "s.db"))
        agent = Agent(Fake(), tools=[pure_add if "pure" in variant else add], store=store, max_steps=ENDLESS)
        await store.put_pipeline("open", b"")

        async def turn() -> str:
            return (await agent.run("go", session="s")).text

        yield turn
        await store.close()


CONTENDER = Windlass()
