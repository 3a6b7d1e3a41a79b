"""The same work done by Windlass, through its public names and with its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from work import work

from windlass import (
    Agent,
    ArgumentsDelta,
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


class FakeModel:
    """The counterpart of `handloop.fake_model`."""

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


class SpeakingModel(FakeModel):
    """The same model, which streams `pieces` pieces of five characters in each step."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.said = TextPart("hello" * pieces)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | ModelReply, None]:
        for _ in range(self.pieces):
            yield "hello"
        whole = await self.reply(request)
        parts = [part for part in whole.message.parts if type(part) is ToolCallPart]
        yield whole.replace(message=Message("assistant", (self.said, *parts)))


class PassOn:
    """A transformer that changes nothing."""

    def feed(self, text: str) -> Iterator[str]:
        yield text

    def flush(self) -> tuple[str, ...]:
        return ()


MODEL = FakeModel()


def make(hooks: int = 0) -> Agent[Any, str]:
    """A new agent with this many no-op lifecycles."""
    agent = Agent(MODEL, tools=[add], max_steps=1_000_000)
    for _ in range(hooks):
        agent.with_lifecycle(NoOp())
    return agent


def ready(hooks: int = 0) -> Callable[[], Awaitable[str]]:
    """A function that runs one turn of a new agent."""
    agent = make(hooks)

    async def turn() -> str:
        return (await agent.run("go")).text

    return turn


async def renewed() -> str:
    """One turn of a new agent, as in a server that makes an agent per request."""
    return (await make().run("go")).text


def streaming(pieces: int, transformers: int = 0) -> Callable[[], Awaitable[tuple[int, int]]]:
    """A function that streams one turn and counts the deltas of its text and the facts."""
    agent = Agent(SpeakingModel(pieces), tools=[add], max_steps=None)
    for at in range(transformers):
        agent.transform(type(f"PassOn{at}", (PassOn,), {}))

    async def turn() -> tuple[int, int]:
        deltas = facts = 0
        async for event in agent.stream("go"):
            if type(event) is TextDelta:
                deltas += 1
            elif type(event) is not ArgumentsDelta:
                facts += 1
        return deltas, facts

    return turn


@tool(name="add", effect="pure")
async def pure_add(a: int, b: int) -> int:
    """Add two numbers; nothing has to be stored before it runs."""
    return work.add(a, b)
