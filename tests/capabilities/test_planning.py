"""Planning: a plan that the model writes and updates, that survives everything, with reminders and one veto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Completed, Stopping, ToolCalling, Veto, tool
from windlass.capabilities import AtMessages, Plan, PlanItem, Planning, Trim, plan_of
from windlass.errors import ConfigError, WindlassError
from windlass.testing import (
    ScriptedModel,
    assert_prefix_stable,
    assert_same_everywhere,
    calls,
    check_capability,
    crash_points,
    says,
)

PLAYS = Path(__file__).with_name("crash_plays.py")


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "saw it"


def write(*items: tuple[str, str]) -> Any:
    return calls("write_todos", items=[{"text": text, "status": status} for text, status in items])


def update(item: int, status: str, **more: Any) -> Any:
    return calls("update_todo", item=item, status=status, **more)


TWO = write(("read", "in_progress"), ("fix", "pending"))


def agent_with(*script: Any, planning: Planning | None = None, **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), tools=[look], capabilities=[planning or Planning()], **options)


def results(result: Any) -> list[str]:
    return [part.text for message in result.messages for part in message.parts if message.role == "tool"]


def tails(agent: Agent) -> list[str]:
    """The text of the last message in each request, with what was put beside it."""
    return ["\n".join(part.text for part in request.messages[-1].parts) for request in agent.model.requests]


def reminded(agent: Agent) -> list[bool]:
    return ["items of your plan are open" in text for text in tails(agent)]


@pytest.mark.parametrize("make", [Planning, lambda: Planning(remind=1, finish_first=True)])
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_a_plan_is_written_and_its_items_are_updated():
    agent = agent_with(TWO, update(1, "done", start=2), update(2, "dropped", text="fix it all"), says("ok"))
    result = await agent.run("go")
    assert results(result) == [
        "The plan has 1 pending, 1 in_progress.",
        "The plan has 1 in_progress, 1 done.",
        "The plan has 1 done, 1 dropped.",
    ]
    plan = plan_of(result)
    assert plan.items == (PlanItem("read", "done"), PlanItem("fix it all", "dropped"))
    assert plan.open == ()
    assert str(plan) == "1. [done] read\n2. [dropped] fix it all"
    assert plan == result.slots["planning"] == plan_of(result.state)


async def test_a_session_without_a_plan_has_an_empty_one():
    assert plan_of(await agent_with(says("hi")).run("go")) == Plan()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (write(("a", "in_progress"), ("b", "in_progress")), "items 1 and 2 are in progress; at most one may be"),
        (update(2, "in_progress"), "items 1 and 2 are in progress; at most one may be"),
        (update(1, "pending", start=9), "the plan has no item 9; it has items 1 to 2"),
        (update(0, "done"), "the plan has no item 0"),
        (update(1, "done", text=""), "has 1 to 300 characters"),
        (write(*[("a", "pending")] * 4), "at most 3 items; this one has 4"),
        (write(("", "pending")), "length >= 1"),
        (write(("a", "finished")), "Invalid enum value"),
    ],
)
async def test_a_wrong_change_is_an_error_that_the_model_repairs(wrong, why):
    agent = agent_with(TWO, wrong, update(1, "done"), says("ok"), planning=Planning(max_items=3))
    result = await agent.run("go")
    assert why in results(result)[1]
    assert [item.status for item in plan_of(result).items] == ["done", "pending"]


async def test_an_update_before_there_is_a_plan_says_what_to_do():
    result = await agent_with(update(1, "done"), says("ok")).run("go")
    assert "it is empty: call write_todos first" in results(result)[0]


async def test_parallel_changes_are_refused_and_other_tools_run():
    """Behaviour 76: each change gets an error and none applies; with other tools, only those run."""
    both = calls([("update_todo", {"item": 1, "status": "done"}), ("look", {}), ("write_todos", {"items": []})])
    result = await agent_with(TWO, both, says("ok")).run("go")
    _, first, other, second = results(result)
    assert "none of these calls was applied" in first
    assert "none of these calls was applied" in second
    assert other == "saw it"
    assert [item.status for item in plan_of(result).items] == ["in_progress", "pending"]


async def test_a_change_beside_another_tool_is_applied():
    both = calls([("look", {}), ("update_todo", {"item": 1, "status": "done"})])
    assert plan_of(await agent_with(TWO, both, says("ok")).run("go")).items[0].status == "done"


async def test_the_model_is_reminded_after_steps_without_a_change():
    steps = [TWO, *[calls("look")] * 4, update(1, "done"), *[calls("look")] * 2, says("ok")]
    agent = agent_with(*steps, planning=Planning(remind=2))
    result = await agent.run("go")
    assert reminded(agent) == [False, False, False, True, False, True, False, False, True]
    assert "1. [in_progress] read\n2. [pending] fix" in tails(agent)[3]
    assert not any("items of your plan" in repr(message) for message in result.messages)


async def test_there_is_no_reminder_of_a_finished_plan_nor_without_the_option():
    finished = agent_with(write(("read", "done")), *[calls("look")] * 3, says("ok"), planning=Planning(remind=1))
    await finished.run("go")
    silent = agent_with(TWO, *[calls("look")] * 3, says("ok"), planning=Planning(remind=None))
    await silent.run("go")
    assert not any([*reminded(finished), *reminded(silent)])


async def test_a_new_turn_begins_with_a_reminder():
    agent = agent_with(TWO, says("more soon"), says("ok"))
    await agent.run("go", session="s")
    await agent.run("go on", session="s")
    assert reminded(agent) == [False, False, True]


async def test_a_long_plan_gives_a_short_reminder():
    text = "ü" * 300
    planning = Planning(remind=1)
    script = [write(*[(text, "pending")] * 49, ("last", "in_progress")), calls("look"), says("ok")]
    agent = agent_with(*script, planning=planning)
    await agent.run("go")
    assert "50. [in_progress] last\n1. [pending]" in tails(agent)[2]
    assert "… and 40 more" in tails(agent)[2]


async def test_reminders_do_not_break_the_prefix():
    agent = agent_with(TWO, *[calls("look")] * 3, says("ok"), planning=Planning(remind=1))
    await agent.run("go", session="s")
    await assert_prefix_stable(agent, "s")


async def test_the_plan_survives_a_compaction():
    planning = Planning(remind=1)
    script = [TWO, *[calls("look")] * 6, says("ok")]
    model = ScriptedModel(*script)
    agent = Agent(model, tools=[look], capabilities=[planning, Trim(trigger=AtMessages(6), keep=2)])
    result = await agent.run("go", session="s")
    assert result.state.compactions
    assert not any(call.name == "write_todos" for message in result.state.shown for call in message.tool_calls)
    assert "1. [in_progress] read" in tails(agent)[-1]
    assert len(plan_of(result).open) == 2


async def test_the_plan_survives_a_fork_and_both_go_on_alone():
    agent = agent_with(TWO, says("ok"), update(1, "done"), says("ok"))
    await agent.run("go", session="s")
    fork = await agent.fork("s")
    await agent.run("go on", session=fork)
    assert [plan_of(await agent.state(name)).items[0].status for name in ("s", fork)] == ["in_progress", "done"]


async def test_the_plan_survives_a_resume_in_another_process(tmp_path):
    def make(*script: Any) -> Agent:
        agent = agent_with(*script, store=f"sqlite:///{tmp_path}/plan.db")
        agent.gate(ToolCalling, tool="look")(lambda event: Ask("look?"))
        return agent

    async with make(TWO, calls("look")) as first:
        asked = (await first.run("go", session="s")).waiting_for[0]
    async with make(update(1, "done"), says("ok")) as second:
        result = await second.resume("s", answers={asked.id: Approve()})
    assert [item.status for item in plan_of(result).items] == ["done", "pending"]


async def test_a_stop_with_open_items_is_vetoed_once_in_each_turn():
    script = [TWO, says("done?"), says("yes"), says("again?"), says("yes")]
    agent = agent_with(*script, planning=Planning(finish_first=True))
    result = await agent.run("go", session="s")
    assert result.text == "yes"
    assert "Your plan has open items" in tails(agent)[2]
    assert "2. [pending] fix" in tails(agent)[2]
    assert (await agent.run("go", session="s")).text == "yes"
    assert len(agent.model.requests) == 5


async def test_another_veto_does_not_use_up_the_one_of_the_plan():
    agent = agent_with(says("one"), TWO, says("two"), says("three"), planning=Planning(finish_first=True))
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("Write a plan."))
    assert (await agent.run("go")).text == "three"


async def test_the_bound_on_vetoes_is_kept():
    agent = agent_with(TWO, says("ok"), planning=Planning(finish_first=True), max_vetoes=0)
    assert (await agent.run("go")).outcome == Completed()


async def test_a_stop_without_open_items_stands():
    agent = agent_with(write(("read", "dropped")), says("ok"), planning=Planning(finish_first=True))
    assert (await agent.run("go")).text == "ok"
    assert (await agent_with(TWO, says("ok")).run("go")).text == "ok"


async def test_it_is_the_same_everywhere():
    planning = Planning(remind=1, finish_first=True)
    script = [TWO, calls("look"), update(1, "done"), says("ok?"), update(2, "done"), says("ok")]
    lived = await assert_same_everywhere(lambda: agent_with(*script, planning=planning))
    assert plan_of(lived.state).open == ()


@pytest.mark.timeout(240)
def test_a_plan_survives_a_crash_at_every_write():
    report = crash_points(f"{PLAYS}:planned", workers=2)
    assert report.text == "All done."
    assert len(report.points) > 10


async def test_the_application_gives_a_plan_and_a_wrong_one_is_refused():
    agent = agent_with(says("ok"))
    plan = Plan((PlanItem("read"),))
    assert plan_of(await agent.run("go", slots={"planning": plan})) == plan
    twice = {"items": [{"text": "a", "status": "in_progress"}] * 2}
    with pytest.raises(WindlassError, match="at most one may be"):
        (await agent.run("go", slots={"planning": twice})).raise_for_error()


def test_explain_tells_the_options():
    (line,) = agent_with(planning=Planning(finish_first=True)).explain().data["capabilities"]
    assert line["summary"] == "at most 50 items, reminds after 10 steps, vetoes one stop with open items"


@pytest.mark.parametrize("options", [{"remind": 0}, {"max_items": 0}, {"finish_first": 1}, {"name": ""}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Planning"):
        Planning(**options)


async def test_an_item_cannot_be_done_and_started_in_one_call():
    write = calls("write_todos", items=[{"text": "a"}])
    model = ScriptedModel(write, calls("update_todo", item=1, status="done", start=1), says("Done."))
    result = await Agent(model, capabilities=[Planning()]).run("go")
    assert "item 1 cannot be done and be started in one call" in result.messages[4].parts[0].text
    assert plan_of(result).items == (PlanItem("a"),)
