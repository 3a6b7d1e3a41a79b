"""Traces can be compared, and a turn lived through in every way is the same turn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    ErrorPolicy,
    Halt,
    ModelError,
    ModelReplying,
    Regenerate,
    Reject,
    Resuming,
    SessionStarting,
    Slot,
    StepStarting,
    Stopping,
    Suspended,
    ToolCalling,
    ToolReturning,
    TurnStarting,
    Veto,
    tool,
)
from windlass.testing import (
    FakeClock,
    HookTrace,
    ScriptedModel,
    agreeable,
    assert_same,
    assert_same_everywhere,
    breaks,
    calls,
    run_everywhere,
    says,
    traces,
)
from windlass.testing.ways import PATIENCE

NOTES = Slot("notes", list[str])
WAYS = {"run", "run_sync", "iterate"} | ({"stream"} if hasattr(Agent, "stream") else set())
WAYS |= {"as_tool"} if hasattr(Agent, "as_tool") else set()


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wipe(path: str) -> str:
    """Wipe a path."""
    return f"wiped {path}"


def eventful() -> Agent:
    """An agent in whose turn much happens: denied, asked, injected, rewritten, regenerated, vetoed, retried."""
    agent = Agent(
        ScriptedModel(
            calls([("add", {"a": 1, "b": 2}), ("add", {"a": 1000, "b": 2})], _text="Let me see."),
            breaks("I thi", chunks=["I ", "thi"], error=ModelError("gone", retryable=True)),
            calls("wipe", path="/"),
            says("A secret."),
            says("Done.", thinking="Hm.", chunks=["Do", "ne."]),
            says("Really done."),
        ),
        tools=[add, wipe],
        errors=ErrorPolicy.retrying(1, delay=0),
    )
    agent.slot(NOTES)
    agent.inject(TurnStarting, name="advice")(lambda event: "Use small numbers.")
    agent.inject(StepStarting, name="count")(lambda event: f"Step {event.step}.")
    agent.gate(ToolCalling, tool="wipe", name="ask_first")(lambda event: Ask("Wipe?"))
    agent.rewrite(ToolReturning, tool="add", name="exact")(lambda event: f"exactly {event.result.text}")
    agent.gate(Resuming, name="welcome_back")(lambda event: None)

    @agent.gate(ToolCalling, tool="add")
    def small(event: ToolCalling) -> Deny | None:
        return Deny("too big") if event.call.arguments["a"] > 100 else None

    @agent.gate(ModelReplying)
    def no_secrets(event: ModelReplying, turn: Any) -> Regenerate | None:
        turn.set(NOTES, [*turn.get(NOTES), event.reply.text])
        return Regenerate("no secrets") if "secret" in event.reply.text else None

    @agent.gate(Stopping)
    def once_more(event: Stopping) -> Veto | None:
        return None if event.stop_active else Veto("Are you done?")

    return agent


# ---------------------------------------------------------------- comparing


async def trace_of(agent: Agent) -> HookTrace:
    await agent.run("go", session="s")
    return await HookTrace.read(agent, "s")


def denying(reason: str | None) -> Agent:
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    agent.inject(TurnStarting, name="advice")(lambda event: "Be brief.")
    agent.gate(ToolCalling, name="strict")(lambda event: Deny(reason) if reason else None)
    return agent


async def test_the_same_traces_do_not_differ():
    one, other = await trace_of(denying("no")), await trace_of(denying("no"))
    assert one.diff(other) == ""
    assert_same(one, other)


async def test_a_difference_is_shown_line_by_line():
    one, other = await trace_of(denying("no")), await trace_of(denying(None))
    shown = one.diff(other, "mine", "yours").splitlines()
    assert shown[:2] == ["--- mine", "+++ yours"]
    assert any(line.split() == ["-ToolCalling", "strict", "Deny"] for line in shown)
    assert any(line.split() == ["TurnStarting", "advice", "inject"] for line in shown)
    with pytest.raises(AssertionError, match=r"(?s)did different things.*-ToolCalling +strict +Deny"):
        assert_same(one, other)


# ---------------------------------------------------------------- every way


async def test_an_eventful_turn_is_the_same_in_every_way():
    lived = await assert_same_everywhere(eventful, "Add and wipe.")
    assert lived.resumed == 1
    assert lived.state.text == "Really done."
    assert {what for _, hook, what in lived.trace.rows if hook == "ask_first"} == {"Ask"}
    assert lived.trace.of("Stopping") == [("Stopping", "once_more", "Veto")]


async def test_it_is_run_in_all_ways_there_are():
    assert set(await traces(eventful, "go")) == WAYS | {"resume"}
    assert set(await traces(lambda: Agent(ScriptedModel("hi")))) == WAYS


async def test_a_turn_can_be_left_suspended():
    lived = await assert_same_everywhere(eventful, "go", answers=None)
    assert isinstance(lived.state.outcome, Suspended)
    assert lived.resumed == 0


async def test_answers_are_one_for_all_or_a_function_of_what_is_asked():
    one = await assert_same_everywhere(eventful, "go", answers=Reject("no", by="boss"))
    assert [row for row in one.trace.rows if row[1] == "ask_first"]
    seen = []

    def answer(asked: Any) -> Any:
        seen.append(asked.question)
        return Approve()

    await assert_same_everywhere(eventful, "go", answers=answer)
    assert set(seen) == {"Wipe?"}


@pytest.mark.parametrize("allow", [("approve",), ("edit",), ("respond",), ("reject",), ("reject", "approve")])
async def test_the_agreeable_answer_is_one_that_is_allowed(allow):
    def asking() -> Agent:
        agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
        agent.gate(ToolCalling)(lambda event: Ask("?", allow=allow, approvers=("boss",)))
        return agent

    lived = await assert_same_everywhere(asking, answers=agreeable)
    assert lived.state.text == "3"


async def test_a_turn_that_is_refused_at_once_has_no_log():
    def refusing() -> Agent:
        agent = Agent(ScriptedModel())
        agent.gate(SessionStarting)(lambda event: Halt("no"))
        return agent

    assert (await assert_same_everywhere(refusing)).state.text == ""


async def test_a_hook_that_depends_on_the_way_of_running_is_found():
    numbers = itertools.count()

    def fickle() -> Agent:
        agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
        number = next(numbers)
        agent.gate(ToolCalling, name="fickle")(lambda event: Deny("no") if number == 2 else None)
        return agent

    with pytest.raises(AssertionError, match=r"(?s)--- run.*\+\+\+ iterate.*\+ToolCalling +fickle +Deny"):
        await assert_same_everywhere(fickle)


async def test_a_transcript_that_depends_on_the_way_of_running_is_found():
    numbers = itertools.count()

    def counting() -> Agent:
        return Agent(ScriptedModel(f"I am number {min(next(numbers), 1)}."))

    with pytest.raises(
        AssertionError, match=r"text with run_sync is 'I am number 1.', but with run it is 'I am number 0.'"
    ):
        await assert_same_everywhere(counting)


async def test_a_turn_that_asks_for_ever_is_left_suspended():
    def asking() -> Agent:
        agent = Agent(ScriptedModel(*[calls("add", a=1, b=2)] * 200), tools=[add])
        agent.gate(ToolCalling)(lambda event: Ask("Again?"))
        return agent

    lived = await assert_same_everywhere(asking)
    assert isinstance(lived.state.outcome, Suspended)
    assert lived.resumed == PATIENCE


async def test_a_store_that_is_shared_is_refused():
    agent = Agent(ScriptedModel("a", "b"))
    with pytest.raises(ValueError, match="made an agent with a used store"):
        await run_everywhere(lambda: agent)


async def test_a_sub_agent_goes_by_the_clock_of_the_agent_in_every_way():
    seen = []

    def one() -> Agent:
        agent = Agent(ScriptedModel(says("Hi.")), clock=FakeClock(5.0, auto=True))
        agent.gate(TurnStarting)(lambda event: seen.append(event.turn.now()))
        return agent

    ways = await run_everywhere(one)
    assert seen == [5.0] * len(ways)
