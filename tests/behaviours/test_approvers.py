"""Approvers: what answers questions in the process itself. One that fails leaves its question open."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.checks import check_log

from windlass import (
    Agent,
    Approve,
    Ask,
    Asked,
    Completed,
    Edit,
    HookFailed,
    Reject,
    Result,
    Suspended,
    ToolCalling,
    tool,
)
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says

AnyAgent = Agent[Any, Any]


def make(*script: Any, **options: Any) -> tuple[AnyAgent, list[int]]:
    paid: list[int] = []

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return f"paid {euros}"

    model = script[0] if len(script) == 1 and isinstance(script[0], FunctionModel) else ScriptedModel(*script)
    agent: AnyAgent = Agent(model, tools=[pay], **options)
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("Pay?"))
    return agent, paid


async def by_run(agent: AnyAgent) -> Result[Any]:
    return await agent.run("go", session="s")


async def by_stream(agent: AnyAgent) -> Result[Any]:
    stream = agent.stream("go", session="s")
    async for _ in stream:
        pass
    return stream.result


async def by_iterate(agent: AnyAgent) -> Result[Any]:
    states = [state async for state in agent.iterate("go", session="s")]
    return Result(states[-1], agent._output, {})


async def by_resume(agent: AnyAgent) -> Result[Any]:
    approvers, agent._registered.approvers = agent._registered.approvers, []
    await agent.run("go", session="s")
    agent._registered.approvers = approvers
    return await agent.resume("s")


async def by_run_sync(agent: AnyAgent) -> Result[Any]:
    return agent.run_sync("go", session="s")


Way = Callable[[AnyAgent], Awaitable[Result[Any]]]
WAYS = [by_run, by_stream, by_iterate, by_resume, by_run_sync]


@pytest.fixture
def shallow() -> Iterator[None]:
    """A stack on which not every approval has room for a frame."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("way", WAYS)
async def test_any_number_of_approvals_in_one_turn_is_given(way: Way, shallow: None):
    number = 0

    def reply(request: Any) -> Any:
        nonlocal number
        number += 1
        return calls("pay", euros=number) if number <= 120 else says("done")

    agent, paid = make(FunctionModel(reply), approvers=[lambda asked: Approve()], max_steps=None)
    result = await way(agent)
    assert (result.outcome, len(paid)) == (Completed(), 120)


def raising(asked: Asked) -> Any:
    raise OSError("the phone is dead")


async def raising_late(asked: Asked) -> Any:
    await asyncio.sleep(0)
    raise OSError("the phone is dead")


async def cancelling_itself(asked: Asked) -> Any:
    task = asyncio.ensure_future(asyncio.sleep(1))
    task.cancel()
    await task


def nonsense(asked: Asked) -> Any:
    return True


def not_allowed(asked: Asked) -> Any:
    return Reject("no", by="mallory")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("approver", [raising, raising_late, cancelling_itself, nonsense])
async def test_an_approver_that_fails_leaves_the_question_open_and_the_log_says_so(way: Way, approver: Any):
    agent, paid = make(calls("pay", euros=5), says("done"), approvers=[approver])
    result = await way(agent)
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == ["s/1/1"]
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [(record.hook, record.event, record.effect) for record in failed] == [
        (approver.__name__, "ToolCalling", "left open")
    ]
    assert paid == []
    await check_log(agent, "s", result.state)
    agent._registered.approvers.clear()
    result = await agent.resume("s", answers={"s/1/1": Approve()})
    assert (result.text, paid) == ("done", [5])


async def test_an_answer_that_the_question_does_not_take_leaves_it_open():
    agent, paid = make(calls("pay", euros=5), says("done"), approvers=[not_allowed])
    agent._registered.hooks.pop(0)
    agent.gate(ToolCalling, name="named")(lambda event: Ask("Pay?", approvers=("ann",)))
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [(record.hook, record.error.type) for record in failed] == [("not_allowed", "StaleAnswer")]
    assert paid == []


async def test_an_edit_that_the_tool_does_not_take_leaves_the_question_open():
    agent, paid = make(calls("pay", euros=5), says("done"), approvers=[lambda asked: Edit({"euros": "many"})])
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [(record.error.type, record.effect) for record in failed] == [("StaleAnswer", "left open")]
    assert paid == []


@pytest.mark.parametrize("way", WAYS)
async def test_the_next_approver_is_asked_where_one_failed(way: Way):
    agent, paid = make(calls("pay", euros=5), says("done"), approvers=[raising, lambda asked: Approve(by="rule")])
    result = await way(agent)
    assert (result.outcome, paid) == (Completed(), [5])
    assert sum([isinstance(record, HookFailed) for record in await agent.store.read("s")]) == 1
    await check_log(agent, "s", result.state)


async def test_the_failure_of_an_approver_can_be_observed():
    agent, _ = make(calls("pay", euros=5), says("done"), approvers=[raising])
    heard: list[str] = []
    agent.observe(HookFailed)(lambda fact: heard.append(fact.hook))
    await agent.run("go", session="s")
    assert heard == ["raising"]


async def test_a_person_who_is_faster_than_the_approver_has_answered():
    store = MemoryStore()
    agent, paid = make(calls("pay", euros=5), says("done"), store=store)

    @agent.approver
    async def slow(asked: Asked) -> Any:
        await agent.resolve("s", asked.id, Reject("not today", by="ann"))
        return Approve(by="rule")

    result = await agent.run("go", session="s")
    assert (result.outcome, paid) == (Completed(), [])
    assert "not today" in result.messages[2].parts[0].text  # type: ignore[union-attr]


async def test_a_session_that_was_resumed_while_the_approver_thought_is_left_alone():
    agent, paid = make(calls("pay", euros=5), says("done"))
    elsewhere: list[Result[Any]] = []

    @agent.approver
    async def slow(asked: Asked) -> Any:
        if not elsewhere:
            elsewhere.append(await agent.resume("s", answers={asked.id: Approve(by="ann")}))
        return Approve(by="rule")

    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    assert (elsewhere[0].outcome, paid) == (Completed(), [5])


async def test_a_cancel_from_outside_while_an_approver_thinks_is_a_cancel():
    agent, _ = make(calls("pay", euros=5), says("done"))
    thinking = asyncio.Event()

    @agent.approver
    async def slow(asked: Asked) -> Any:
        thinking.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(agent.run("go", session="s"))
    await thinking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [asked.id for asked in (await agent.state("s")).waiting] == ["s/1/1"]
