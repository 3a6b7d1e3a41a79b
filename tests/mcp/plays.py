"""Short plays with the tools of MCP servers."""

from __future__ import annotations

from typing import Any

from windlass import Agent, ToolReturned
from windlass.messages import ToolResult
from windlass.records import Noted
from windlass.testing import ScriptedModel, calls, says


def agent_with(*capabilities: Any, script: Any = (), **options: Any) -> Agent:
    """An agent whose model makes these calls, one per step, and is then done."""
    return Agent(ScriptedModel(*script, says("Done.")), capabilities=capabilities, **options)


async def results_of(agent: Agent, session: str | None = None) -> list[ToolResult]:
    """The results of the calls of a turn."""
    stream = agent.stream("Go.", session=session)
    return [event.result async for event in stream if isinstance(event, ToolReturned)]


async def result_of(capability: Any, tool: str, **arguments: Any) -> ToolResult:
    """The result of one call."""
    async with agent_with(capability, script=[calls(tool, **arguments)]) as agent:
        (result,) = await results_of(agent)
    return result


async def notes_of(agent: Agent, session: str) -> dict[str, Any]:
    """What was noted in a session, by kind."""
    return {record.kind: record.data for record in await agent.store.read(session) if isinstance(record, Noted)}
