"""LoopGuard: warns, then blocks, then ends the turn; counts from the log alone."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import Agent, StopReason, tool
from windlass.capabilities import LoopGuard
from windlass.errors import ConfigError
from windlass.testing import (
    FunctionModel,
    ScriptedModel,
    assert_prefix_stable,
    assert_same_everywhere,
    calls,
    check_capability,
    says,
)


@tool(effect="pure", inline=True)
def search(query: str, limit: int = 10) -> str:
    """Search."""
    return "nothing"


@tool(effect="pure", inline=True)
def poll() -> str:
    """Poll."""
    return "waiting"


def agent_with(guard: LoopGuard, *script: Any) -> Agent:
    return Agent(ScriptedModel(*script, says("done")), tools=[search, poll], capabilities=[guard])


def results(result: Any) -> list[str]:
    return [part.text for message in result.messages for part in message.parts if message.role == "tool"]


def shown(agent: Agent) -> list[str]:
    """The texts of the last tool message in each request, with what was put beside the result."""
    tails = [request.messages[-1] for request in agent.model.requests[1:]]
    return ["".join(str(part.text) for part in tail.parts) for tail in tails]


SAME = calls("search", query="gold")


@pytest.mark.parametrize("make", [LoopGuard, lambda: LoopGuard(2, 3, halt=4)])
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_a_repeated_call_is_warned_of_then_blocked():
    agent = agent_with(LoopGuard(), *[SAME] * 6)
    result = await agent.run("go")
    assert results(result)[:2] == ["nothing", "nothing"]
    assert ["Try something else" in text for text in shown(agent)] == [False, False, True, True, False, False]
    assert ["not made again" in text for text in results(result)] == [False] * 4 + [True] * 2
    assert result.text == "done"


async def test_with_halt_the_turn_ends():
    agent = agent_with(LoopGuard(2, 3, halt=4), *[SAME] * 9)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.HALTED
    assert len(agent.model.requests) == 4


async def test_a_model_that_never_stops_is_ended():
    agent = Agent(FunctionModel(lambda request: SAME), tools=[search], capabilities=[LoopGuard(None, None, halt=3)])
    assert (await agent.run("go")).state.steps <= 3


@pytest.mark.parametrize(
    "same",
    [
        '{"limit": 10, "query": "gold"}',
        '{ "query" : "gold" }',
        '{"query":"g\\u006fld"}',
    ],
)
async def test_calls_are_compared_by_what_they_mean(same):
    agent = agent_with(LoopGuard(None, 2), SAME, calls([("search", same)]))
    assert "not made again" in results(await agent.run("go"))[1]


async def test_other_arguments_or_another_tool_are_another_call():
    script = [calls("search", query=f"gold {number}") for number in range(5)]
    agent = agent_with(LoopGuard(None, 2), *script, calls("poll"))
    assert not any("not made again" in text for text in results(await agent.run("go")))


async def test_calls_of_one_step_count():
    agent = agent_with(LoopGuard(None, 3), calls([("search", {"query": "gold"})] * 4))
    assert ["not made again" in text for text in results(await agent.run("go"))] == [False, False, True, True]


async def test_two_calls_that_alternate_are_a_loop_too():
    agent = agent_with(LoopGuard(None, 3), *[SAME, calls("search", query="silver")] * 3)
    assert ["not made again" in text for text in results(await agent.run("go"))] == [False] * 4 + [True] * 2


async def test_a_tool_that_polls_can_be_ignored():
    agent = agent_with(LoopGuard(2, 3, ignore="pol*"), *[calls("poll")] * 6)
    assert results(await agent.run("go")) == ["waiting"] * 6


async def test_the_next_turn_starts_afresh():
    agent = Agent(
        ScriptedModel(SAME, says("one"), SAME, says("two")), tools=[search], capabilities=[LoopGuard(None, 2)]
    )
    await agent.run("go", session="s")
    assert not any("not made again" in text for text in results(await agent.run("go", session="s")))


async def test_it_is_the_same_everywhere():
    await assert_same_everywhere(lambda: agent_with(LoopGuard(2, 3), *[SAME] * 4))


async def test_a_warning_does_not_break_the_prefix():
    agent = agent_with(LoopGuard(2, 4), *[SAME] * 5)
    await agent.run("go", session="s")
    await assert_prefix_stable(agent, "s")


@pytest.mark.parametrize(
    "options",
    [{"warn": 1}, {"warn": None, "block": None}, {"warn": 5, "block": 5}, {"halt": 4}, {"ignore": [1]}, {"name": ""}],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="LoopGuard"):
        LoopGuard(**options)
