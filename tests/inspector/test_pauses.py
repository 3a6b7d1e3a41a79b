"""Breakpoints without a page: who lets a paused turn go on, and what a pause costs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Deny, ToolCalling, tool
from windlass import records as r
from windlass.criteria import ActiveTimeLimit
from windlass.errors import ConfigError, ModelError
from windlass.inspector.breakpoints import POINTS, Breakpoint, Breakpoints, Pause, Reply, inspect_agent, verdicts_of
from windlass.outcomes import Cancelled, Completed
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, calls, says
from windlass.turns import Turn


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def an_agent(breakpoints: Breakpoints, *script: Any, **options: Any) -> Agent[Any, Any]:
    script = script or (calls("pay", amount=5), says("done"))
    agent: Agent[Any, Any] = Agent(ScriptedModel(*script), tools=[pay], store=MemoryStore(), name="payer", **options)
    inspect_agent(agent, breakpoints)
    return agent


async def first(breakpoints: Breakpoints) -> Pause:
    async with asyncio.timeout(10):
        while not breakpoints.paused:  # noqa: ASYNC110 - it may come from another thread
            await asyncio.sleep(0.005)
    return breakpoints.paused[0]


async def answering(breakpoints: Breakpoints, *replies: Reply) -> list[Pause]:
    seen: list[Pause] = []
    for reply in replies:
        seen.append(await first(breakpoints))
        assert breakpoints.answer(seen[-1].number, reply, "ann")
    return seen


def notes(log: Any) -> list[Any]:
    return [it.data for it in log if isinstance(it, r.Noted) and it.kind == "breakpoint"]


async def played(agent: Agent[Any, Any], breakpoints: Breakpoints, *replies: Reply) -> tuple[Any, Any, list[Pause]]:
    """The result, the log, and where the turn paused."""
    breakpoints.watch(1)
    acts = asyncio.create_task(answering(breakpoints, *replies))
    result = await asyncio.wait_for(agent.run("go", session="s"), 10)
    return result, await agent.store.read("s"), await acts


async def test_a_turn_that_nobody_watches_goes_on_as_if_it_had_not_paused():
    breakpoints = Breakpoints([Breakpoint("ToolCalling")], unwatched=0.01)
    agent = an_agent(breakpoints)
    result = await asyncio.wait_for(agent.run("go", session="s"), 5)
    assert isinstance(result.outcome, Completed)
    [note] = notes(await agent.store.read("s"))
    assert (note["by"], note["did"], note["how"]) == ("", "went on", "no page was open for 0.01 s")
    assert breakpoints.history[0]["how"] == note["how"]


async def test_a_cancel_ends_a_pause_at_every_point():
    for point in ("TurnStarting", "ToolCalling", "StepEnding", "TurnEnding"):
        breakpoints = Breakpoints([Breakpoint(point)])
        agent = an_agent(breakpoints)
        breakpoints.watch(1)
        running = asyncio.create_task(agent.run("go", session="s"))
        await first(breakpoints)
        await agent.cancel("s", "enough")
        result = await asyncio.wait_for(running, 5)
        assert isinstance(result.outcome, Cancelled | Completed), point
        assert isinstance(result.outcome, Cancelled) or point == "TurnEnding"
        assert not breakpoints.paused
        await agent.store.verify("s")


async def test_paused_time_does_not_count_for_limits_of_active_time():
    clock = FakeClock()
    breakpoints = Breakpoints([Breakpoint("ToolCalling")])
    agent = an_agent(breakpoints, criteria=[ActiveTimeLimit(2)], clock=clock)
    breakpoints.watch(1)
    running = asyncio.create_task(agent.run("go", session="s"))
    pause = await first(breakpoints)
    await clock.advance(3600)
    breakpoints.answer(pause.number, Reply(), "ann")
    result = await asyncio.wait_for(running, 5)
    assert isinstance(result.outcome, Completed)
    assert result.text == "done"


async def test_at_the_end_of_a_turn_a_person_has_more_time_than_its_hooks():
    breakpoints = Breakpoints([Breakpoint("StepEnding"), Breakpoint("TurnEnding")])
    agent = an_agent(breakpoints, says("bad"), ending_timeout=0.05)
    breakpoints.watch(1)

    async def slowly() -> None:
        for reply in (Reply(), Reply(text="good")):
            pause = await first(breakpoints)
            await asyncio.sleep(0.15)
            breakpoints.answer(pause.number, reply, "ann")

    acts = asyncio.create_task(slowly())
    result = await asyncio.wait_for(agent.run("go", session="s"), 5)
    await acts
    assert result.text == "good"


async def test_a_person_can_be_stricter_than_the_gates_but_not_laxer():
    breakpoints = Breakpoints([Breakpoint("ToolCalling", "pay")])
    agent = an_agent(breakpoints)

    @agent.gate(ToolCalling, tool="pay", name="limit")
    def limit(event: Any) -> Any:
        return Deny("too much")

    _, log, _ = await played(agent, breakpoints, Reply("Allow"))
    [decided] = [it for it in log if isinstance(it, r.ToolDecided)]
    assert decided.verdict == Deny("too much")
    assert {name for name, _ in decided.answers} == {"limit", "breakpoint.ToolCalling"}


async def test_the_gates_see_what_a_person_wrote():
    breakpoints = Breakpoints([Breakpoint("ToolCalling", "p*")])
    agent = an_agent(breakpoints)
    seen: list[int] = []

    @agent.gate(ToolCalling, tool="pay", name="limit")
    def limit(event: Any) -> Any:
        seen.append(event.call.arguments["amount"])

    _, log, pauses = await played(agent, breakpoints, Reply(arguments={"amount": 7}))
    assert seen == [7]
    assert pauses[0].view["arguments"] == {"amount": "5"}
    assert [it.result.text for it in log if isinstance(it, r.ToolReturned)] == ["paid 7"]
    assert notes(log)[0]["edited"]


async def test_agents_below_pause_too():
    breakpoints = Breakpoints([Breakpoint("ToolCalling", "pay")])
    child = Agent(ScriptedModel(calls("pay", amount=9), says("paid")), tools=[pay], name="cashier")
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(calls("cashier", task="pay it"), says("done")), tools=[child.as_tool()], store=MemoryStore()
    )
    inspect_agent(agent, breakpoints)
    _, _, pauses = await played(agent, breakpoints, Reply("Deny", "not by you"))
    assert pauses[0].session.startswith("s/")
    assert pauses[0].view["agent"] == "cashier"


@pytest.mark.parametrize("point", POINTS)
def test_every_point_offers_verdicts_that_it_takes(point: str):
    from windlass.inspector.breakpoints import _VERDICTS

    event = POINTS[point]
    for name in verdicts_of(event):
        made: Any = _VERDICTS[name]("why")
        made = made[0] if isinstance(made, tuple) else made
        assert made in event.ranks or type(made) in event.ranks


EVERYWHERE: dict[str, Callable[[], Reply]] = {
    "SessionStarting": lambda: Reply(text="You pay."),
    "TurnStarting": lambda: Reply(text="go on", inject="beside it"),
    "StepStarting": lambda: Reply(inject="in this step"),
    "ModelCalling": lambda: Reply(text="You pay now."),
    "ModelReplying": lambda: Reply(text="I will pay."),
    "ToolCalling": lambda: Reply(arguments={"amount": 8}, inject="beside the result"),
    "ToolReturning": lambda: Reply(text="paid eight"),
    "MessageAdding": lambda: Reply(),
    "StepEnding": lambda: Reply(inject="for the next step"),
    "Continuing": lambda: Reply("ALLOW", "why not"),
    "Stopping": lambda: Reply("Allow"),
    "TurnEnding": lambda: Reply(text="all done"),
}


async def test_a_turn_pauses_everywhere_and_takes_what_is_said_there():
    breakpoints = Breakpoints([Breakpoint(name) for name in POINTS])
    agent = an_agent(breakpoints)
    seen: list[str] = []
    breakpoints.watch(1)

    async def act() -> None:
        done: set[str] = set()
        while True:
            pause = await first(breakpoints)
            name = pause.view["event"]
            seen.append(name)
            reply = Reply() if name in done else EVERYWHERE[name]()
            done.add(name)
            breakpoints.answer(pause.number, reply, "ann")

    acts = asyncio.create_task(act())
    result = await asyncio.wait_for(agent.run("go", session="s"), 20)
    acts.cancel()
    log = await agent.store.read("s")
    assert set(seen) == set(EVERYWHERE)
    assert result.text == "all done"
    assert [it.result.text for it in log if isinstance(it, r.ToolReturned)] == ["paid eight"]
    assert {it.hook for it in log if isinstance(it, r.Injected)} >= {
        "breakpoint.TurnStarting.inject", "breakpoint.ToolCalling.inject", "breakpoint.StepEnding.inject",
    }  # fmt: skip
    assert len(notes(log)) == len(seen)
    await agent.store.verify("s")


def test_wrong_breakpoints_are_refused():
    with pytest.raises(ConfigError, match="there is no event 'x'"):
        Breakpoints([Breakpoint("x")])
    with pytest.raises(ConfigError, match="StepEnding is not about a tool"):
        Breakpoints([Breakpoint("StepEnding", "pay")])


async def test_two_tasks_that_wait_at_the_same_time_get_their_own_answers():
    breakpoints = Breakpoints([Breakpoint("Delegating")])
    child = Agent(ScriptedModel(says("paid"), says("paid")), name="cashier")

    @tool
    async def both(turn: Turn[Any]) -> str:
        """Give two tasks at once."""
        tasks = [turn.delegate(child, task) for task in ("pay ann", "pay bob")]
        return "; ".join([str(one) for one in await asyncio.gather(*tasks, return_exceptions=True)])

    agent = Agent(ScriptedModel(calls("both"), says("done")), tools=[both], store=MemoryStore(), subagents=[child])
    inspect_agent(agent, breakpoints)
    breakpoints.watch(1)
    running = asyncio.create_task(agent.run("go", session="s"))
    async with asyncio.timeout(10):
        while len(breakpoints.paused) < 2:  # noqa: ASYNC110 - both must wait
            await asyncio.sleep(0.005)
    waiting = {json.loads(pause.view["text"]): pause.number for pause in breakpoints.paused}
    assert breakpoints.answer(waiting["pay bob"], Reply("Deny", "not bob"), "ann")
    assert breakpoints.answer(waiting["pay ann"], Reply(text="pay ann twice"), "ann")
    await asyncio.wait_for(running, 10)
    log = await agent.store.read("s")
    assert [it.task for it in log if isinstance(it, r.Delegated)] == ["pay ann twice"]
    assert "not bob" in next(it.result.text for it in log if isinstance(it, r.ToolReturned))


async def test_of_two_people_who_answer_at_once_one_is_heard():
    breakpoints = Breakpoints([Breakpoint("ToolCalling")])
    agent = an_agent(breakpoints)
    breakpoints.watch(2)
    running = asyncio.create_task(agent.run("go", session="s"))
    pause = await first(breakpoints)
    replies = [Reply("Deny", name) for name in ("ann", "bob", "eve", "dan")]
    heard = await asyncio.gather(
        *[asyncio.to_thread(breakpoints.answer, pause.number, reply, reply.reason) for reply in replies]
    )
    assert sorted(heard) == [False, False, False, True]
    await asyncio.wait_for(running, 10)
    log = await agent.store.read("s")
    [note] = notes(log)
    assert note["by"] == replies[heard.index(True)].reason
    [result] = [it.result.text for it in log if isinstance(it, r.ToolReturned)]
    assert note["by"] in result


RARE = {"Delegating", "SubagentStopping", "Erring", "Compacting", "Resuming"}


def a_rare_agent(breakpoints: Breakpoints, store: MemoryStore) -> Agent[Any, Any]:
    """An agent whose turn comes to the points that a simple turn does not have."""
    child = Agent(ScriptedModel(says("counted")), name="counter")
    script = [
        ModelError("busy", retryable=True, status=529), calls("counter", task="count"), calls("pay", amount=5),
        says("done"),
    ]  # fmt: skip
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(*script), tools=[pay, child.as_tool()], store=store, name="payer", clock=FakeClock(auto=True)
    )
    agent.gate(ToolCalling, tool="pay", name="asks")(lambda event: Ask("Pay?"))
    inspect_agent(agent, breakpoints)
    return agent


@pytest.mark.parametrize("cancelled", ["", "Delegating", "SubagentStopping", "Erring", "Resuming", "ModelCalling"])
async def test_rare_points_pause_too_and_a_cancel_ends_them(cancelled: str):
    store, seen = MemoryStore(), set[str]()
    breakpoints = Breakpoints([Breakpoint(name) for name in (RARE | {"ModelCalling"})])
    agent = a_rare_agent(breakpoints, store)
    breakpoints.watch(1)

    async def act() -> None:
        while True:
            pause = await first(breakpoints)
            seen.add(pause.view["event"])
            if pause.view["event"] == cancelled:
                await agent.cancel("s", "enough")
                return
            breakpoints.answer(pause.number, Reply(), "ann")

    acts = asyncio.create_task(act())
    result = await asyncio.wait_for(agent.run("go", session="s"), 20)
    if isinstance(result.outcome, r.Suspended):
        answers = {result.waiting_for[0].id: Approve(by="eve")}
        result = await asyncio.wait_for(agent.resume("s", answers=answers), 20)
    acts.cancel()
    await store.verify("s")
    assert not breakpoints.paused
    if cancelled:
        assert cancelled in seen
        assert isinstance(result.outcome, Cancelled)
    else:
        assert seen >= RARE - {"Compacting"}
        assert result.text == "done"


async def test_time_in_a_pause_is_no_time_of_the_tool_that_hands_the_task_over():
    clock = FakeClock()
    breakpoints = Breakpoints([Breakpoint("ToolCalling", "pay")])
    child = Agent(ScriptedModel(calls("pay", amount=1), says("paid")), tools=[pay], name="cashier")
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(calls("cashier", task="pay it"), says("done")), tools=[child.as_tool()], store=MemoryStore(),
        clock=clock, criteria=[ActiveTimeLimit(60)],
    )  # fmt: skip
    inspect_agent(agent, breakpoints)
    breakpoints.watch(1)
    running = asyncio.create_task(agent.run("go", session="s"))
    pause = await first(breakpoints)
    await clock.advance(3600)
    breakpoints.answer(pause.number, Reply(), "ann")
    result = await asyncio.wait_for(running, 10)
    assert result.text == "done"
