"""Rewind: the model returns to a checkpoint with a note; effects, usage and what it was told are not forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Completed,
    Reject,
    Rewound,
    StepEnding,
    StepLimit,
    StopReason,
    ToolCalling,
    tool,
)
from windlass.capabilities import DryRun, Rewind
from windlass.errors import ConfigError, ToolError
from windlass.testing import (
    FunctionModel,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    check_capability,
    crash_points,
    says,
)

PLAYS = Path(__file__).with_name("crash_plays.py")


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


@tool(inline=True)
def pay(amount: int) -> str:
    """Pay."""
    if amount > 100:
        raise ToolError("too much")
    return "paid"


def agent_with(*script: Any, rewind: Rewind | None = None, **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), tools=[look, pay], capabilities=[rewind or Rewind()], **options)


def mark(label: str = "a") -> Any:
    return calls("checkpoint", label=label)


def back(label: str = "a", note: str = "Try the other door.") -> Any:
    return calls("rewind", label=label, note=note)


def results(result: Any) -> list[str]:
    return [part.text for message in result.messages for part in message.parts if message.role == "tool"]


def last(agent: Agent, at: int = -1) -> str:
    """The text of the last message in a request."""
    return "\n".join(part.text for part in agent.model.requests[at].messages[-1].parts)


@pytest.mark.parametrize("make", [Rewind, lambda: Rewind(limit=2)])
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_the_model_returns_to_a_checkpoint_with_a_note():
    agent = agent_with(calls("look", at="map"), mark(), calls("look", at="door"), back(), says("ok"))
    result = await agent.run("go")
    assert result.outcome == Completed()
    assert results(result) == ["saw map", "Checkpoint 'a' is set."]
    told = (
        "You have returned to the checkpoint 'a'. What came after it is no longer shown. "
        "Your note to yourself: Try the other door."
    )
    assert last(agent) == told
    assert [message.role for message in result.messages][-2:] == ["user", "assistant"]


async def test_every_turn_can_return_to_its_start():
    agent = agent_with(says("hello"), calls("look", at="door"), back("start", "No door."), says("ok"))
    await agent.run("hi", session="s")
    result = await agent.run("go", session="s")
    assert [message.text for message in result.messages][:3] == ["hi", "hello", "go"]
    assert "returned to the beginning of this turn" in result.messages[3].text
    assert result.text == "ok"


async def test_effects_are_listed_since_they_are_not_undone():
    work = [
        calls([("pay", {"amount": 7}), ("look", {"at": "door"})]),
        calls("pay", amount=700),
        calls("pay", amount="x"),
    ]
    agent = agent_with(calls("pay", amount=1), mark(), *work, back(), says("ok"))
    await agent.run("go")
    assert last(agent).splitlines()[1:] == [
        "These calls were made meanwhile and are not undone:",
        '- pay({"amount":7}): ok',
        '- pay({"amount":700}): error',
        '- pay({"amount":"x"}): error',
    ]


async def test_calls_that_were_never_made_are_not_listed():
    agent = agent_with(mark(), calls("pay", amount=7), back(), says("ok"))
    agent.gate(ToolCalling, tool="pay")(lambda event: Ask("pay?"))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resume("s", answers={asked.id: Reject()})
    assert "not undone" not in last(agent)


async def test_effects_of_earlier_rewinds_are_told_again_when_it_goes_further_back():
    work = [
        mark("a"),
        calls("pay", amount=1),
        mark("b"),
        calls("pay", amount=2),
        back("b", "first try"),
        back("a", "second try"),
    ]
    agent = agent_with(*work, says("ok"))
    result = await agent.run("go")
    assert '- pay({"amount":1}): ok\n- pay({"amount":2}): ok' in last(agent)
    assert '{"amount":1}' not in last(agent, -2)
    assert "first try" not in "".join(message.text for message in result.messages)


async def test_notes_of_one_checkpoint_add_up():
    agent = agent_with(mark(), back(note="Not left."), back(note="Not right."), says("ok"))
    result = await agent.run("go")
    notes = [message.text for message in result.messages if message.role == "user"][1:]
    assert ["Not left." in notes[0], "Not right." in notes[1]] == [True, True]


async def test_what_the_user_said_meanwhile_is_not_lost():
    agent = agent_with(mark(), calls("look", at="door"), back(), back("start"), says("ok"))

    @agent.gate(ToolCalling, tool="look")
    async def write(event, turn):
        await agent.steer(turn.session_id, "Mind the dog.")

    await agent.run("go", session="s")
    assert "Meanwhile you were told:\n- Mind the dog." in last(agent, -2)
    assert "Meanwhile you were told:\n- Mind the dog." in last(agent)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (back("b"), "there is no checkpoint 'b' in this turn; there are start, a"),
        (back(note=""), "length >= 1"),
        (mark("start"), "'start' is the beginning of this turn"),
        (mark("c" * 81), "length <= 80"),
    ],
)
async def test_a_wrong_call_is_an_error_that_the_model_reads(wrong, why):
    result = await agent_with(mark(), wrong, says("ok")).run("go")
    assert why in results(result)[1]
    assert result.state.turn.rewinds == 0


async def test_a_rewind_is_called_alone():
    both = calls([("rewind", {"label": "a", "note": "x"}), ("look", {"at": "door"})])
    result = await agent_with(mark(), both, says("ok")).run("go")
    assert "make this call alone" in results(result)[1]
    assert results(result)[2] == "saw door"


async def test_checkpoints_set_later_are_gone_and_one_of_the_same_name_is_moved():
    agent = agent_with(mark("a"), mark("b"), back("a"), back("b"), says("ok"))
    assert "no checkpoint 'b' in this turn; there are start, a" in results(await agent.run("go"))[-1]
    agent = agent_with(mark(), calls("look", at="map"), mark(), calls("look", at="door"), back(), says("ok"))
    assert results(await agent.run("go")) == ["Checkpoint 'a' is set.", "saw map", "Checkpoint 'a' is set."]


async def test_two_checkpoints_in_one_step_are_both_set():
    both = calls([("checkpoint", {"label": "a"}), ("checkpoint", {"label": "b"})])
    result = await agent_with(both, back("a"), back("b"), says("ok")).run("go")
    assert result.state.turn.rewinds == 2


async def test_checkpoints_belong_to_their_turn():
    agent = agent_with(mark(), says("ok"), back(), says("ok"))
    await agent.run("go", session="s")
    assert "there are start" in results(await agent.run("go", session="s"))[-1]


async def test_their_number_is_bounded():
    result = await agent_with(mark("a"), mark("b"), mark("a"), says("ok"), rewind=Rewind(max_checkpoints=1)).run("go")
    assert "at most 1 checkpoints; move one: a" in results(result)[1]
    assert results(result)[2] == "Checkpoint 'a' is set."


@pytest.mark.parametrize(("limit", "vetoes", "most"), [(None, 3, 3), (2, 3, 2), (None, 1, 1)])
async def test_rewinds_are_bounded_and_the_turn_goes_on(limit, vetoes, most):
    script = [mark(), *[back()] * (most + 1), says("ok")]
    agent = agent_with(*script, rewind=Rewind(limit=limit), max_vetoes=vetoes)
    result = await agent.run("go")
    assert result.outcome == Completed()
    assert f"no rewind left, it had {most}" in results(result)[-1]
    assert result.state.turn.rewinds == most


def test_a_limit_beyond_the_bound_of_the_agent_is_refused():
    with pytest.raises(ConfigError, match=r"limit=4 rewinds are more than Agent\(max_vetoes=3\) allows"):
        agent_with(rewind=Rewind(limit=4)).compile()


async def test_limits_and_usage_are_not_rewound():
    loop = [mark(), back()]
    model = FunctionModel(lambda request: loop[len(request.messages) > 1])
    agent = Agent(model, capabilities=[Rewind()], criteria=[StepLimit(3)])
    result = await agent.run("go")
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert result.usage.requests == 3


async def test_a_dry_run_stays_where_it_is():
    agent = agent_with(mark(), back(), says("ok"))
    agent.with_capability(DryRun())
    assert (await agent.run("go")).state.turn.rewinds == 0


async def test_the_log_names_it():
    agent = agent_with(mark(), calls("look", at="door"), back(), says("ok"))
    result = await agent.run("go", session="s")
    (rewound,) = [record for record in await agent.store.read("s") if isinstance(record, Rewound)]
    assert (rewound.to, rewound.by) == (2, ("rewind",))
    assert "rewind" in str(result.why())


async def test_another_process_returns_to_the_checkpoint(tmp_path):
    def make(*script: Any) -> Agent:
        agent = agent_with(*script, store=f"sqlite:///{tmp_path}/rewind.db")
        agent.gate(ToolCalling, tool="pay")(lambda event: Ask("pay?"))
        return agent

    async with make(mark(), calls("pay", amount=7)) as first:
        asked = (await first.run("go", session="s")).waiting_for[0]
    async with make(back(), says("ok")) as second:
        result = await second.resume("s", answers={asked.id: Approve()})
        assert '- pay({"amount":7}): ok' in last(second)
        assert results(result) == ["Checkpoint 'a' is set."]


async def test_a_hook_still_sees_the_step_that_called_for_it():
    agent = agent_with(mark(), back(), says("ok"))
    seen: list[str] = []
    agent.gate(StepEnding)(lambda event: seen.extend(call.name for call in event.step.calls))
    await agent.run("go")
    assert seen == ["checkpoint", "rewind"]


async def test_it_is_the_same_everywhere():
    script = [calls("look", at="map"), mark(), calls("pay", amount=3), back(), back("start"), says("ok")]
    lived = await assert_same_everywhere(lambda: agent_with(*script))
    assert lived.state.turn.rewinds == 2


@pytest.mark.timeout(240)
def test_a_rewind_survives_a_crash_at_every_write():
    report = crash_points(f"{PLAYS}:returned", workers=2)
    assert report.text == "Paid once."
    assert len(report.points) > 10


def test_explain_tells_the_limit():
    (line,) = agent_with(rewind=Rewind(limit=2)).explain().data["capabilities"]
    assert line["summary"] == "at most 2 rewinds"


@pytest.mark.parametrize("options", [{"limit": 0}, {"max_checkpoints": 0}, {"name": ""}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Rewind"):
        Rewind(**options)
