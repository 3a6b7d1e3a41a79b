"""Subagents: the model gives tasks to named agents, within limits, and waits for them or not."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Delegated, Deny, Suspended, TokenLimit, ToolCalling, tool
from windlass.capabilities import Subagent, Subagents
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, says


@tool
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


def child(name: str = "kid", *replies: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(replies or (says(f"{name} is done"),))), name=name, tools=[pay], **options)


def parent(capability: Subagents, *script: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*script, says("done")), capabilities=[capability], **options)


def task(agent: str = "kid", text: str = "work", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return ("delegate", {"agent": agent, "task": text, **arguments})


def results(result: Any) -> list[tuple[str, str]]:
    parts = [part for message in result.messages for part in message.parts if message.role == "tool"]
    return [(part.text, part.status) for part in parts]


async def started(agent: Agent[Any, Any], session: str = "s") -> list[Delegated]:
    return [record for record in await agent.store.read(session) if isinstance(record, Delegated)]


@pytest.mark.parametrize("background", [True, False])
async def test_it_passes_the_checks_for_capabilities(background: bool):
    await check_capability(lambda: Subagents([child()], background=background))


async def test_the_model_gives_a_task_to_an_agent_and_reads_its_answer():
    agent = parent(Subagents([child(), child("other")]), calls([task(), task("other")]))
    result = await agent.run("go", session="s")
    assert results(result) == [("kid is done", "ok"), ("other is done", "ok")]
    assert [(one.agent, one.task, one.by) for one in await started(agent)] == [
        ("kid", "work", "delegate"),
        ("other", "work", "delegate"),
    ]
    infos = {info.session: info.parent for info in await agent.store.find()}
    assert [infos[one.session] for one in await started(agent)] == ["s", "s"]
    assert result.usage.requests == 4


@pytest.mark.parametrize("options", [{}, {"background": True}], ids=["waits", "background"])
async def test_an_empty_task_is_the_mistake_of_the_model(options: dict[str, Any]):
    agent = parent(Subagents([child()]), calls([task(text=" ", **options)]), "ok")
    result = await agent.run("go", session="s")
    assert results(result) == [("Error: agent 'kid' got an empty task: say what it has to do", "error")]
    assert await started(agent) == []


async def test_it_is_the_same_in_every_way_of_running():
    await assert_same_everywhere(lambda: parent(Subagents([child()]), calls([task()])))


async def test_the_tool_names_the_agents():
    agent = parent(Subagents([Subagent(child(), "adds numbers"), child("other")]))
    await agent.run("go")
    [spec] = agent.model.requests[0].tools
    assert spec.schema["properties"]["agent"]["enum"] == ["kid", "other"]
    assert "- kid: adds numbers\n- other" in spec.description
    assert "background" in spec.schema["properties"]
    plain = parent(Subagents([child()], background=False, tool="ask_agent"))
    await plain.run("go")
    assert (plain.model.requests[0].tools[0].name, "background" in str(plain.model.requests[0].tools[0])) == (
        "ask_agent",
        False,
    )


async def test_a_task_in_the_background_reports_through_the_inbox():
    agent = parent(Subagents([child()]), calls([task(background=True)]), says("one"))
    first = await agent.run("go", session="s")
    [one] = await started(agent)
    assert one.background
    assert one.session in results(first)[0][0]
    for running in await agent.resume_background("s"):
        await running.result()
    second = await agent.run("and?", session="s")
    heard = [message.text for message in second.state.messages if message.origin == "kid"]
    assert heard == [f"Result of background task {one.session} (agent 'kid'):\nkid is done"]


async def test_share_and_tools_limit_a_child():
    agent = parent(Subagents([Subagent(child(), share=0.1, tools=())]), calls([task()]), criteria=[TokenLimit(1000)])
    await agent.run("go", session="s")
    [one] = await started(agent)
    assert one.tools == ()
    assert one.tokens is not None
    assert 0 < one.tokens <= 100


@pytest.mark.parametrize("background", [False, True])
async def test_a_turn_gives_only_so_many_tasks(background: bool):
    wanted = [task(text=f"task {n}", background=background) for n in range(3)]
    agent = parent(Subagents([child("kid", *[says("x")] * 3)], fan_out=2), calls(wanted))
    result = await agent.run("go", session="s")
    assert len(await started(agent)) == 2
    assert [status for _, status in results(result)] == ["ok", "ok", "denied"]


async def test_tasks_of_all_steps_count_and_those_of_earlier_turns_do_not():
    script = (calls([task()]), calls([task(text="two")]), calls([task(text="three")]), says("one"), calls([task()]))
    agent = parent(Subagents([child("kid", *[says("x")] * 4)], fan_out=2), *script)
    first = await agent.run("go", session="s")
    assert [status for _, status in results(first)] == ["ok", "ok", "denied"]
    second = await agent.run("more", session="s")
    assert results(second)[-1] == ("x", "ok")


async def test_agents_are_nested_only_so_deep_whatever_they_have_themselves():
    lowest = child("lowest")
    middle = parent(Subagents([lowest], depth=9), calls([task("lowest")]), name="middle")
    agent = parent(Subagents([middle], depth=1), calls([task("middle")]))
    await agent.run("go", session="s")
    [one] = await started(agent)
    assert await started(agent, one.session) == []
    deeper = parent(Subagents([middle_of(lowest)], depth=2), calls([task("middle")]))
    await deeper.run("go", session="s")
    [one] = await started(deeper)
    assert len(await started(deeper, one.session)) == 1


def middle_of(lowest: Agent[Any, Any]) -> Agent[Any, Any]:
    return parent(Subagents([lowest], depth=9), calls([task("lowest")]), name="middle")


async def test_a_child_may_wait_for_a_person():
    asking = child("kid", calls("pay", n=1), says("paid"))
    asking.gate(ToolCalling, name="ask")(lambda event: Ask("sure?"))
    agent = parent(Subagents([asking]), calls([task()]))
    waiting = await agent.run("go", session="s")
    assert isinstance(waiting.outcome, Suspended)
    result = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    assert results(result) == [("paid", "ok")]


async def test_guards_of_the_parent_hold():
    agent = parent(Subagents([child("kid", calls("pay", n=1), says("over"))]), calls([task()]))
    agent.gate(ToolCalling, tool="pay", band="guard")(lambda event: Deny("no"))
    await agent.run("go", session="s")
    [one] = await started(agent)
    state = await agent.state(one.session)
    assert state.messages[2].parts[0].status == "denied"


async def test_a_child_that_does_not_complete_is_an_error_that_says_why():
    endless = child("kid", calls("pay", n=1), calls("pay", n=2), max_steps=1)
    result = await parent(Subagents([endless]), calls([task()])).run("go")
    assert results(result) == [("Error: agent 'kid' did not complete its task: step_limit", "error")]


async def test_an_agent_that_is_not_there_is_an_invalid_argument():
    result = await parent(Subagents([child()]), calls([task("nobody")])).run("go")
    assert results(result)[0][1] == "error"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subagents([]),
        lambda: Subagents([child(), child()]),
        lambda: Subagents(["kid"]),  # type: ignore[list-item]
        lambda: Subagents([child()], fan_out=0),
        lambda: Subagents([child()], depth=0),
        lambda: Subagents([Subagent(child(), share=2)]),
    ],
)
def test_mistakes_are_found_when_it_is_made(make: Any):
    with pytest.raises(ConfigError):
        make()
