"""What a child spends is its parent's: limits, deadlines and shares hold for the whole tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Approve,
    Ask,
    Charged,
    Completed,
    CostLimit,
    Deadline,
    Delegated,
    ModelCall,
    ModelReplied,
    ModelRequest,
    StepLimit,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    TokenLimit,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    Usage,
    fold,
    tool,
)
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .trees import CHILD, S1, Tree, sound


def spending(tokens: int, text: str = "said", cost: float | None = None) -> Any:
    return says(text, usage=Usage(input=tokens, cost=cost))


def calling(tokens: int, name: str = "work", cost: float | None = None, **arguments: Any) -> Any:
    return calls(name, _usage=Usage(input=tokens, cost=cost), **arguments)


async def test_what_the_child_spends_counts_as_the_parents():
    """Behaviour 96: the child's spending counts against the parent's budget."""
    tree = Tree(
        child=ScriptedModel(calling(100), spending(200)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(20)),
    )
    result = await tree.run()
    assert result.usage.total == 330
    assert result.usage.requests == 4
    (charged,) = await tree.find(Charged)
    assert charged.usage.total == 300
    await sound(tree.parent)


@pytest.mark.parametrize("cost", [False, True])
async def test_a_parents_limit_stops_the_child_and_then_the_parent(cost: bool):
    """Behaviour 96: the limit is checked before each model call of the child."""
    price = 1.0 if cost else None
    limit: Any = CostLimit(2.5) if cost else TokenLimit(250)
    model = ScriptedModel(*[calling(100, cost=price) for _ in range(5)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(50, "child", task="x", cost=price), spending(1)),
        criteria=[limit],
    )
    result = await tree.run()
    reason = StopReason.COST_LIMIT if cost else StopReason.TOKEN_LIMIT
    assert len(model.requests) == 2
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is reason
    assert f"{type(limit).__name__} of agent 'parent'" in ended.outcome.detail
    returned = await tree.result()
    assert returned.status == "error"
    assert "'child' was stopped" in returned.text
    assert reason.value in returned.text
    assert result.stop_reason is reason
    assert result.usage.total == 250
    await sound(tree.parent)


async def test_the_limit_of_the_root_holds_at_any_depth():
    """Behaviour 96: what a grandchild spends counts for all above it, while it runs."""
    models = [ScriptedModel(*[calling(100) for _ in range(5)])]
    ran = Tree(child=models[0])
    low = ran.child
    mid: Agent[Any, Any] = Agent(
        ScriptedModel(calling(10, "child", task="x"), spending(1)), name="mid", tools=[low.as_tool()]
    )
    top: Agent[Any, Any] = Agent(
        ScriptedModel(calling(10, "mid", task="x"), spending(1)),
        name="top",
        tools=[mid.as_tool()],
        criteria=[TokenLimit(200)],
    )
    result = await top.run("go", session=S1)
    assert len(models[0].requests) == 2
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert result.usage.total == 220
    lowest = fold("s1//1/1//1/1", await top.store.read("s1//1/1//1/1"))
    assert "TokenLimit of agent 'top'" in lowest.outcome.detail  # type: ignore[union-attr]
    middle = fold(CHILD, await top.store.read(CHILD))
    assert middle.stop_reason is StopReason.TOKEN_LIMIT
    assert middle.usage.total == 210


async def test_children_that_work_side_by_side_share_one_purse():
    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})], _usage=Usage(input=10))
    together = asyncio.Barrier(2)
    asked: list[str] = []

    @tool
    async def meet() -> None:
        """Wait for the other one."""
        await together.wait()

    def reply(request: ModelRequest) -> Any:
        asked.append(request.messages[0].text)
        return calling(100, "meet")

    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both, spending(1)), criteria=[TokenLimit(200)])
    tree.child.tool(meet)
    result = await tree.run()
    assert sorted(asked) == ["a", "b"]
    assert result.usage.total == 210
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert [r.result.status for r in await tree.find(ToolReturned)] == ["error", "error"]


async def test_time_runs_for_all_above(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(
        child=FunctionModel(reply),
        criteria=[ActiveTimeLimit(10)],
        clock=clock,
        child_options={"criteria": [StepLimit(9)]},
    )
    result = await tree.run()
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.TIME_LIMIT
    assert "'parent'" in ended.outcome.detail
    assert len(await tree.find(ModelReplied, CHILD)) == 3
    assert result.stop_reason is StopReason.TIME_LIMIT


async def test_a_deadline_holds_for_all_below(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(
        child=FunctionModel(reply),
        criteria=[Deadline(after=5)],
        clock=clock,
        child_options={"criteria": [StepLimit(9)]},
    )
    result = await tree.run()
    assert len(await tree.find(ModelReplied, CHILD)) == 2
    assert result.stop_reason is StopReason.DEADLINE


async def test_a_childs_deadline_goes_by_the_clock_of_the_tree(clock: Any):
    def reply(request: ModelRequest) -> Any:
        clock.tick(4)
        return calls("work")

    tree = Tree(child=FunctionModel(reply), child_options={"criteria": [Deadline(after=5)]}, clock=clock)
    await tree.run()
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.DEADLINE


async def test_a_wrap_of_the_child_that_tries_again_is_stopped_as_well():
    model = ScriptedModel(*[spending(100, "bad") for _ in range(9)])
    tree = Tree(
        child=model, parent=ScriptedModel(calling(10, "child", task="x"), spending(1)), criteria=[TokenLimit(300)]
    )

    @tree.child.wrap(ModelCall)
    async def insist(request: ModelRequest, call_next: Any) -> Any:
        while (reply := await call_next(request)).text == "bad":
            pass
        return reply

    result = await tree.run()
    assert len(model.requests) == 3
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome.reason is StopReason.TOKEN_LIMIT


async def test_a_side_call_of_the_child_is_held_to_the_purse():
    side = ScriptedModel(spending(100), name="side")
    tree = Tree(
        child=ScriptedModel(spending(300)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(1)),
        criteria=[TokenLimit(300)],
    )

    @tree.child.gate(Stopping)
    async def critic(event: Stopping, turn: Turn) -> None:
        await turn.ask(side, "good?")

    result = await tree.run()
    assert side.requests == []
    assert result.stop_reason is StopReason.TOKEN_LIMIT


async def test_a_share_is_a_part_of_what_is_left_when_the_child_starts():
    model = ScriptedModel(*[calling(100) for _ in range(9)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(200, "child", task="x"), spending(1)),
        share=0.5,
        criteria=[TokenLimit(800)],
    )
    result = await tree.run()
    (delegated,) = await tree.find(Delegated)
    assert delegated.tokens == 300
    assert len(model.requests) == 3
    (ended,) = await tree.find(TurnEnded, CHILD)
    assert ended.outcome == Stopped(StopReason.TOKEN_LIMIT, "the share of agent 'child': 300 of 300 tokens are spent")
    assert result.outcome == Completed(), "the parent has something left"
    assert result.usage.total == 501


async def test_a_share_of_money_and_one_of_a_share():
    low = Tree(child=ScriptedModel(*[calling(1, cost=0.1) for _ in range(9)])).child
    mid: Agent[Any, Any] = Agent(
        ScriptedModel(calling(1, "child", task="x", cost=1.0), spending(1, cost=1.0)),
        name="mid",
        tools=[low.as_tool(share=0.5)],
    )
    top: Agent[Any, Any] = Agent(
        ScriptedModel(calling(1, "mid", task="x", cost=2.0), spending(1, cost=1.0)),
        tools=[mid.as_tool(share=0.5)],
        criteria=[CostLimit(10.0)],
    )
    await top.run("go", session=S1)
    started = [r for s in (S1, CHILD) for r in await top.store.read(s) if isinstance(r, Delegated)]
    assert [round(r.usd or 0, 3) for r in started] == [4.0, 1.5]


async def test_a_share_of_no_budget_is_no_limit():
    tree = Tree(share=0.1)
    assert (await tree.run()).text == "done"
    assert (await tree.find(Delegated))[0].tokens is None


async def test_a_child_is_charged_once_over_a_suspension():
    tree = Tree(
        child=ScriptedModel(calling(100), spending(200)),
        parent=ScriptedModel(calling(10, "child", task="x"), spending(20)),
    )
    tree.child.gate(ToolCalling)(lambda event: Ask())
    result = await tree.run()
    assert result.usage.total == 110, "what was spent so far is charged"
    await tree.parent.resume(S1)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.usage.total == 330
    assert [r.usage.total for r in await tree.find(Charged)] == [100, 200]


async def test_a_share_holds_over_a_suspension():
    model = ScriptedModel(*[calling(100) for _ in range(9)])
    tree = Tree(
        child=model,
        parent=ScriptedModel(calling(0, "child", task="x"), spending(1)),
        share=0.5,
        criteria=[TokenLimit(400)],
    )
    tree.child.gate(ToolCalling)(lambda event: Ask())
    result = await tree.run()
    while isinstance(result.outcome, Suspended):
        result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert len(model.requests) == 2
    assert "the share" in (await tree.result()).text
