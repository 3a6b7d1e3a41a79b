"""`result.steps`: what each step of a turn came to, from its log."""

from __future__ import annotations

from typing import Any

from windlass import (
    Agent,
    Ask,
    Deny,
    Edit,
    Regenerate,
    Result,
    StepLimit,
    Turn,
    Vote,
    tool,
)
from windlass.events import ModelReplying, ToolCalling
from windlass.messages import ToolResult
from windlass.steps import StepReport, steps_of
from windlass.testing import FakeClock, ScriptedModel, calls, run_everywhere, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> ToolResult:
    """Add two numbers."""
    return ToolResult.of(a + b, data={"sum": a + b})


def adding(**options: Any) -> Agent:
    script = [calls([("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})], _delay=2), says("3 and 7", delay=1)]
    clock = FakeClock(100.0, auto=True)
    return Agent(ScriptedModel(*script, clock=clock), tools=[add], clock=clock, **options)


async def test_every_step_has_its_reply_its_calls_their_results_and_its_times():
    agent = adding()
    result = await agent.run("go")
    first, second = result.steps
    assert [call.arguments for call in first.calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert [made.text for made in first.results if made is not None] == ["3", "7"]
    assert [made.data for made in first.results if made is not None] == [{"sum": 3}, {"sum": 7}]
    assert [report.attempts for report in first.tools] == [1, 1]
    assert first.reply is not None
    assert first.reply.tool_calls[0].name == "add"
    assert (first.vote, second.number, second.calls, second.vote) == (None, 2, (), Vote.ALLOW_STOP)
    assert second.reply is not None
    assert second.reply.text == "3 and 7"
    assert first.ended_at == second.started_at
    assert first.started_at <= first.replied_at <= first.tools[0].called_at <= first.tools[0].returned_at


async def test_times_are_those_of_the_agents_clock():
    agent = adding()

    async with agent.stream("go") as stream:
        async for _ in stream:
            pass
    first, second = stream.result.steps
    assert (first.started_at, first.replied_at) == (100.0, 102.0)
    assert (second.started_at, second.ended_at) == (102.0, 103.0)
    assert (first.took, second.took) == (2.0, 1.0)


async def test_votes_are_told_with_their_reasons():
    result = await adding(criteria=[StepLimit(1)]).run("go")
    (step,) = result.steps
    assert step.vote is Vote.FORBID
    assert step.votes[0][0] == "StepLimit"


async def test_steps_of_this_turn_only():
    agent = Agent(ScriptedModel(says("one"), says("two")))
    await agent.run("go", session="s")
    result = await agent.run("again", session="s")
    assert [(step.number, step.reply.text) for step in result.steps if step.reply] == [(2, "two")]


async def test_a_rejected_reply_is_beside_the_one_that_stood():
    agent = Agent(ScriptedModel(says("bad"), says("good")))
    agent.gate(ModelReplying)(lambda event: Regenerate("no") if event.reply.text == "bad" else None)
    (step,) = (await agent.run("go")).steps
    assert [reply.text for reply in step.rejected] == ["bad"]
    assert step.reply is not None
    assert step.reply.text == "good"


async def test_an_open_step_has_calls_without_results_and_an_edit_shows_in_the_call():
    agent = adding()
    agent.gate(ToolCalling)(lambda event: Ask("May it?") if event.call.arguments["a"] == 3 else None)
    result = await agent.run("go", session="s")
    (step,) = result.steps
    assert step.ended_at == step.took == 0
    assert [made and made.text for made in step.results] == ["3", None]
    (asked,) = result.waiting_for
    resumed: Result[Any] = await agent.resume("s", answers={asked.id: Edit({"a": 5, "b": 5})})
    first, _ = resumed.steps
    assert [call.arguments["a"] for call in first.calls] == [1, 5]
    assert [made and made.text for made in first.results] == ["3", "10"]


async def test_a_denied_call_was_not_made():
    agent = adding()
    agent.gate(ToolCalling)(lambda event: Deny("no"))
    first, _ = (await agent.run("go")).steps
    report = first.tools[0]
    assert report.result is not None
    assert (report.result.status, report.called_at, report.attempts, report.took) == ("denied", 0, 0, 0)


async def test_the_steps_are_the_same_however_the_turn_is_run():
    def factory() -> Agent:
        agent = adding()
        agent.gate(ToolCalling)(lambda event: Ask("May it?"))
        return agent

    def story(steps: tuple[StepReport, ...]) -> list[Any]:
        return [[(made and made.text) for made in step.results] + [step.reply and step.reply.text] for step in steps]

    lived = await run_everywhere(factory)
    assert set(lived) == {"run", "run_sync", "iterate", "stream", "resume", "as_tool"}
    for way in lived.values():
        assert story(steps_of(way.log)) == [["3", "7", ""], ["3 and 7"]]


async def test_a_sub_agents_steps_are_its_own():
    child = Agent(ScriptedModel(says("child")), name="child")
    parent = Agent(ScriptedModel(calls("child", task="x"), says("done")), tools=[child.as_tool()])
    first, second = (await parent.run("go")).steps
    assert [made and made.text for made in first.results] == ["child"]
    assert second.reply is not None


async def test_secrets_are_masked_in_steps():
    @tool(effect="pure", inline=True)
    def leak(turn: Turn[Any]) -> str:
        """Leak."""
        return "hunter22"

    agent = Agent(ScriptedModel(calls("leak"), says("hunter22")), tools=[leak], secrets=["hunter22"])
    assert "hunter22" not in repr((await agent.run("go")).steps)
