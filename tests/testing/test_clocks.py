"""Time in tests: it passes when it is told to, and whoever sleeps wakes in order."""

from __future__ import annotations

import asyncio

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Ask,
    Deadline,
    StopReason,
    ToolCalling,
    tool,
)
from windlass.errors import Overloaded
from windlass.testing import FakeClock, ScriptedModel, calls, says


async def test_sleepers_wake_when_they_are_due_and_in_that_order():
    clock = FakeClock(100)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleeper(*args)) for args in (("long", 5), ("short", 1, 2, 9), ("same", 5))]  # type: ignore[arg-type]
    await clock.advance(4)
    assert woken == [("short", 101), ("short", 103)]
    await clock.advance(1)
    assert woken[2:] == [("long", 105), ("same", 105)]
    assert clock.sleepers == 1
    await clock.advance(100)
    assert woken[4:] == [("short", 112)]
    assert clock.now() == 205
    assert clock.monotonic() == 105
    assert clock.sleepers == 0
    await asyncio.gather(*tasks)


async def test_who_sleeps_does_not_wake_by_itself():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers()
    await clock.advance(0.5)
    assert not task.done()
    await clock.advance(0.5)
    assert task.done()


async def test_a_sleeper_that_is_cancelled_is_forgotten():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers()
    task.cancel()
    await clock.advance(0)
    assert clock.sleepers == 0
    await clock.advance(2)
    assert task.cancelled()


async def test_by_itself_time_passes_when_somebody_sleeps():
    clock = FakeClock(10, auto=True)
    await clock.sleep(3)
    await clock.sleep(4)
    assert clock.now() == 17
    assert clock.slept == [3, 4]


async def test_a_tick_wakes_late_who_was_due_meanwhile():
    clock = FakeClock(0)
    seen: list[float] = []

    async def sleeper() -> None:
        await clock.sleep(1)
        seen.append(clock.now())

    task = asyncio.create_task(sleeper())
    await clock.wait_for_sleepers()
    clock.tick(5)
    await task
    assert seen == [5]


async def test_no_sleep_at_all_lets_others_run_once():
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [-1, -0.001])
async def test_time_does_not_go_back(seconds):
    with pytest.raises(ValueError, match="cannot go back"):
        await FakeClock().advance(seconds)
    with pytest.raises(ValueError, match="cannot go back"):
        FakeClock().tick(seconds)


# ---------------------------------------------------------------- agents on it


def working(clock: FakeClock):
    @tool
    async def work(seconds: float) -> str:
        """Work for a while."""
        await clock.sleep(seconds)
        return "worked"

    return work


@pytest.mark.parametrize(
    ("limit", "reason"),
    [(Deadline(after=10), StopReason.DEADLINE), (ActiveTimeLimit(10), StopReason.TIME_LIMIT)],
)
async def test_limits_of_time_go_by_it(limit, reason):
    clock = FakeClock()
    model = ScriptedModel(calls("work", seconds=6), calls("work", seconds=6), says("done"))
    agent = Agent(model, tools=[working(clock)], criteria=[limit], clock=clock)
    turn = asyncio.create_task(agent.run("go"))
    await clock.advance(9)
    assert not turn.done()
    await clock.advance(1)
    assert (await turn).stop_reason is reason
    assert len(model.requests) == 2


async def test_a_question_expires_on_it():
    clock = FakeClock()
    agent = Agent(
        ScriptedModel(calls("work", seconds=0), says("done")), tools=[working(clock)], clock=clock, name="asking"
    )
    agent.gate(ToolCalling)(lambda event: Ask("?", expires=60, default="approve"))
    assert (await agent.run("go", session="s")).stop_reason is StopReason.SUSPENDED
    await clock.advance(59)
    assert (await agent.resume("s")).stop_reason is StopReason.SUSPENDED
    await clock.advance(1)
    assert (await agent.resume("s")).text == "done"


async def test_a_retry_waits_on_it():
    clock = FakeClock()
    model = ScriptedModel(Overloaded("busy", retry_after=30), says("done", delay=2), clock=clock)
    agent = Agent(model, clock=clock)
    turn = asyncio.create_task(agent.run("go"))
    await clock.advance(29)
    assert len(model.requests) == 1
    await clock.advance(1)
    assert len(model.requests) == 2
    await clock.advance(2)
    assert (await turn).text == "done"
    assert clock.slept == [30, 2]
