"""The same work done by Windlass, through its public names and with its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from work import work

from windlass import (
    Agent,
    Lifecycle,
    Message,
    ModelReply,
    ModelRequest,
    TextPart,
    ToolCall,
    ToolCallPart,
    tool,
)


class FakeModel:
    """What `handloop.fake_model` is, for Windlass."""

    name = "fake"

    async def reply(self, request: ModelRequest) -> ModelReply:
        if work.delay:
            await asyncio.sleep(work.delay)
        i = len(request.messages) // 2 + 1
        if i < work.steps:
            call = ToolCallPart("add", f'{{"a": {i}, "b": 1}}', vendor_id=f"c{i}")
            return ModelReply(Message("assistant", (call,)), finish="tool_calls")
        return ModelReply(Message("assistant", (TextPart("done"),)))


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class NoOp(Lifecycle):
    """Looks at four points and changes nothing."""

    async def before_model(self, messages: Sequence[Message]) -> None: ...

    async def after_model(self, reply: ModelReply) -> None: ...

    async def wrap_model_call(self, request: ModelRequest, call_next: Any) -> Any:
        return await call_next(request)

    async def wrap_tool_call(self, call: ToolCall, call_next: Any) -> Any:
        return await call_next(call)


MODEL = FakeModel()


def make(hooks: int = 0) -> Agent[Any, str]:
    """A new agent with so many no-op lifecycles."""
    agent = Agent(MODEL, tools=[add])
    for _ in range(hooks):
        agent.with_lifecycle(NoOp())
    return agent


def ready(hooks: int = 0) -> Callable[[], Awaitable[str]]:
    """A function that runs one turn of a new agent."""
    agent = make(hooks)

    async def turn() -> str:
        return (await agent.run("go")).text

    return turn
