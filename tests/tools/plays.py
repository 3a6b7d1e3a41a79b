"""Runs the tools of a workspace as a scripted model calls them."""

from __future__ import annotations

from typing import Any

from windlass import Agent, ToolResultPart
from windlass.testing import ScriptedModel, calls, says
from windlass.tools import Workspace


async def play(workspace: Workspace, *wanted: tuple[str, dict[str, Any]], **options: Any) -> list[ToolResultPart]:
    """The results of some calls, each in a step of its own."""
    script = [calls(name, **arguments) for name, arguments in wanted]
    agent = Agent(ScriptedModel(*script, says("done")), capabilities=[workspace], unmatched="allow", **options)
    return results(await agent.run("go"))


async def use(workspace: Workspace, name: str, **arguments: Any) -> ToolResultPart:
    """The result of one call."""
    return (await play(workspace, (name, arguments)))[0]


def results(result: Any) -> list[ToolResultPart]:
    """The results of a turn's calls."""
    return [part for message in result.messages for part in message.parts if isinstance(part, ToolResultPart)]
