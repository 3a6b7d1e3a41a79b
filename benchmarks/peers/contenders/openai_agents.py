"""OpenAI Agents: `Runner` with `RunHooks`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, RunHooks, Runner, SQLiteSession, Usage, function_tool
from contender import DELTA, DELTAS, ENDLESS, Contender, Turn, Variant, arguments, hooked, script
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)
from work import work


def message(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


logging.disable(logging.ERROR)  # without a key it logs that it sends nothing


class Fake(Model):
    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        if work.delay:
            await asyncio.sleep(work.delay)
        said: Any = message("done")
        if number := script.call_due(1 if isinstance(input, str) else len(input)):
            said = ResponseFunctionToolCall(
                id=f"f{number}",
                call_id=f"c{number}",
                type="function_call",
                name="add",
                arguments=arguments(number),
            )
        return ModelResponse(output=[said], usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> Any:
        for number in range(DELTAS):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                content_index=0,
                output_index=0,
                item_id="m",
                delta=DELTA,
                sequence_number=number,
                logprobs=[],
            )
        whole = Response(
            id="r",
            created_at=0,
            model="fake",
            object="response",
            output=[message(DELTA * DELTAS)],
            tool_choice="none",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(type="response.completed", response=whole, sequence_number=DELTAS)


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class NoOp(RunHooks):
    async def on_llm_start(self, *args: Any) -> None:
        hooked()

    async def on_llm_end(self, *args: Any) -> None:
        hooked()

    async def on_tool_start(self, *args: Any) -> None:
        hooked()

    async def on_tool_end(self, *args: Any) -> None:
        hooked()


class Several(RunHooks):
    """A run takes one object; a program that has several writes this."""

    def __init__(self, hooks: list[NoOp]) -> None:
        self.hooks = hooks

    async def on_llm_start(self, *args: Any) -> None:
        for hook in self.hooks:
            await hook.on_llm_start(*args)

    async def on_llm_end(self, *args: Any) -> None:
        for hook in self.hooks:
            await hook.on_llm_end(*args)

    async def on_tool_start(self, *args: Any) -> None:
        for hook in self.hooks:
            await hook.on_tool_start(*args)

    async def on_tool_end(self, *args: Any) -> None:
        for hook in self.hooks:
            await hook.on_tool_end(*args)


class OpenAIAgents(Contender):
    name = "OpenAI Agents"
    distribution = "openai-agents"
    statement = "from agents import Agent, Runner"
    hook_points = "`RunHooks`: `on_llm_start`, `on_llm_end`, `on_tool_start`, `on_tool_end`; they only look, no wraps"
    notes = "tracing, which is on by default and sends data to OpenAI, is off except in its own row"
    streams = ("`run_streamed`, raw events",)
    stores = ("`SQLiteSession`",)

    def __init__(self) -> None:
        self.variants = {"tracing on, its default": Variant(lambda: self.make(tracing=True))}

    def make(self, hooks: int = 0, tracing: bool = False, **options: Any) -> Any:
        several = None if not hooks else NoOp() if hooks == 1 else Several([NoOp() for _ in range(hooks)])
        return Agent(name="a", model=Fake(), tools=[add]), several, RunConfig(tracing_disabled=not tracing)

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 2

    async def turn(self, agent: Any, session: Any = None) -> str:
        it, hooks, config = agent
        result = await Runner.run(it, "go", hooks=hooks, run_config=config, max_turns=ENDLESS, session=session)
        return result.final_output

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent, _, config = self.make()
        async for event in Runner.run_streamed(agent, "go", run_config=config).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        session = SQLiteSession("s", os.path.join(folder, "s.db"))
        await session.get_items()
        agent = self.make()

        async def turn() -> str:
            return await self.turn(agent, session)

        yield turn
        session.close()


CONTENDER = OpenAIAgents()
