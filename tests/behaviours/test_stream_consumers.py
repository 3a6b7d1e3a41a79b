"""The consumer of a stream: a slow one slows the model down, and one that leaves cancels the turn."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from tests.checks import check_log, nothing_unraised, numbers, only_this_task, until, visible

from windlass import (
    Agent,
    Cancelled,
    Failed,
    MessageAdding,
    ModelCalled,
    ModelCalling,
    ModelError,
    StepEnding,
    StepStarted,
    Stopped,
    StopReason,
    Stream,
    TextDelta,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import ConfigError, SessionBusy, SessionUnknown
from windlass.messages import assistant
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, calls, says

from .streams import Upper, add, of, texts, told


class Talker:
    """A model that says many words and counts how far it has got."""

    name = "talker"

    def __init__(self, words: int = 5_000) -> None:
        self.words = words
        self.said = 0
        self.closed = 0

    async def reply(self, request: Any) -> str:
        return "never asked"

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        try:
            for _ in range(self.words):
                self.said += 1
                yield "x"
            yield assistant("x" * self.words)
        finally:
            self.closed += 1


async def test_a_slow_consumer_slows_the_model_down():
    """Behaviour 112: what waits for the consumer is bounded, however much there is to say."""
    model = Talker()
    stream = Agent(model).stream("go")
    read = ahead = 0
    async for event in stream:
        if isinstance(event, TextDelta):
            read += 1
            if read % 97 == 0:
                for _ in range(5):
                    await asyncio.sleep(0)
            ahead = max(ahead, model.said - read)
    assert read == model.said == 5_000
    assert 0 < ahead <= 64
    assert stream.result.text == "x" * 5_000


async def test_a_consumer_that_does_not_come_back_stops_the_model():
    """Behaviour 112: the turn waits, for as long as it takes; then it goes on, or is closed."""
    model = Talker()
    agent = Agent(model)
    stream = agent.stream("go", session="s")
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    for _ in range(500):
        await asyncio.sleep(0)
    assert model.said <= 64
    await stream.aclose()
    assert model.closed == 1
    assert await only_this_task()
    state = await check_log(agent, "s")
    assert isinstance(state.outcome, Cancelled)
    assert state.messages[-1].partial
    assert set(state.messages[-1].text) == {"x"}


async def test_facts_alone_are_held_back_for_a_slow_consumer_too():
    started = 0

    @tool
    async def work(n: int) -> int:
        """Work."""
        nonlocal started
        started += 1
        await asyncio.sleep(0)
        return n

    agent = Agent(ScriptedModel(calls([("work", {"n": n}) for n in range(400)]), says("done")), tools=[work])
    stream = agent.stream("go")
    async for event in stream:
        if type(event).__name__ == "ToolCalled":
            break
    for _ in range(500):
        await asyncio.sleep(0)
    assert started < 100, "calls are started although nobody reads what came of the others"
    rest = [event async for event in stream]
    assert started == 400
    assert numbers(rest) == list(range(event.seq + 1, event.seq + 1 + len(rest)))
    assert stream.result.text == "done"


async def left_by_break(agent: Agent) -> None:
    async for event in agent.stream("go", session="s"):
        if isinstance(event, TextDelta):
            break
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def left_by_aclose(agent: Agent) -> None:
    stream = agent.stream("go", session="s")
    async for event in stream:
        if isinstance(event, TextDelta):
            await stream.aclose()
            break


async def left_by_the_block(agent: Agent) -> None:
    async with agent.stream("go", session="s") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break


async def left_by_an_error(agent: Agent) -> None:
    async def read() -> None:
        async with agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


async def left_by_being_forgotten(agent: Agent) -> None:
    stream = agent.stream("go", session="s")
    while not isinstance(await anext(stream), TextDelta):
        pass
    del stream
    gc.collect()
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def left_by_a_cancel(agent: Agent) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async with agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    reading.set()

    task = asyncio.ensure_future(read())
    await reading.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def left_by_a_time_out(agent: Agent) -> None:
    async def read() -> None:
        async with asyncio.timeout(None) as limit, agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    limit.reschedule(0)

    with pytest.raises(TimeoutError):
        await read()


@pytest.mark.parametrize(
    "leave",
    [
        left_by_break, left_by_aclose, left_by_the_block, left_by_an_error, left_by_being_forgotten, left_by_a_cancel,
        left_by_a_time_out,
    ],
)  # fmt: skip
async def test_a_consumer_that_leaves_cancels_the_turn_and_closes_it(leave):
    """Behaviour 112: however it leaves: the model is closed, what was shown is kept, the session can be used."""
    closed: list[str] = []

    async def speak(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            yield assistant("hello again")
            return
        try:
            yield "half a "
            await asyncio.Event().wait()
        finally:
            closed.append("model")

    agent = Agent(FunctionModel(speak))
    agent.gate(StepEnding)(lambda event: closed.append("step"))
    agent.gate(TurnEnding, live=True)(lambda event: closed.append(type(event.outcome).__name__))
    with nothing_unraised():
        await leave(agent)
        assert await only_this_task()
    assert closed == ["model", "step", "Cancelled"]
    state = await check_log(agent, "s")
    assert isinstance(state.outcome, Cancelled)
    assert (state.messages[-1].text, state.messages[-1].partial) == ("half a ", True)
    assert (await agent.run("again", session="s")).text == "hello again"
    await check_log(agent, "s")


async def test_a_stream_that_nobody_reads_does_nothing():
    model = ScriptedModel(says("hi"))
    agent = Agent(model)
    stream = agent.stream("go", session="s")
    await asyncio.sleep(0)
    assert await only_this_task()
    assert model.requests == []
    await stream.aclose()
    assert await agent.store.read("s") == []
    assert (await agent.run("go", session="s")).text == "hi"


async def test_the_result_is_there_when_the_stream_has_been_read_to_its_end():
    stream = Agent(Talker(100)).stream("go")
    assert isinstance(stream, Stream)
    with pytest.raises(ConfigError, match="no result yet"):
        _ = stream.result
    await anext(stream)
    with pytest.raises(ConfigError, match="no result yet"):
        _ = stream.result
    async for _ in stream:
        pass
    assert stream.result.text == "x" * 100
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_busy_session_cannot_be_streamed():
    inside = asyncio.Event()
    leave = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        inside.set()
        await leave.wait()
        return "ok"

    agent = Agent(ScriptedModel(calls("wait"), says("done")), tools=[wait])
    running = asyncio.ensure_future(agent.run("go", session="s"))
    await inside.wait()
    with pytest.raises(SessionBusy):
        await anext(agent.stream("me too", session="s"))
    leave.set()
    assert (await running).text == "done"


async def test_a_streamed_session_is_busy():
    agent = Agent(Talker(100))
    async with agent.stream("go", session="s") as stream:
        await anext(stream)
        with pytest.raises(SessionBusy):
            await agent.run("me too", session="s")
    assert (await agent.run("now", session="s")).text == "never asked"


async def test_a_stream_needs_a_message_or_a_session():
    with pytest.raises(ConfigError):
        Agent(ScriptedModel()).stream()


async def test_an_error_of_the_turn_is_its_outcome_and_one_of_the_caller_is_raised():
    events, result = await told(Agent(ScriptedModel(ModelError("no"))))
    assert isinstance(result.outcome, Failed)
    assert "TurnFailed" in [type(event).__name__ for event in events]
    with pytest.raises(SessionUnknown):
        await anext(Agent(ScriptedModel()).stream(session="nowhere"))


variable: ContextVar[str] = ContextVar("variable", default="unset")


async def test_context_variables_leak_neither_way():
    """Behaviour 112: the turn sees the consumer's at the start, and neither sees what the other sets later."""
    seen: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append(variable.get())
        variable.set("tool")
        return "ok"

    agent = Agent(ScriptedModel(calls("look"), calls("look"), says("done")), tools=[look])

    @agent.rewrite(ModelCalling)
    async def hook(event: Any) -> None:
        seen.append(variable.get())
        variable.set("hook")

    token = variable.set("consumer")
    try:
        async with agent.stream("go") as stream:
            async for _ in stream:
                assert variable.get() in ("consumer", "changed")
                variable.set("changed")
        assert variable.get() == "changed"
    finally:
        variable.reset(token)
    assert seen == ["consumer", "hook", "tool", "hook", "tool"]


async def test_a_time_out_of_the_agent_never_fires_in_the_code_of_the_consumer():
    """Behaviour 112: a consumer that dawdles inside the loop is not hit by the time-out of a tool or hook."""

    @tool(timeout=0.001)
    async def slow() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(calls("slow"), says("done")), tools=[slow])

    @agent.inject(TurnStarting, timeout=0.001, optional=True)
    async def never(event: Any) -> None:
        await asyncio.Event().wait()

    interrupted = 0
    stream = agent.stream("go")
    async for _ in stream:
        try:
            await asyncio.sleep(0.003)
        except BaseException:
            interrupted += 1
            raise
    assert interrupted == 0
    assert stream.result.text == "done"
    assert stream.result.messages[2].parts[0].status == "interrupted"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_observer_does_not_change_what_the_stream_tells():
    def make() -> Agent:
        agent = Agent(ScriptedModel(calls("add", a=1, b=2), says(chunks=["a", "b"])), tools=[add])
        agent.transform(Upper)
        return agent

    plain, _ = await told(make())
    watched, _ = await told(make().with_capability(RecordingObserver()))
    assert [type(event) for event in plain] == [type(event) for event in watched]
    assert texts(plain) == texts(watched)
    assert of(plain, StepStarted)
    assert of(plain, ModelCalled)


async def test_what_a_hook_that_keeps_silent_costs_is_nothing_in_the_stream():
    plain, _ = await told(Agent(ScriptedModel(says("hi"))))
    agent = Agent(ScriptedModel(says("hi")))
    for event in (TurnStarting, ModelCalling, StepEnding, MessageAdding):
        agent.gate(event)(lambda event: None)
    hooked, _ = await told(agent)
    assert [type(event) for event in plain] == [type(event) for event in hooked]


async def test_a_reply_that_is_held_is_stopped_like_any_other():
    agent = Agent(ScriptedModel(says(chunks=["cut ", "off"], finish="length")))
    agent.gate(TurnEnding)(lambda event: None)
    events, result = await told(agent)
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.LENGTH
    assert visible(events) == result.text == "cut off"
