"""Sessions: what a busy one does with a message, what becomes of steering, and what a turn costs in a long one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Cancelled, Completed, Lifecycle, ToolCalling, tool, user
from windlass._kernel.channel import Channel
from windlass._kernel.entry import Entry
from windlass._kernel.segment import Segment
from windlass.errors import SessionBusy, SessionUnknown
from windlass.ownership import Claim
from windlass.records import InboxTaken, Record, SessionOpened, TurnStarted
from windlass.states import Fold
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .checks import FrozenClock, check_log, only_this_task

PATIENCE = 50.0
"""Seconds after which something waits for itself."""


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def users(messages: Any) -> list[str]:
    """What the user said."""
    return [message.text for message in messages if message.role == "user"]


class Held:
    """An agent whose model waits until it may go on, and then repeats what the user said."""

    def __init__(self, **options: Any) -> None:
        self.asked = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.agent = Agent(FunctionModel(self.reply), clock=FrozenClock(), **options)

    async def reply(self, request: Any) -> Any:
        self.asked.set()
        await self.may_go_on.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return says("; ".join(users(request.messages)))


# ---------------------------------------------------------------- a turn that would wait for itself


def nested(busy: Any, run: Any, *, inline: bool = False) -> tuple[Agent, list[Exception]]:
    """An agent with a tool that uses the agent; what it raises is listed."""
    raised: list[Exception] = []

    def note(error: Exception) -> str:
        raised.append(error)
        return "refused"

    if asyncio.iscoroutinefunction(run):

        @tool(name="nest")
        async def nest() -> str:
            """Run the agent in its own turn."""
            try:
                return (await run(agent)).text
            except SessionBusy as error:
                return note(error)
    else:

        @tool(name="nest", inline=inline)
        def nest() -> str:
            """Run the agent in its own turn."""
            try:
                return run(agent).text
            except SessionBusy as error:
                return note(error)

    agent = Agent(ScriptedModel(calls("nest"), says("done"), says("more")), tools=[nest], busy=busy)
    return agent, raised


@pytest.mark.parametrize("busy", ["refuse", "queue", "steer"])
async def test_a_tool_that_runs_its_own_session_is_refused(busy):
    async def run(agent: Agent) -> Any:
        return await agent.run("again", session="s")

    agent, raised = nested(busy, run)
    async with asyncio.timeout(PATIENCE):
        result = await agent.run("go", session="s")
    assert [error.session for error in raised] == ["s"]  # type: ignore[attr-defined]
    assert result.outcome == Completed()
    assert users(result.messages) == ["go"]
    assert (await agent.run("after", session="s")).outcome == Completed()


@pytest.mark.parametrize("busy", ["queue", "steer"])
@pytest.mark.parametrize("inline", [False, True])
async def test_a_plain_tool_that_runs_its_own_session_is_refused_in_whatever_thread_it_is(busy, inline):
    agent, raised = nested(busy, lambda agent: agent.run_sync("again", session="s"), inline=inline)
    async with asyncio.timeout(PATIENCE):
        result = await agent.run("go", session="s")
    assert len(raised) == 1
    assert result.text == "done"


async def test_a_task_that_a_tool_waits_for_is_refused_too():
    async def run(agent: Agent) -> Any:
        return await asyncio.create_task(agent.run("again", session="s"))

    agent, raised = nested("queue", run)
    async with asyncio.timeout(PATIENCE):
        async with aclosing(agent.iterate("go", session="s")) as states:
            outcomes = [state.outcome async for state in states]
    assert len(raised) == 1
    assert outcomes[-1] == Completed()


async def test_a_session_that_comes_back_through_another_agent_is_refused():
    async def run(agent: Agent) -> Any:
        @tool
        async def back() -> str:
            """Go back to the first agent."""
            return (await agent.run("again", session="s")).text

        other = Agent(ScriptedModel(calls("back"), says("came back")), tools=[back], busy="queue")
        inner = await other.run("go", session="s")
        assert "from inside its own turn" in inner.messages[2].parts[0].content[0].text
        return inner

    agent, raised = nested("queue", run)
    async with asyncio.timeout(PATIENCE):
        assert (await agent.run("go", session="s")).text == "done"
    assert raised == []


async def test_a_gate_that_runs_its_own_session_is_refused():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("done")), tools=[add], busy="queue")

    @agent.gate(ToolCalling)
    async def again(event: ToolCalling) -> None:
        with pytest.raises(SessionBusy, match="wait for itself"):
            await agent.run("again", session="s")

    async with asyncio.timeout(PATIENCE):
        assert (await agent.run("go", session="s")).outcome == Completed()


@pytest.mark.parametrize("busy", ["refuse", "queue", "steer"])
async def test_nobody_can_wait_for_a_session_without_a_name(busy):
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("done")), tools=[add], busy=busy)

    @agent.gate(ToolCalling)
    async def again(event: ToolCalling) -> None:
        with pytest.raises(SessionBusy):
            await agent.run("again", session=event.turn.state.session)

    async with asyncio.timeout(PATIENCE):
        assert (await agent.run("go")).outcome == Completed()


async def test_a_tool_may_run_another_session_of_its_agent():
    async def run(agent: Agent) -> Any:
        return await agent.run("there", session="other")

    agent, raised = nested("queue", run)
    result = await agent.run("go", session="s")
    assert raised == []
    assert users((await agent.state("other")).messages) == ["there"]
    assert result.outcome == Completed()


async def test_a_task_left_behind_by_a_turn_may_run_the_session_when_that_turn_is_over():
    tasks: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    async def later() -> Any:
        await over.wait()
        return await held.agent.run("from the task", session="s")

    @tool
    async def leave() -> str:
        """Leave a task behind."""
        tasks.append(asyncio.create_task(later()))
        return "left"

    held = Held(busy="queue")
    first = Agent(ScriptedModel(calls("leave"), says("done")), tools=[leave], store=held.agent.store)
    await first.run("go", session="s")
    second = asyncio.ensure_future(held.agent.run("second", session="s"))
    await held.asked.wait()
    over.set()
    held.may_go_on.set()
    assert (await second).text == "go; second"
    assert (await tasks[0]).text == "go; second; from the task"


# ---------------------------------------------------------------- several who steer


@pytest.mark.parametrize("busy", ["queue", "steer"])
async def test_of_many_messages_to_a_busy_session_each_is_heard_once(busy):
    held = Held(busy=busy)
    turns = [asyncio.ensure_future(held.agent.run("one", session="s"))]
    await held.asked.wait()
    turns += [asyncio.ensure_future(held.agent.run(text, session="s")) for text in ("two", "three", "four")]
    await asyncio.sleep(0)
    held.may_go_on.set()
    async with asyncio.timeout(PATIENCE):
        done = await asyncio.gather(*turns)
    state = await check_log(held.agent, "s")
    assert users(state.messages) == ["one", "two", "three", "four"]
    for text, result in zip(("one", "two", "three", "four"), done, strict=True):
        assert text in result.text
        assert result.outcome == Completed()


async def test_those_whose_steering_one_turn_heard_get_the_result_of_that_turn():
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    script = iter([calls("add", a=1, b=2), says("heard you all")])

    async def reply(request: Any) -> Any:
        asked.set()
        await may_go_on.wait()
        return next(script)

    agent = Agent(FunctionModel(reply), tools=[add], busy="steer", clock=FrozenClock())
    turns = [asyncio.ensure_future(agent.run("one", session="s"))]
    await asked.wait()
    turns += [asyncio.ensure_future(agent.run(text, session="s")) for text in ("two", "three")]
    await asyncio.sleep(0)
    may_go_on.set()
    done = await asyncio.gather(*turns)
    assert done[0] is done[1] is done[2]
    assert done[0].state.turns == 1


async def test_steering_that_an_iterated_turn_heard_is_not_heard_again():
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2), calls("add", a=1, b=2), says("heard")), tools=[add], busy="steer"
    )
    second: asyncio.Future[Any] | None = None
    async with aclosing(agent.iterate("one", session="s")) as states:
        async for state in states:
            if second is None:
                second = asyncio.ensure_future(agent.run("two", session="s"))
                await asyncio.sleep(0)
            last = state
    assert second is not None
    assert (await second).text == "heard"
    assert users(last.messages) == ["one", "two"]
    assert (await agent.state("s")).turns == 1


async def test_steering_of_a_turn_that_is_cancelled_tells_so_and_is_not_heard_twice():
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    @tool
    async def steer() -> str:
        """Let somebody else speak."""
        speak.set()
        await asyncio.sleep(0)
        return "ok"

    async def speaking() -> Any:
        await speak.wait()
        return await agent.run("two", session="s")

    speak = asyncio.Event()
    agent = Agent(ScriptedModel(calls("steer"), calls("wait")), tools=[steer, wait], busy="steer")
    second = asyncio.ensure_future(speaking())
    first = asyncio.ensure_future(agent.run("one", session="s"))
    await started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    result = await second
    assert isinstance(result.outcome, Cancelled)
    assert users((await agent.state("s")).messages) == ["one", "two"]


# ---------------------------------------------------------------- steering is not lost


async def test_steering_of_an_idle_session_is_read_by_its_next_turn():
    model = ScriptedModel(says("first"), says("second"), says("third"))
    agent = Agent(model)
    await agent.run("one", session="s")
    await agent.steer("s", "by the way")
    await agent.run("two", session="s")
    assert users(model.requests[1].messages) == ["one", "two", "by the way"]
    await agent.run("three", session="s")
    assert users(model.requests[2].messages) == ["one", "two", "by the way", "three"]
    await check_log(agent, "s")


async def test_steering_of_a_suspended_session_is_read_when_it_is_resumed():
    model = ScriptedModel(calls("add", a=1, b=2), says("done"))
    agent = Agent(model, tools=[add])
    agent.gate(ToolCalling)(lambda event: Ask("may it?"))
    waiting = (await agent.run("one", session="s")).waiting_for
    await agent.steer("s", "by the way")
    result = await agent.resume("s", answers={waiting[0].id: Approve()})
    assert result.text == "done"
    assert users(model.requests[1].messages) == ["one", "by the way"]
    await check_log(agent, "s")


async def test_a_session_that_nobody_knows_cannot_be_steered():
    agent = Agent(ScriptedModel(says("hello")))
    with pytest.raises(SessionUnknown, match="'nosuch'") as unknown:
        await agent.steer("nosuch", "hello")
    assert unknown.value.session == "nosuch"
    assert list(await agent.store.inbox("nosuch", ())) == []


async def test_a_session_in_its_first_turn_can_be_steered():
    held = Held()
    first = asyncio.ensure_future(held.agent.run("one", session="s"))
    await held.asked.wait()
    await held.agent.steer("s", "by the way")
    held.may_go_on.set()
    await first
    assert "by the way" in (await held.agent.run("two", session="s")).text


async def test_what_the_log_says_was_taken_leaves_the_inbox_for_good():
    store = MemoryStore()
    await store.put("s", "k1", "steer", "one")
    await store.put("s", "k2", "steer", "two")
    assert await store.append("s", [SessionOpened("new", "a", "p"), InboxTaken("k1", "steer")], 0) is True
    assert list(await store.inbox("s", ())) == [("k2", "steer", "two")]
    assert await store.append("s", [InboxTaken("k2", "steer")], 2) is False
    assert list(await store.inbox("s", ())) == []
    assert await store.put("s", "k1", "steer", "one") is False
    assert await store.put("s", "k3", "steer", "three") is True
    assert list(await store.inbox("s", ("k1", "k2"))) == [("k3", "steer", "three")]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("steer", {"role": "nobody"}),
        ("steer", {"role": "assistant", "parts": [{"type": "text", "text": "I did."}]}),
        ("steer", 5),
        ("cancel", {"reason": "of which turn?"}),
        ("hello", None),
    ],
)
async def test_what_makes_no_sense_in_an_inbox_is_taken_and_ends_no_turn(kind: str, data: Any):
    agent = Agent(FunctionModel(lambda request: says(f"of {len(request.messages)}")))
    await agent.run("one", session="s")
    await agent.store.put("s", "k", kind, data)
    result = await agent.run("two", session="s")
    assert (result.outcome, result.text) == (Completed(), "of 3")
    assert list(await agent.store.inbox("s", ())) == []


async def test_a_segment_that_is_steered_has_one_more_message_once():
    agent = Agent(ScriptedModel())
    segment = Segment(agent._compile(), Fold("s"), Entry(), Claim("s", 1, begins=True))
    segment.record(TurnStarted(1, user("hello"), "s/t1"))
    await agent.store.put("s", "k", "steer", "by the way")
    assert await segment.inbox.was_steered() is False
    await segment.commit()
    assert await segment.inbox.was_steered() is True
    assert users(segment.fold.messages) == ["by the way"]
    assert await segment.inbox.was_steered() is False
    await segment.commit()
    assert await segment.inbox.was_steered() is False


# ---------------------------------------------------------------- leaving a turn that is iterated


async def test_a_reader_that_leaves_leaves_no_task_behind(caplog):
    gc.collect()  # what earlier tests have left may end in tasks as well
    before = asyncio.all_tasks()
    agent = Agent(ScriptedModel(*[calls("add", a=1, b=2)] * 3, says("done")), tools=[add])
    async with aclosing(agent.iterate("go", session="s")) as states:
        async for _ in states:
            break
    gc.collect()
    assert asyncio.all_tasks() <= before
    assert caplog.records == []


async def test_a_reader_that_is_cancelled_leaves_no_task_behind(caplog):
    held = Held()

    async def read() -> None:
        async for _ in held.agent.iterate("go", session="s"):
            pass

    reader = asyncio.ensure_future(read())
    await held.asked.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await only_this_task()
    del reader
    gc.collect()
    assert caplog.records == []
    held.may_go_on.set()
    assert (await held.agent.run("again", session="s")).outcome == Completed()


async def test_a_producer_that_is_cancelled_with_a_value_in_hand_does_not_leave_its_reader_waiting():
    channel: Channel[int] = Channel()

    async def produce() -> int:
        producer = asyncio.current_task()
        assert producer is not None
        asyncio.get_running_loop().call_soon(producer.cancel)
        await channel.put(1)
        return 2

    values = channel.read(produce)
    async with asyncio.timeout(PATIENCE):
        assert await anext(values) == 1
        with pytest.raises(asyncio.CancelledError):
            await anext(values)


# ---------------------------------------------------------------- what a turn costs in a long session


class Counting(MemoryStore):
    """Counts the records that are read."""

    count = 0

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        records = await super().read(session, start)
        self.count += len(records)
        return records

    def erase(self, session: str) -> None:
        del self._logs[session]


def echo(store: Any, at: float = 1_000.0) -> Agent:
    async def reply(request: Any) -> Any:
        return says("; ".join(users(request.messages)))

    return Agent(FunctionModel(reply), store=store, clock=FrozenClock(at))


async def test_a_turn_reads_as_little_in_a_long_session_as_in_a_short_one():
    store = Counting()
    agent = echo(store)
    reads: list[int] = []
    for number in range(20):
        store.count = 0
        await agent.run(str(number), session="s")
        reads.append(store.count)
    assert reads == [0, *[1] * 19]
    await check_log(agent, "s")


async def test_a_turn_reads_as_little_in_the_store_that_lets_nobody_wait(monkeypatch):
    """The agent writes to a plain `MemoryStore` by a shorter way than to any other store."""
    store, reads = MemoryStore(), []

    async def read(session: str, start: int = 0) -> Sequence[Record]:
        records = await MemoryStore.read(store, session, start)
        reads.append(len(records))
        return records

    monkeypatch.setattr(store, "read", read)
    agent = echo(store)
    for number in range(5):
        await agent.run(str(number), session="s")
    assert reads == [0, 1, 1, 1, 1]


async def test_the_state_of_a_result_does_not_change_with_later_turns():
    agent = echo(MemoryStore())
    results = [await agent.run(str(number), session="s") for number in range(3)]
    assert [result.text for result in results] == ["0", "0; 1", "0; 1; 2"]
    assert [len(result.messages) for result in results] == [2, 4, 6]
    assert [result.state.turns for result in results] == [1, 2, 3]
    assert results[-1].state == await check_log(agent, "s")


async def test_what_another_agent_did_in_the_session_is_read():
    store = Counting()
    one, other = echo(store), echo(store)
    await one.run("a", session="s")
    await other.run("b", session="s")
    await other.run("c", session="s")
    result = await one.run("d", session="s")
    assert result.text == "a; b; c; d"
    await check_log(one, "s", result.state)
    async with one.session("s"):
        pass
    result = await other.run("e", session="s")
    assert result.text == "a; b; c; d; e"
    await check_log(other, "s", result.state)


async def test_a_session_that_was_erased_is_forgotten():
    store = Counting()
    agent = echo(store)
    await agent.run("secret", session="s")
    store.erase("s")
    result = await agent.run("hello", session="s")
    assert result.text == "hello"
    await check_log(agent, "s", result.state)


async def test_a_session_that_was_erased_and_made_anew_by_another_is_forgotten():
    store = Counting()
    agent, other = echo(store), echo(store, at=2_000.0)
    await agent.run("secret", session="s")
    store.erase("s")
    for text in ("x", "y", "z"):
        await other.run(text, session="s")
    result = await agent.run("hello", session="s")
    assert result.text == "x; y; z; hello"
    await check_log(agent, "s", result.state)


async def test_a_turn_that_was_cancelled_leaves_nothing_behind_that_the_log_does_not_tell():
    held = Held()
    first = asyncio.ensure_future(held.agent.run("one", session="s"))
    await held.asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    held.may_go_on.set()
    result = await held.agent.run("two", session="s")
    assert result.text == "one; two"
    await check_log(held.agent, "s", result.state)


async def test_more_sessions_than_are_remembered_are_all_right():
    store = Counting()
    agent = echo(store)
    for number in range(300):
        await agent.run("a", session=f"s{number}")
    store.count = 0
    assert (await agent.run("b", session="s299")).text == "a; b"
    assert store.count == 1
    assert (await agent.run("b", session="s0")).text == "a; b"
    assert store.count == 1 + len(await MemoryStore.read(store, "s1"))


class Onlooker(Lifecycle):
    """Looks at all it can and changes nothing."""

    async def before_agent(self, text: str) -> None: ...

    async def before_model(self, messages: Any) -> None: ...

    async def wrap_model_call(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def after_model(self, reply: Any) -> None: ...

    async def wrap_tool_call(self, call: Any, call_next: Any) -> Any:
        return await call_next(call)

    async def after_agent(self, text: str) -> None: ...


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
async def test_what_a_turn_was_given_is_freed_when_it_ends_without_the_collector(session, hooks):
    class Scope:
        """What the application passes."""

    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3"), says("again")), tools=[add])
    if hooks:
        agent.with_lifecycle(Onlooker()).with_lifecycle(Onlooker())
        agent.gate(ToolCalling)(lambda event, turn: None)
    scope = Scope()
    seen = weakref.ref(scope)
    gc.disable()
    try:
        result = await agent.run("go", session=session, scope=scope)
        del scope
        assert seen() is None
        assert result.text == "3"
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["stream", "iterate"])
async def test_a_queued_message_may_be_streamed_or_iterated_over(way):
    begun = asyncio.Event()

    async def reply(request: Any) -> str:
        begun.set()
        await asyncio.sleep(0)
        return f"to {request.messages[-1].text}"

    agent = Agent(FunctionModel(reply), busy="queue")
    first = asyncio.ensure_future(agent.run("one", session="s"))
    await begun.wait()
    events = agent.stream("two", session="s") if way == "stream" else agent.iterate("two", session="s")
    assert [event async for event in events]
    assert first.done()
    state = await agent.state("s")
    assert [message.text for message in state.messages] == ["one", "to one", "two", "to two"]


@pytest.mark.parametrize(("busy", "hint"), [("refuse", "busy='queue'"), ("queue", "only messages"), ("steer", "steer")])
async def test_who_is_refused_is_told_what_can_be_done(busy, hint):
    async def resume(agent: Agent) -> Any:
        return await agent.resume("s")

    agent, raised = nested(busy, resume)
    await agent.run("go", session="s")
    assert hint in str(raised[0])


# ---------------------------------------------------------------- a cancel that comes too late


async def test_a_cancel_is_meant_for_the_turn_that_it_found_and_for_no_later_one():
    store = MemoryStore()
    first = Agent(ScriptedModel(calls("add", a=1, b=1)), tools=[add], store=store)
    first.gate(ToolCalling)(lambda event: Ask("Add?"))
    await first.run("go", session="s")
    other = Agent(ScriptedModel(says("hello")), tools=[add], store=store)
    assert await other.cancel("s", "enough")
    result = await other.run("something else", session="s")
    assert (result.outcome, result.text) == (Completed(), "hello")
    assert list(await store.inbox("s", ())) == []


async def test_a_cancel_that_comes_while_a_turn_is_suspended_ends_it_at_the_next_resume():
    store = MemoryStore()
    first = Agent(ScriptedModel(calls("add", a=1, b=1)), tools=[add], store=store)
    first.gate(ToolCalling)(lambda event: Ask("Add?"))
    await first.run("go", session="s")
    other = Agent(ScriptedModel(), tools=[add], store=store)
    assert await other.cancel("s", "enough")
    assert (await other.resume("s")).outcome == Cancelled("enough")
