"""Work that outlives its turn, attempts that are repeated, and observers of other event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from windlass import (
    Again,
    Agent,
    Asked,
    Completed,
    Erring,
    Halt,
    StepEnded,
    Stopped,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolError,
    TurnEnded,
    tool,
)
from windlass.states import Step
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@pytest.mark.parametrize("durable", [False, True])
async def test_work_left_over_from_a_turn_does_not_touch_the_log_of_the_next(durable: bool, tmp_path: Any):
    released = asyncio.Event()
    going_on = asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        """Wait."""
        await released.wait()
        return "late"

    store = f"sqlite:///{tmp_path}/a.db" if durable else MemoryStore()
    agent: Agent[Any, str] = Agent(ScriptedModel(calls("slow"), says("two")), tools=[slow], store=store)
    left: list[asyncio.Task[Any]] = []

    @agent.wrap(Step)
    async def step_timeout(step: Any, call_next: Any) -> Any:
        task = asyncio.ensure_future(call_next(step))
        left.append(task)
        await asyncio.wait([task], timeout=0.02)
        if not task.done():
            raise TimeoutError
        going_on.set()
        return await task

    assert type((await agent.run("x", session="s")).outcome).__name__ == "Failed"
    ended = len(await agent.store.read("s"))
    released.set()
    await asyncio.wait(left)
    assert left[0].cancelled() or left[0].exception() is not None
    assert (await agent.run("y", session="s")).outcome == Completed()
    log = await agent.store.read("s")
    assert isinstance(log[ended - 1], TurnEnded)
    assert type(log[ended]).__name__ == "TurnStarted"
    await agent.aclose()
    again: Agent[Any, str] = Agent(ScriptedModel(says("three")), tools=[slow], store=store)
    assert (await again.run("z", session="s")).text == "three"
    await again.aclose()


async def test_a_record_that_does_not_fit_the_log_is_not_stored():
    """An attempt that a wrap left behind ends in the next step of the same turn."""
    released = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    @tool(effect="pure")
    async def act(a: int) -> str:
        """Act."""
        if a == 1:
            await released.wait()
        return "done"

    async def model(request: Any) -> Any:
        if len(request.messages) == 1:
            return calls("act", a=1)
        released.set()
        await asyncio.wait(left)
        return says("ok")

    agent: Agent[Any, str] = Agent(FunctionModel(model), tools=[act])

    @agent.gate(ToolCalling)
    async def slow_gate(event: Any) -> None:
        if event.call.arguments["a"] == 2:
            await released.wait()

    @agent.wrap(ToolCall)
    async def hedge(call: ToolCall, call_next: Any) -> Any:
        left.append(asyncio.ensure_future(call_next(call.replace(arguments={"a": 2}))))
        await asyncio.sleep(0)
        return "instead"

    assert (await agent.run("x", session="s")).text == "ok"
    assert (await agent.state("s")).text == "ok"


@pytest.mark.parametrize("by", ["wrap", "policy"])
async def test_every_attempt_at_a_call_gets_its_arguments_anew(by: str):
    got: list[list[int]] = []

    @tool(effect="idempotent", inline=True)
    def pop(items: list[int]) -> int:
        """Change what it was given."""
        got.append(list(items))
        items.pop()
        if len(got) == 1:
            raise ToolError("flaky")
        return len(items)

    agent: Agent[Any, str] = Agent(ScriptedModel(calls("pop", items=[1, 2, 3]), says("ok")), tools=[pop])
    if by == "policy":
        agent.gate(Erring)(lambda event: Again() if event.category == "tool" else None)
    else:

        @agent.wrap(ToolCall)
        async def retry(call: ToolCall, call_next: Any) -> Any:
            try:
                return await call_next(call)
            except ToolError:
                return await call_next(call)

    assert (await agent.run("x")).text == "ok"
    assert got == [[1, 2, 3], [1, 2, 3]]


async def test_nobody_is_asked_about_a_call_in_doubt_if_the_turn_is_halted():
    @tool(effect="unsafe", in_doubt="ask")
    async def pay(i: int) -> str:
        """Pay."""
        return "paid"

    def made(store: MemoryStore, verdict: Any) -> Agent[Any, str]:
        script = calls([("pay", {"i": 1}), ("pay", {"i": 2})]), says("one")
        agent: Agent[Any, str] = Agent(ScriptedModel(*script), tools=[pay], store=store)
        agent.gate(ToolCalling, name="gate")(lambda event: verdict if event.call.arguments["i"] == 2 else None)
        return agent

    whole = MemoryStore()
    await made(whole, None).run("x", session="s")
    log = await whole.read("s")
    cut = next(at for at, record in enumerate(log) if isinstance(record, ToolCalled)) + 1
    store = MemoryStore()
    await store.append("s", log[:cut], 0)
    result = await made(store, Halt("enough")).resume("s")
    assert isinstance(result.outcome, Stopped)
    assert not [record for record in await store.read("s") if isinstance(record, Asked)]


def test_an_event_loop_that_blocks_does_not_hold_up_the_observers_of_another():
    blocked, free = threading.Event(), threading.Event()
    told: list[float] = []

    async def model(request: Any) -> Any:
        if request.messages[0].text == "block":
            if len(request.messages) > 1:
                blocked.set()
                free.wait(20)
                return says("done")
            return calls("add", a=1)
        await asyncio.sleep(0.02)
        return calls("add", a=1) if len(request.messages) < 5 else says("done")

    @tool(effect="pure", inline=True)
    def add(a: int) -> int:
        """Add."""
        return a

    agent: Agent[Any, str] = Agent(FunctionModel(model), tools=[add])
    agent.observe(StepEnded)(lambda fact: told.append(time.monotonic()))

    async def other() -> int:
        turn = asyncio.ensure_future(agent.run("go"))
        before = len(told)
        while not turn.done():
            await asyncio.sleep(0.005)
            if len(told) > before + 1:
                break
        seen_while_running = not turn.done()
        await turn
        return seen_while_running

    thread = threading.Thread(target=lambda: asyncio.run(agent.run("block")))
    thread.start()
    try:
        assert blocked.wait(20)
        assert asyncio.run(other())
    finally:
        free.set()
        thread.join()
