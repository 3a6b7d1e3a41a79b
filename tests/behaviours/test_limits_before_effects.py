"""Limits are checked before every effect: wraps' attempts, side calls and tool calls, at the root and below."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Approve,
    Ask,
    CostLimit,
    Deadline,
    ModelCall,
    ModelReplying,
    Reject,
    StepStarting,
    StopReason,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    tool,
)
from windlass.messages import Usage
from windlass.records import ToolCalled
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, calls, says

SESSION = "s"


def spending(tokens: int, cost: float | None = None) -> Any:
    return says("ok", usage=Usage(input=tokens, cost=cost))


def endless(tokens: int = 10, cost: float | None = None) -> ScriptedModel:
    return ScriptedModel(*[spending(tokens, cost) for _ in range(60)], name="endless")


class Tools:
    def __init__(self) -> None:
        self.done: list[int] = []

        @tool
        async def act(x: int) -> str:
            self.done.append(x)
            return f"acted {x}"

        self.act = act


async def outcome(agent: Agent[Any, Any], way: str) -> Any:
    if way == "stream":
        stream = agent.stream("go", session=SESSION)
        async for _ in stream:
            pass
        return stream.result
    if way == "iterate":
        async for state in agent.iterate("go", session=SESSION):
            last = state
        return last
    if way == "child":
        parent = Agent(
            ScriptedModel(calls("inner", task="t"), says("end")), tools=[agent.as_tool("inner")], store=agent.store
        )
        await parent.run("go", session=SESSION)
        return await agent.state(f"{SESSION}//1/1")
    return await agent.run("go", session=SESSION)


def reason(result: Any) -> StopReason:
    return result.outcome.reason


WAYS = pytest.mark.parametrize("way", ["run", "stream", "iterate", "child"])


@WAYS
@pytest.mark.parametrize("limit", [TokenLimit(30), CostLimit(0.3)])
async def test_attempts_of_a_wrap_stop_at_the_limit(way: str, limit: Any):
    model = endless(10, cost=0.1)
    agent = Agent(model, criteria=[limit], store=MemoryStore())

    @agent.wrap(ModelCall)
    async def fifty(request: Any, call_next: Any) -> Any:
        for _ in range(50):
            try:
                reply = await call_next(request)
            except Exception:
                reply = "whatever"
        return reply

    result = await outcome(agent, way)
    assert reason(result) is limit.reason
    assert len(model.requests) == 3


@WAYS
@pytest.mark.parametrize("by", ["gate", "wrap", "tool"])
async def test_side_calls_stop_at_the_limit(way: str, by: str):
    side = endless()
    raised: list[str] = []

    async def many(turn: Turn) -> str:
        for _ in range(50):
            try:
                await turn.ask(side, "good?")
            except Exception as error:
                raised.append(str(error))
        return "done"

    @tool
    async def act(turn: Turn) -> str:
        return await many(turn)

    model = ScriptedModel(calls("act", _usage=Usage()), spending(0))
    agent = Agent(model, tools=[act], criteria=[TokenLimit(30)], store=MemoryStore())
    if by == "gate":

        @agent.gate(StepStarting)
        async def gate(event: StepStarting, turn: Turn) -> None:
            await many(turn)

    if by == "wrap":

        @agent.wrap(ToolCall)
        async def wrap(call: Any, call_next: Any, turn: Turn) -> Any:
            return await many(turn)

    result = await outcome(agent, way)
    assert reason(result) is StopReason.TOKEN_LIMIT
    assert len(side.requests) == 3
    assert len(raised) == 47
    assert "TokenLimit: 30 of 30 tokens are spent" in raised[0]


async def test_an_attempt_that_stands_counts_before_a_side_call_of_its_wrap():
    side = endless()
    agent = Agent(ScriptedModel(spending(30)), criteria=[TokenLimit(30)])

    @agent.wrap(ModelCall)
    async def critic(request: Any, call_next: Any, turn: Turn) -> Any:
        reply = await call_next(request)
        try:
            await turn.ask(side, "good?")
        except Exception:
            pass
        return reply

    result = await agent.run("go")
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert side.requests == []
    assert result.usage.total == 30


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("way", ["run", "stream"])
async def test_a_deadline_that_passed_while_suspended_starts_nothing(way: str, wrapped: bool):
    tools, clock, store = Tools(), FakeClock(), MemoryStore()
    entered: list[str] = []
    returned: list[str] = []
    agent = Agent(
        ScriptedModel(calls([("act", {"x": 1}), ("act", {"x": 2})]), says("end")),
        tools=[tools.act],
        criteria=[Deadline(after=60.0)],
        clock=clock,
        store=store,
    )
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    agent.rewrite(ToolReturning, band="guard")(lambda event: returned.append(event.result.text))
    if wrapped:

        @agent.wrap(ToolCall)
        async def enter(call: Any, call_next: Any) -> Any:
            entered.append(call.id)
            return await call_next(call)

    first = await agent.run("go", session=SESSION)
    clock.tick(3600.0)
    answers = {asked.id: Approve() for asked in first.waiting_for}
    if way == "run":
        result = await agent.resume(SESSION, answers=answers)
    else:
        stream = agent.stream(session=SESSION, answers=answers)
        async for _ in stream:
            pass
        result = stream.result
    assert result.stop_reason is StopReason.DEADLINE
    assert tools.done == entered == []
    texts = [part.text for part in result.state.messages[-1].parts]
    assert texts == returned == ["Not run: Deadline: the deadline has passed"] * 2
    assert not [record for record in await store.read(SESSION) if isinstance(record, ToolCalled)]


async def test_a_deadline_that_passed_while_suspended_asks_no_model():
    clock, model = FakeClock(), ScriptedModel(says("one"), says("two"))
    agent = Agent(model, criteria=[Deadline(after=60.0)], clock=clock, store=MemoryStore())
    agent.gate(ModelReplying)(lambda event: Ask("good?") if event.reply.text == "one" else None)
    first = await agent.run("go", session=SESSION)
    clock.tick(3600.0)
    result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Reject("again")})
    assert result.stop_reason is StopReason.DEADLINE
    assert len(model.requests) == 1


async def test_calls_of_the_same_step_that_may_not_run_any_more_are_not_run():
    tools, clock = Tools(), FakeClock()

    @tool(sequential=True)
    async def slow() -> str:
        clock.tick(100.0)
        return "slow"

    model = ScriptedModel(calls([("slow", {}), ("act", {"x": 1}), ("act", {"x": 2})]), says("end"))
    agent = Agent(model, tools=[slow, tools.act], criteria=[ActiveTimeLimit(60.0)], clock=clock)
    result = await agent.run("go")
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert tools.done == []
    slow_result, *others = [part.text for part in result.state.messages[-1].parts]
    assert slow_result == "slow"
    assert all(text.startswith("Not run: ActiveTimeLimit: worked for 100.0 of 60.0 s") for text in others)
    assert [part.status for part in result.state.messages[-1].parts] == ["ok", "cancelled", "cancelled"]


async def test_an_attempt_of_a_tool_wrap_is_not_made_after_the_time():
    clock = FakeClock()
    made: list[int] = []

    @tool(effect="pure")
    async def flaky() -> str:
        made.append(1)
        clock.tick(50.0)
        raise TimeoutError

    agent = Agent(
        ScriptedModel(calls("flaky"), says("end")), tools=[flaky], criteria=[Deadline(after=120.0)], clock=clock
    )

    @agent.wrap(ToolCall)
    async def again(call: Any, call_next: Any) -> Any:
        while True:
            try:
                return await call_next(call)
            except TimeoutError:
                continue

    result = await agent.run("go")
    assert len(made) == 3
    assert result.stop_reason is StopReason.DEADLINE


@pytest.mark.parametrize("way", ["stream", "iterate"])
async def test_time_spent_waiting_for_the_consumer_is_not_active_time(way: str):
    clock = FakeClock()

    @tool
    async def act() -> str:
        clock.tick(1.0)
        return "x" * 10

    many = [calls("act") for _ in range(40)]
    agent = Agent(ScriptedModel(*many, says("end")), tools=[act], criteria=[ActiveTimeLimit(60.0)], clock=clock)
    told = 0
    if way == "stream":
        stream = agent.stream("go")
        async for _ in stream:
            told += 1
            await clock.advance(10.0)
        result: Any = stream.result
    else:
        async for state in agent.iterate("go"):
            told += 1
            await clock.advance(10.0)
            result = state
    assert told > 20
    assert type(result.outcome).__name__ == "Completed"
    assert 39.0 < result.state.turn.active < 61.0 if way == "stream" else result.turn.active < 61.0


async def test_active_time_counts_on_once_the_consumer_has_come_back():
    clock, hanging = FakeClock(), asyncio.Event()

    @tool
    async def quick() -> str:
        return "quick"

    @tool
    async def hang() -> str:
        hanging.set()
        await clock.alarm(5000.0)
        return "late"

    model = ScriptedModel(calls("quick"), calls("hang"), says("end"))
    agent = Agent(model, tools=[quick, hang], criteria=[ActiveTimeLimit(60.0)], clock=clock)

    async def later() -> None:
        await hanging.wait()
        await clock.advance(59.0)
        still.append(clock.sleepers)
        await clock.advance(2.0)

    still: list[int] = []
    task = asyncio.ensure_future(later())
    states = []
    async for state in agent.iterate("go"):
        if not states:
            await clock.advance(1000.0)
        states.append(state)
    await task
    assert still == [2]  # the tool and the alarm: at 59 s of work nothing had happened
    assert states[-1].outcome.reason is StopReason.TIME_LIMIT
    assert states[-1].turn.active == pytest.approx(60.0)


async def test_the_wait_of_the_consumer_of_a_parent_is_not_active_time_of_its_child():
    clock = FakeClock()

    @tool
    async def act() -> str:
        clock.tick(1.0)
        return "acted"

    child = Agent(
        ScriptedModel(*[calls("act") for _ in range(30)], says("done")),
        tools=[act],
        name="child",
        criteria=[ActiveTimeLimit(50.0)],
    )
    model = ScriptedModel(calls("child", task="t"), says("end"))
    agent = Agent(model, tools=[child.as_tool()], criteria=[ActiveTimeLimit(60.0)], clock=clock)
    stream = agent.stream("go")
    async for _ in stream:
        await clock.advance(10.0)
    assert stream.result.text == "end"
    assert "done" in stream.result.state.messages[-2].parts[0].text
