"""Microsoft Agent Framework: `Agent` with chat and function middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    FunctionMiddleware,
    Message,
    ResponseStream,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer
from contender import DELTA, DELTAS, ENDLESS, Contender, Turn, arguments, hooked, script
from work import work


class Raw(BaseChatClient):
    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **more: Any) -> Any:
        return ResponseStream(self._stream(), finalizer=ChatResponse.from_updates) if stream else self._reply(messages)

    async def _stream(self) -> Any:
        for _ in range(DELTAS):
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(DELTA)])

    async def _reply(self, messages: Any) -> ChatResponse:
        if work.delay:
            await asyncio.sleep(work.delay)
        said = Content.from_text("done")
        if number := script.call_due(len(messages)):
            said = Content.from_function_call(f"c{number}", "add", arguments=arguments(number))
        return ChatResponse(messages=[Message("assistant", [said])])


class Fake(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, Raw):
    """Composed as its `OpenAIChatClient` is."""


@tool(approval_mode="never_require")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class NoOpChat(ChatMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        hooked()
        await call_next()


class NoOpFunction(FunctionMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        hooked()
        await call_next()


class PassOn(ChatMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        context.stream_transform_hooks.append(self.look)
        await call_next()

    @staticmethod
    def look(update: Any) -> Any:
        hooked()
        return update


class AgentFramework(Contender):
    name = "Agent Framework"
    distribution = "agent-framework-core"
    statement = "from agent_framework import Agent"
    hook_points = "`ChatMiddleware` and `FunctionMiddleware`: wraps, whose code around the call is before and after"
    notes = "its store on disk writes a turn when the turn has ended"
    streams = ("`run(stream=True)`", "`run(stream=True)`, 1 transformer")
    stores = ("`FileHistoryProvider`, once a turn",)

    def make(self, hooks: int = 0, more: Any = None, **options: Any) -> Any:
        middleware = [one for _ in range(hooks) for one in (NoOpChat(), NoOpFunction())] + (more or [])
        client = Fake(function_invocation_configuration={"max_iterations": ENDLESS})
        return Agent(client=client, tools=[add], middleware=middleware or None, **options)

    def hook_calls(self, steps: int) -> int:
        return 2 * steps - 1

    async def turn(self, agent: Any) -> str:
        return (await agent.run("go")).text

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent = self.make(more=[PassOn()] if "transformer" in variant else None)
        async for update in agent.run("go", stream=True):
            if update.text:
                yield update.text

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        agent = self.make(context_providers=[FileHistoryProvider(folder)])
        session = agent.create_session(session_id="s")

        async def turn() -> str:
            return (await agent.run("go", session=session)).text

        yield turn


CONTENDER = AgentFramework()
