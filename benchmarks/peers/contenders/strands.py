"""Strands Agents: `Agent` with hooks and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contender import DELTA, DELTAS, Contender, Turn, arguments, hooked, script
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.models import Model
from work import work


class Fake(Model):
    def update_config(self, **options: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {"context_window_limit": 10**9}

    async def structured_output(self, *args: Any, **options: Any) -> Any:
        yield {}

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any) -> Any:
        if work.delay:
            await asyncio.sleep(work.delay)
        number = script.call_due(len(messages))
        yield {"messageStart": {"role": "assistant"}}
        if number:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "add", "toolUseId": f"c{number}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments(number)}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if number else "end_turn"}}


class Streaming(Fake):
    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any) -> Any:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        for _ in range(DELTAS):
            yield {"contentBlockDelta": {"delta": {"text": DELTA}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return work.add(a, b)


class NoOp:
    def register_hooks(self, registry: Any, **options: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self.look)
        registry.add_callback(AfterModelCallEvent, self.look)

    async def look(self, event: Any) -> None:
        hooked()


async def pass_on(context: Any, call_next: Any) -> Any:
    hooked()
    async for event in call_next(context):
        yield event


class Strands(Contender):
    name = "Strands"
    distribution = "strands-agents"
    statement = "from strands import Agent"
    hook_points = (
        "`BeforeModelCallEvent`, `AfterModelCallEvent`; middleware on `InvokeModelStage` and `ExecuteToolStage`"
    )
    notes = (
        "its loop is recursive: under Python's default limit a turn dies at about 320 steps, so the limit is raised; "
        "an agent serves one turn at a time and keeps its conversation, so each turn has an agent of its own, made "
        "before the clock starts"
    )
    remembers = True
    streams = ("`stream_async`", "`stream_async`, 1 transformer")
    stores = ("`FileSessionManager`",)

    def make(self, hooks: int = 0, model: Any = None, middleware: int | None = None, **options: Any) -> Any:
        agent = Agent(
            model=model or Fake(),
            tools=[add],
            callback_handler=None,
            conversation_manager=NullConversationManager(),
            hooks=[NoOp() for _ in range(hooks)],
            **options,
        )
        for _ in range(hooks if middleware is None else middleware):
            agent.add_middleware(InvokeModelStage, pass_on)
            agent.add_middleware(ExecuteToolStage, pass_on)
        return agent

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 1

    async def turn(self, agent: Any) -> str:
        return str(await agent.invoke_async("go")).strip()

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent = self.make(model=Streaming(), middleware=1 if "transformer" in variant else 0)
        async for event in agent.stream_async("go"):
            if "data" in event:
                yield event["data"]

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        from strands.session import FileSessionManager

        agent = self.make(session_manager=FileSessionManager("s", folder), agent_id="a")

        async def turn() -> str:
            return await self.turn(agent)

        yield turn


CONTENDER = Strands()
