"""Agno: `Agent` with tool hooks."""

from __future__ import annotations

import os

os.environ["AGNO_TELEMETRY"] = "false"

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from contender import DELTA, DELTAS, Contender, Turn, arguments, hooked, script
from work import work


class Fake(Model):
    def invoke(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def invoke_stream(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def _parse_provider_response(self, response: Any, **options: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response

    async def ainvoke(self, messages: Any, *args: Any, **options: Any) -> ModelResponse:
        if work.delay:
            await asyncio.sleep(work.delay)
        if number := script.call_due(sum(message.role != "system" for message in messages[:1]) + len(messages) - 1):
            function = {"name": "add", "arguments": arguments(number)}
            call = {"id": f"c{number}", "type": "function", "function": function}
            return ModelResponse(role="assistant", tool_calls=[call])
        return ModelResponse(role="assistant", content="done")

    async def ainvoke_stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        for _ in range(DELTAS):
            yield ModelResponse(role="assistant", content=DELTA)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


async def pass_on(function_name: str, function_call: Any, arguments: Any) -> Any:
    hooked()
    result = function_call(**arguments)
    return await result if asyncio.iscoroutine(result) else result


class Agno(Contender):
    name = "Agno"
    distribution = "agno"
    statement = "from agno.agent import Agent"
    hook_points = "`tool_hooks`: wraps of tool calls; there is none per model call"
    notes = "its store writes a turn when the turn has ended"
    streams = ("`arun(stream=True)`",)
    stores = ("`AsyncSqliteDb`, once a turn",)

    def make(self, hooks: int = 0, **options: Any) -> Any:
        return Agent(
            model=Fake(id="fake"), tools=[add], tool_hooks=[pass_on] * hooks or None, telemetry=False, **options
        )

    def hook_calls(self, steps: int) -> int:
        return steps - 1

    async def turn(self, agent: Any) -> str:
        return (await agent.arun("go")).content

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        async for event in self.make().arun("go", stream=True):
            if event.event == "RunContent" and event.content:
                yield event.content

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        from agno.db.sqlite import AsyncSqliteDb

        database = AsyncSqliteDb(db_file=os.path.join(folder, "s.db"))
        for name in ("sessions", "runs"):  # as all others, it has its tables when the clock starts
            await database._get_table(name, create_table_if_not_found=True)
        agent = self.make(db=database, add_history_to_context=True)

        async def turn() -> str:
            return (await agent.arun("go", session_id="s")).content

        yield turn
        await database.db_engine.dispose()


CONTENDER = Agno()
