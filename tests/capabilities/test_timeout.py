"""Timeout: per model call, tool, step and turn, on the agent's clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Completed, Failed, Stopped, StopReason, tool
from windlass.capabilities import Retry, Timeout
from windlass.errors import ConfigError, ModelTimeout
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says


def slow_model(clock: FakeClock, *seconds: float) -> FunctionModel:
    """A model whose n-th reply takes so many seconds."""
    waits = list(seconds)

    async def reply(request: Any) -> Any:
        wait = waits.pop(0)
        if wait:
            await clock.alarm(wait)
        return says("hi")

    return FunctionModel(reply)


def slow_tool(clock: FakeClock, seconds: float, name: str = "work", effect: Any = "pure") -> Any:
    @tool(name=name, effect=effect)
    async def work() -> str:
        """Work."""
        await clock.alarm(seconds)
        return "worked"

    return work


async def finish(turn: Any, clock: FakeClock, *, seconds: float = 1.0, times: int = 60) -> Any:
    """Let time pass until the turn is over."""
    running = asyncio.ensure_future(turn)
    for _ in range(times):
        await clock.advance(seconds)
        if running.done():
            break
    return await running


@pytest.mark.parametrize(
    "make", [lambda: Timeout(model=60, tool=60, tools={"fail": 9}, step=100, turn=1000), lambda: Timeout(step=60)]
)
async def test_it_passes_the_checks_for_capabilities(make):
    await check_capability(make)


async def test_a_model_call_that_takes_too_long_fails_and_is_retried():
    clock = FakeClock()
    agent = Agent(slow_model(clock, 100, 0), clock=clock, capabilities=[Timeout(model=5)])
    result = await finish(agent.run("go", session="s"), clock)
    assert result.text == "hi"
    (handled,) = [r for r in await agent.store.read("s") if type(r).__name__ == "ErrorHandled"]
    assert (handled.error.type, handled.error.message) == ("ModelTimeout", "model 'function' took longer than 5 s")


async def test_inside_retry_each_attempt_has_its_own_limit():
    clock = FakeClock()
    agent = Agent(
        slow_model(clock, 100, 100, 0), clock=clock, capabilities=[Retry(delay=0, jitter=False), Timeout(model=5)]
    )
    assert (await finish(agent.run("go"), clock)).text == "hi"
    clock = FakeClock()
    agent = Agent(slow_model(clock, 4, 4), clock=clock, capabilities=[Timeout(model=5)])
    assert (await finish(agent.run("go"), clock)).text == "hi"


async def test_a_time_out_of_the_model_itself_is_left_as_it_is():
    agent = Agent(
        ScriptedModel(*[TimeoutError("mine")] * 3), clock=FakeClock(auto=True), capabilities=[Timeout(model=5)]
    )
    assert (await agent.run("go")).outcome.error.message == "mine"


@pytest.mark.parametrize(
    ("effect", "status", "text"),
    [
        ("pure", "error", "Error: 'work' took longer than 5 s"),
        ("unsafe", "interrupted", "unknown"),
    ],
)
async def test_the_model_reads_that_a_tool_took_too_long(effect, status, text):
    clock = FakeClock()
    model = ScriptedModel(calls("work"), says("done"))
    agent = Agent(model, tools=[slow_tool(clock, 100, effect=effect)], clock=clock, capabilities=[Timeout(tool=5)])
    result = await finish(agent.run("go"), clock)
    assert result.outcome == Completed()
    (part,) = result.messages[2].parts
    assert part.status == status
    assert text in part.text


async def test_tools_have_their_own_limits():
    clock = FakeClock()
    tools = [slow_tool(clock, 8, name) for name in ("one", "two_a", "two_b")]
    model = ScriptedModel(calls([("one", {}), ("two_a", {}), ("two_b", {})]), says("done"))
    agent = Agent(model, tools=tools, clock=clock, capabilities=[Timeout(tool=5, tools={"two*": 20, "two_b": 7})])
    result = await finish(agent.run("go"), clock)
    assert [part.status for part in result.messages[2].parts] == ["error", "ok", "error"]


async def test_a_tool_that_timed_out_is_retried_if_that_is_safe():
    clock = FakeClock()
    waits = [100.0, 1.0]

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        await clock.alarm(waits.pop(0))
        return "worked"

    agent = Agent(
        ScriptedModel(calls("work"), says("done")),
        tools=[work],
        clock=clock,
        capabilities=[Retry(tools="work"), Timeout(tool=5)],
    )
    result = await finish(agent.run("go"), clock)
    assert result.messages[2].parts[0].text == "worked"


async def test_a_step_that_takes_too_long_fails_the_turn_and_closes_its_calls():
    clock = FakeClock()
    model = ScriptedModel(calls("work"), says("never"))
    agent = Agent(model, tools=[slow_tool(clock, 100, effect="unsafe")], clock=clock, capabilities=[Timeout(step=5)])
    result = await finish(agent.run("go", session="s"), clock)
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.error.type, result.outcome.error.message) == ("HookTimeout", "step 1 took longer than 5 s")
    assert [part.status for part in result.messages[-1].parts] == ["interrupted"]


async def test_a_turn_that_takes_too_long_is_stopped():
    clock = FakeClock()
    agent = Agent(slow_model(clock, 100), clock=clock, capabilities=[Timeout(turn=5)])
    result = await finish(agent.run("go"), clock)
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.TIME_LIMIT


async def test_two_limits_of_one_call_the_shorter_counts():
    clock = FakeClock()
    agent = Agent(slow_model(clock, 9, 0), clock=clock, capabilities=[Timeout(model=50), Timeout(model=5)])
    await finish(agent.run("go", session="s"), clock)
    (handled,) = [r for r in await agent.store.read("s") if type(r).__name__ == "ErrorHandled"]
    assert handled.error.message.endswith("longer than 5 s")
    assert ModelTimeout.retryable


@pytest.mark.parametrize(
    "options",
    [{}, {"model": 0}, {"tool": -1}, {"step": "5"}, {"turn": float("inf")}, {"tools": {"a": 0}}, {"tools": 5}],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Timeout"):
        Timeout(**options)


def test_explain_has_the_limits():
    agent = Agent(ScriptedModel(), capabilities=[Timeout(model=60, turn=600)])
    assert "timeout · model 60 s, turn 600 s" in str(agent.explain())


async def test_the_time_before_a_call_first_waits_counts():
    clock = FakeClock()

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        clock.tick(8)  # it holds the event loop for so long
        await clock.alarm(5)
        return "worked"

    agent = Agent(ScriptedModel(calls("work"), says("ok")), tools=[work], clock=clock, capabilities=[Timeout(tool=10)])
    result = await finish(agent.run("go"), clock)
    assert result.messages[-2].parts[0].text == "Error: 'work' took longer than 10 s"
    agent = Agent(ScriptedModel(calls("work"), says("ok")), tools=[work], clock=clock, capabilities=[Timeout(tool=14)])
    assert (await finish(agent.run("go"), clock)).messages[-2].parts[0].text == "worked"


class CountingClock(FakeClock):
    """Counts the alarms that are set."""

    alarms = 0

    async def alarm(self, seconds: float) -> None:
        self.alarms += 1
        await super().alarm(seconds)


async def test_calls_that_do_not_wait_need_no_timer():
    clock = CountingClock()
    agent = Agent(
        ScriptedModel(calls("work"), says("ok")),
        tools=[tool(name="work", effect="pure", inline=True)(lambda: "worked")],
        clock=clock,
        capabilities=[Timeout(model=5, tool=5, step=9)],
    )
    assert (await agent.run("go")).text == "ok"
    assert clock.alarms == 0


@pytest.mark.parametrize("limit", [{"tool": 60}, {"step": 60}])
async def test_a_cancelled_call_ends_what_it_waits_for(limit):
    clock, ended = FakeClock(), []

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        try:
            await clock.alarm(5)
            await clock.alarm(5)
        finally:
            ended.append(clock.sleepers)
        return "worked"

    agent = Agent(ScriptedModel(calls("work"), says("ok")), tools=[work], clock=clock, capabilities=[Timeout(**limit)])
    running = asyncio.ensure_future(agent.run("go", session="s"))
    await clock.wait_for_sleepers(2)  # the tool, and the alarm of its time-out
    await clock.advance(5)
    assert await agent.cancel("s")
    assert type((await running).outcome).__name__ == "Cancelled"
    assert len(ended) == 1
    await asyncio.sleep(0)
    assert clock.sleepers == 0
