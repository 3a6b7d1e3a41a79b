"""A reply that was cut off is not asked for again with the same limit, and no turn goes on for ever without a tool."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Completed,
    Continuing,
    Message,
    ModelReply,
    ModelReplying,
    Regenerate,
    Stopped,
    StopReason,
    TextPart,
    ToolCallPart,
    Vote,
    tool,
)
from windlass.errors import ConfigError, OutputError
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says
from windlass.testing.ways import assert_same_everywhere


class City(Struct):
    name: str
    people: int


ran: list[Any] = []


@tool(inline=True)
def write(path: str, text: str = "") -> str:
    """Write a file."""
    ran.append(path)
    return "written"


def cut(*parts: Any) -> ModelReply:
    return ModelReply(Message("assistant", tuple(parts)), finish="length")


# ---------------------------------------------------------------- cut off


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_output_that_was_cut_off_stops_at_once_and_names_the_limit(way: str):
    model = ScriptedModel(says('{"name": "Os', finish="length"), says("never said"))
    agent = Agent(model, output=City, settings={"max_tokens": 5})
    if way == "run":
        result = await agent.run("Which city?")
    else:
        stream = agent.stream("Which city?")
        _ = [event async for event in stream]
        result = stream.result
    detail = "the reply was cut off at the limit of output tokens (max_tokens=5)"
    assert result.outcome == Stopped(StopReason.LENGTH, detail)
    assert len(model.requests) == 1
    with pytest.raises(OutputError, match=r"length: the reply was cut off .*max_tokens=5"):
        _ = result.output
    assert result.text == '{"name": "Os'


async def test_without_a_setting_the_limit_is_the_models_own():
    result = await Agent(ScriptedModel(says("cut", finish="length"))).run("go")
    assert isinstance(result.outcome, Stopped)
    assert "max_tokens is not set" in result.outcome.detail


async def test_output_that_does_not_fit_and_was_not_cut_off_is_asked_for_again():
    model = ScriptedModel(says("Oslo"), says('{"name": "Oslo", "people": 700000}'))
    result = await Agent(model, output=City).run("Which city?")
    assert result.output == City("Oslo", 700_000)


async def test_a_hook_may_still_ask_for_a_reply_that_was_cut_off_again():
    model = ScriptedModel(says("too lo", finish="length"), says("short"))
    agent = Agent(model)
    agent.gate(ModelReplying)(lambda e: Regenerate("Be brief.") if e.reply.finish == "length" else None)
    assert (await agent.run("go")).text == "short"


BROKEN = {
    "half an object": ToolCallPart("write", '{"path": "a.txt", "text": "once up', "", "v1"),
    "no arguments yet": ToolCallPart("write", "", "", "v1"),
    "an argument is missing": ToolCallPart("write", "{}", "", "v1"),
    "no such tool": ToolCallPart("wri", '{"pa', "", "v1"),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("gated", [False, True])
async def test_a_call_that_was_cut_off_stops_the_turn_and_none_of_the_step_runs(broken: str, gated: bool):
    ran.clear()
    whole = ToolCallPart("write", '{"path": "b.txt"}', "", "v0")
    model = ScriptedModel(cut(TextPart("I write."), whole, BROKEN[broken]), says("next turn"))
    agent = Agent(model, tools=[write], settings={"max_tokens": 9})
    asked: list[Any] = []
    if gated:
        from windlass import ToolCalling

        agent.gate(ToolCalling)(lambda event: asked.append(event.call))
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.LENGTH
    assert "was cut off at the limit of output tokens (max_tokens=9)" in result.outcome.detail
    assert repr(BROKEN[broken].name) in result.outcome.detail
    assert (len(model.requests), ran, asked) == (1, [], [])
    results = result.messages[-1].parts
    assert [(part.call_id, part.status) for part in results] == [("s/1/1", "cancelled"), ("s/1/2", "cancelled")]  # type: ignore[union-attr]
    assert all("cut off at the limit" in part.text for part in results)  # type: ignore[union-attr]
    assert (await agent.run("again", session="s")).text == "next turn"


async def test_a_whole_call_at_the_limit_runs():
    ran.clear()
    whole = ToolCallPart("write", '{"path": "b.txt"}', "", "v0")
    result = await Agent(ScriptedModel(cut(whole), says("done")), tools=[write]).run("go")
    assert result.outcome == Completed()
    assert ran == ["b.txt"]


async def test_a_cut_off_call_is_the_same_in_every_way_of_running():
    def agent() -> Agent:
        return Agent(ScriptedModel(cut(BROKEN["half an object"]), says("never said")), tools=[write])

    await assert_same_everywhere(agent)


# ---------------------------------------------------------------- going on without a tool


def asking(name: str, **given: Any) -> tuple[Agent[Any, Any], list[Any]]:
    seen: list[Any] = []

    def reply(request: Any) -> Any:
        seen.append(request)
        return says("well", finish="paused" if name == "paused" else "stop")

    agent = Agent(FunctionModel(reply), **given)
    if name == "criterion":
        agent.criterion(lambda state: (Vote.REQUEST, "more"))
    elif name == "hook":
        agent.gate(Continuing, name="hook")(lambda event: Vote.REQUEST)
    return agent, seen


@pytest.mark.parametrize("name", ["paused", "criterion", "hook"])
@pytest.mark.parametrize("bound", [None, 0, 3])
async def test_a_turn_goes_on_without_a_tool_at_most_so_often_in_a_row(name: str, bound: int | None):
    agent, seen = asking(name, **({} if bound is None else {"max_idle_steps": bound}))
    result = await agent.run("go")
    bound = 20 if bound is None else bound
    assert result.stop_reason is StopReason.NO_PROGRESS
    assert isinstance(result.outcome, Stopped)
    assert f"went on {bound} times in a row without a tool call (max_idle_steps)" in result.outcome.detail
    assert len(seen) == bound + 1
    assert result.why().data["ended"]["by"]


async def test_a_tool_call_begins_the_count_anew():
    script = [says("a", finish="paused"), says("b", finish="paused"), calls("write", path="x")]
    model = ScriptedModel(*script, *script, says("done"))
    result = await Agent(model, tools=[write], max_idle_steps=2).run("go")
    assert result.text == "done"


async def test_the_count_survives_a_crash():
    agent, seen = asking("paused", max_idle_steps=5)
    await agent.run("go", session="s")
    log = list(await agent.store.read("s"))
    for at in range(3, len(log)):
        store = MemoryStore()
        await store.append("s", log[:at], 0)
        again, more = asking("paused", max_idle_steps=5, store=store)
        state = await again.state("s")
        if state.turn is None or state.over:
            continue
        result = await again.resume("s")
        assert result.stop_reason is StopReason.NO_PROGRESS
        assert state.steps + len(more) + (state.open is not None) == len(seen) == 6


def test_a_bound_below_zero_is_refused():
    with pytest.raises(ConfigError, match="max_idle_steps=-1"):
        Agent(ScriptedModel("x"), max_idle_steps=-1)
