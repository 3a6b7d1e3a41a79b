"""Google ADK: `LlmAgent` in a `Runner`, with plugins as hooks."""

from __future__ import annotations

import logging
import warnings

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contender import DELTA, DELTAS, ENDLESS, Contender, Turn, hooked, script
from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.plugins import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Content, FunctionCall, Part
from work import work

numbers = itertools.count()


class Fake(BaseLlm):
    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        if stream:
            for _ in range(DELTAS):
                yield LlmResponse(content=Content(role="model", parts=[Part(text=DELTA)]), partial=True)
            yield LlmResponse(content=Content(role="model", parts=[Part(text=DELTA * DELTAS)]))
            return
        if work.delay:
            await asyncio.sleep(work.delay)
        part = Part(text="done")
        if number := script.call_due(len(llm_request.contents)):
            part = Part(function_call=FunctionCall(id=f"c{number}", name="add", args={"a": number, "b": 1}))
        yield LlmResponse(content=Content(role="model", parts=[part]))


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class NoOp(BasePlugin):
    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        hooked()

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        hooked()

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
        hooked()

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
        hooked()


class SeeEvents(BasePlugin):
    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        hooked()


MESSAGE = Content(role="user", parts=[Part(text="go")])


class GoogleADK(Contender):
    name = "Google ADK"
    distribution = "google-adk"
    statement = "from google.adk.agents import LlmAgent; from google.adk.runners import Runner"
    hook_points = "a plugin's callbacks before and after model and tool; no wraps"
    streams = ("`run_async`, SSE", "`run_async`, SSE, 1 plugin on events")
    stores = ("`SqliteSessionService`",)

    def make(self, hooks: int = 0, plugins: Any = None, service: Any = None, **options: Any) -> Any:
        agent = LlmAgent(name="a", model=Fake(model="fake"), tools=[add])
        plugins = plugins or [NoOp(name=f"p{number}") for number in range(hooks)]
        app = App(name="bench", root_agent=agent, plugins=plugins)
        return Runner(app=app, session_service=service or InMemorySessionService())

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 2

    async def turn(self, agent: Any, session: str | None = None) -> str:
        if session is None:
            session = f"s{next(numbers)}"
            await agent.session_service.create_session(app_name="bench", user_id="u", session_id=session)
        text, config = "", RunConfig(max_llm_calls=ENDLESS)
        async for event in agent.run_async(user_id="u", session_id=session, new_message=MESSAGE, run_config=config):
            if event.content and event.content.parts and event.content.parts[0].text:
                text = event.content.parts[0].text
        return text

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        agent = self.make(plugins=[SeeEvents(name="e")] if "plugin" in variant else None)
        await agent.session_service.create_session(app_name="bench", user_id="u", session_id="s")
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in agent.run_async(user_id="u", session_id="s", new_message=MESSAGE, run_config=config):
            if event.partial and event.content.parts[0].text:
                yield event.content.parts[0].text

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        service = SqliteSessionService(os.path.join(folder, "s.db"))
        agent = self.make(service=service)
        if await service.get_session(app_name="bench", user_id="u", session_id="s") is None:
            await service.create_session(app_name="bench", user_id="u", session_id="s")

        async def turn() -> str:
            return await self.turn(agent, "s")

        yield turn
        if hasattr(service, "close"):
            await service.close()


CONTENDER = GoogleADK()
