"""The capability as any other: it passes the checks, is the same in every way of running, and survives crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, tool
from windlass.errors import ToolDefinitionError
from windlass.mcp import MCP
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says

from .plays import agent_with


async def test_it_passes_the_checks_of_capabilities(plain: Callable[..., MCP]) -> None:
    server = plain()
    await check_capability(lambda: server)
    await server.aclose()


async def test_a_call_is_the_same_in_every_way_of_running(plain: Callable[..., MCP]) -> None:
    server = plain()

    def factory(**options: Any) -> Agent:
        model = ScriptedModel(calls("plain__add", a=1), says("Done."))
        return Agent(model, capabilities=[server], **options)

    lived = await assert_same_everywhere(factory)
    assert "2" in str(lived.story)
    await server.aclose()


async def test_a_sub_agent_uses_its_own_server(plain: Callable[..., MCP]) -> None:
    child = Agent(ScriptedModel(calls("plain__add", a=1), says("Two.")), name="child", capabilities=[plain()])
    parent = Agent(ScriptedModel(calls("child", task="1 + 1"), says("Done.")), tools=[child.as_tool()])
    result = await parent.run("Go.")
    assert "Two." in str(result.state.messages)
    await child.aclose()


def test_explain_names_the_server_and_its_tools(plain: Callable[..., MCP]) -> None:
    text = str(agent_with(plain()).explain())
    assert "mcp:plain" in text
    assert "plain__add" in text


def test_a_tool_of_the_same_name_is_refused_when_the_agent_is_assembled(plain: Callable[..., MCP]) -> None:
    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    with pytest.raises(ToolDefinitionError, match="tool 'add' is defined twice"):
        agent_with(plain(prefix=False), tools=[add]).compile()


def test_it_works_without_an_event_loop(plain: Callable[..., MCP]) -> None:
    agent = agent_with(plain(), script=[calls("plain__add", a=1)])
    result = agent.run_sync("Go.")
    assert "2" in str(result.state.messages)
