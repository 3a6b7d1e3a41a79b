"""Pydantic AI: `Agent` with capabilities as hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from contender import DELTA, DELTAS, Contender, hooked, script
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, ToolCallPart
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.usage import RequestUsage, UsageLimits
from work import work


async def reply(messages: Any) -> ModelResponse:
    if work.delay:
        await asyncio.sleep(work.delay)
    part: Any = TextPart("done")
    if number := script.call_due(len(messages)):
        part = ToolCallPart("add", {"a": number, "b": 1}, f"c{number}")
    return ModelResponse([part], usage=RequestUsage(input_tokens=1, output_tokens=1), model_name="fake")


class Fake(Model):
    model_name = "fake"
    system = "fake"
    provider = None

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        self.prepare_request(model_settings, model_request_parameters)  # as the adapters of vendors do
        return await reply(messages)

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> Any:
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        yield Streamed(model_request_parameters=parameters)


@dataclass
class Streamed(StreamedResponse):
    _begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    model_name = property(lambda self: "fake")
    provider_name = property(lambda self: None)
    provider_url = property(lambda self: None)
    timestamp = property(lambda self: self._begun)

    async def close_stream(self) -> None: ...

    async def _get_event_iterator(self) -> Any:
        for _ in range(DELTAS):
            for event in self._parts_manager.handle_text_delta(vendor_part_id="0", content=DELTA):
                yield event


class NoOp(AbstractCapability):
    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        hooked()
        return request_context

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        hooked()
        return response

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        hooked()
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        hooked()
        return await handler(args)


class PassOn(AbstractCapability):
    async def wrap_run_event_stream(self, ctx: Any, *, stream: Any) -> Any:
        async for event in stream:
            hooked()
            yield event


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class PydanticAI(Contender):
    name = "Pydantic AI"
    distribution = "pydantic-ai-slim"
    statement = "from pydantic_ai import Agent"
    hook_points = (
        "a capability: `before_model_request`, `after_model_request`, `wrap_model_request`, `wrap_tool_execute`"
    )
    notes = "ships no store on disk: `ConversationStore` is a base class"
    streams = ("`run_stream`, `stream_text`", "`run_stream_events`", "`run_stream_events`, 1 transformer")

    def make(self, hooks: int = 0, model: Any = None, capabilities: Any = None, **options: Any) -> Any:
        capabilities = capabilities or [NoOp() for _ in range(hooks)]
        return Agent(model or Fake(), tools=[add], capabilities=capabilities)

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 1

    async def turn(self, agent: Any) -> str:
        return (await agent.run("go", usage_limits=UsageLimits(request_limit=None))).output

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent = self.make(capabilities=[PassOn()] if "transformer" in variant else None)
        if "stream_text" in variant:
            async with agent.run_stream("go") as run:
                async for text in run.stream_text(delta=True, debounce_by=None):
                    yield text
            return
        async with agent.run_stream_events("go") as events:
            async for event in events:
                if isinstance(event, PartStartEvent):
                    yield event.part.content
                elif isinstance(event, PartDeltaEvent):
                    yield event.delta.content_delta


CONTENDER = PydanticAI()
