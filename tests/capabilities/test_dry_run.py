"""DryRun: tools say what they would do, here and below, whatever other hooks do."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import Agent, Ask, Deny, ToolCall, ToolCalling, tool
from windlass.capabilities import DryRun
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, agreeable, calls, check_capability, says

SENT: list[str] = []


@tool(inline=True)
def send(to: str, text: str = "hello") -> str:
    """Send a message."""
    SENT.append(to)
    return "sent"


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def _nothing_is_sent():
    SENT.clear()
    yield
    assert SENT == []


def agent_with(dry_run: DryRun, *script: Any) -> Agent:
    script = script or (calls([("send", {"to": "ann"}), ("look", {})]), says("done"))
    return Agent(ScriptedModel(*script), tools=[send, look], capabilities=[dry_run])


def results(result: Any) -> list[str]:
    return [part.text for part in result.messages[2].parts]


async def test_it_passes_the_checks_for_capabilities():
    await check_capability(DryRun)
    await check_capability(lambda: DryRun(pure=False))


async def test_a_call_is_answered_with_what_it_would_do_and_pure_tools_run():
    result = await agent_with(DryRun()).run("go")
    assert results(result) == ["Dry run, nothing was done: send(to='ann', text='hello')", "seen"]
    assert result.messages[2].parts[0].status == "answered"


async def test_pure_tools_can_be_included():
    assert results(await agent_with(DryRun(pure=False)).run("go"))[1] == "Dry run, nothing was done: look()"


async def test_a_tool_can_describe_its_call():
    dry_run = DryRun(describe={"send": lambda call: f"would write to {call.arguments['to']}"})
    assert results(await agent_with(dry_run).run("go"))[0] == "Dry run, nothing was done: would write to ann"


async def test_it_can_be_limited_to_some_tools():
    result = await agent_with(DryRun(tools="look", pure=False), calls("look"), says("done")).run("go")
    assert results(result) == ["Dry run, nothing was done: look()"]


async def test_a_dry_run_stays_dry_when_a_person_approves():
    agent = agent_with(DryRun(), calls("send", to="ann"), says("done"))
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("May it?"))
    result = await agent.run("go", session="s")
    (asked,) = result.state.waiting
    result = await agent.resume("s", answers={asked.id: agreeable(asked)})
    assert results(result)[0].startswith("Dry run")


async def test_a_refusal_comes_first():
    agent = agent_with(DryRun(), calls("send", to="ann"), says("done"))
    agent.gate(ToolCalling, name="no")(lambda event: Deny("not today"))
    assert results(await agent.run("go")) == ["Denied: not today"]


async def test_a_wrap_that_changes_the_call_runs_nothing():
    agent = agent_with(DryRun(tools="send"), calls("look"), says("done"))

    @agent.wrap(ToolCall)
    async def swap(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(name="send", arguments={"to": "eve"}))

    assert results(await agent.run("go")) == ["Dry run, nothing was done: send(to='eve', text='hello')"]


async def test_sub_agents_run_dry_too():
    child = Agent(ScriptedModel(calls("send", to="bob"), says("child done")), tools=[send], name="child")
    parent = Agent(
        ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()], capabilities=[DryRun()]
    )
    result = await parent.run("go", session="s")
    (below,) = [one for one in await parent.store.sessions() if one != "s"]
    log = await parent.store.read(below)
    assert any("Dry run, nothing was done: send(to='bob'" in repr(record) for record in log)
    assert result.text == "done"


def test_a_description_of_an_unknown_tool_is_refused():
    with pytest.raises(ConfigError, match="capability 'dry_run': describe names 'sent', but there is no such tool"):
        agent_with(DryRun(describe={"sent": str})).compile()
    with pytest.raises(ConfigError, match="describe"):
        DryRun(describe={"send": "text"})  # type: ignore[dict-item]
