"""Progress: tools and wraps tell how far they are, as facts that are not recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Progressed,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    tool,
)
from windlass.errors import ConfigError, HookError
from windlass.testing import ScriptedModel, calls, fake_turn, says


@tool(effect="pure")
async def count(upto: int, turn) -> str:
    """Count."""
    for number in range(1, upto + 1):
        turn.progress(number, upto, f"at {number}")
    return "counted"


@tool(effect="pure")
def count_in_a_thread(upto: int, turn) -> str:
    """Count."""
    for number in range(1, upto + 1):
        turn.progress(number, upto)
    return "counted"


def counting(made: Any = count, upto: int = 2, **options: Any) -> Agent:
    return Agent(ScriptedModel(calls(made.name, upto=upto), says("done")), tools=[made], **options)


def told(events: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.about, one.by, one.done, one.total, one.text) for one in events if isinstance(one, Progressed)]


async def streamed(agent: Agent, message: str | None = "go", **options: Any) -> list[Any]:
    async with agent.stream(message, session="s", **options) as stream:
        return [event async for event in stream]


@pytest.mark.parametrize("made", [count, count_in_a_thread], ids=["async", "thread"])
async def test_progress_is_in_the_stream_between_the_call_and_its_result_and_not_in_the_log(made):
    agent = counting(made)
    events = await streamed(agent)
    texts = ("at 1", "at 2") if made is count else ("", "")
    assert told(events) == [("s/1/1", made.name, 1.0, 2.0, texts[0]), ("s/1/1", made.name, 2.0, 2.0, texts[1])]
    kinds = [
        type(event).__name__ for event in events if type(event).__name__ in ("ToolCalled", "Progressed", "ToolReturned")
    ]
    assert kinds == ["ToolCalled", "Progressed", "Progressed", "ToolReturned"]
    assert all(event.at > 0 for event in events if isinstance(event, Progressed))
    assert "Progressed" not in {type(record).__name__ for record in await agent.store.read("s")}


async def test_observers_get_progress_in_a_plain_run():
    seen: list[Progressed] = []
    agent = counting()
    agent.observe(Progressed, wait=True)(seen.append)
    assert (await agent.run("go", session="s")).text == "done"
    assert told(seen) == [("s/1/1", "count", 1.0, 2.0, "at 1"), ("s/1/1", "count", 2.0, 2.0, "at 2")]


async def test_progress_after_a_resume():
    agent = counting()
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    events = await streamed(agent, None, answers={asked.id: Approve()})
    assert len(told(events)) == 2


async def test_progress_of_a_sub_agents_tool_comes_with_its_path():
    child = counting(name="child")
    parent = Agent(ScriptedModel(calls("child", task="x"), says("done")), tools=[child.as_tool()])
    events = await streamed(parent)
    found = [event for event in events if isinstance(event, Progressed)]
    assert [event.done for event in found] == [1.0, 2.0]
    assert all(event.path and event.about.startswith(event.path) for event in found)


async def test_a_wrap_tells_progress_in_its_own_name():
    agent = counting(upto=0)

    @agent.wrap(ToolCall)
    async def twice(call, call_next, turn):
        turn.progress(1, 2, "first")
        return await call_next(call)

    assert told(await streamed(agent)) == [("s/1/1", "twice", 1.0, 2.0, "first")]


async def test_text_of_a_tool_whose_results_are_reviewed_is_left_out():
    agent = counting()
    agent.rewrite(ToolReturning, tool="count")(lambda event: None)
    assert [text for *_, text in told(await streamed(agent))] == ["", ""]
    model = ScriptedModel(calls("count", upto=2), says("done"))
    agent = Agent(model, tools=[count, count_in_a_thread])
    agent.rewrite(ToolReturning, tool="count_in_a_thread")(lambda event: None)
    assert [text for *_, text in told(await streamed(agent))] == ["at 1", "at 2"]


async def test_secrets_are_masked_in_progress():
    @tool(effect="pure")
    async def leak(turn) -> str:
        """Leak."""
        turn.progress(1, 2, "with hunter22")
        return "ok"

    agent = Agent(ScriptedModel(calls("leak"), says("done")), tools=[leak], secrets=["hunter22"])
    assert [text for *_, text in told(await streamed(agent))] == ["with •••"]


async def test_a_tool_does_not_wait_for_a_slow_consumer_and_nothing_piles_up():
    agent = counting(upto=5000)
    events: list[Any] = []
    async with agent.stream("go") as stream:
        async for event in stream:
            events.append(event)
            await asyncio.sleep(0)
    assert 0 < len(told(events)) < 100
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["done"]
    assert [event.result.text for event in events if isinstance(event, ToolReturned)] == ["counted"]


async def test_mistakes_are_named():
    turn = fake_turn()
    for wrong in (-1, True, "half", float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"turn\.progress\(done="):
            turn.progress(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"turn\.progress\(total="):
        turn.progress(1, -1)
    with pytest.raises(ConfigError, match=r"turn\.progress\(text="):
        turn.progress(1, 2, 3)  # type: ignore[arg-type]
    assert turn.told == []
    turn.progress(1, 2, "half")
    assert turn.told == [(1, 2, "half")]
    failed: list[Any] = []
    agent = counting()

    @agent.observe(ToolReturned, wait=True)
    def look(fact, turn):
        try:
            turn.progress(1)
        except HookError as error:
            failed.append(str(error))

    await agent.run("go")
    assert failed == ["an observer cannot tell progress: it runs beside the turn"]
