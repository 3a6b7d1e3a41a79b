"""Cancellation: by the task, from inside, by time, by a consumer that leaves. Whatever went on, the turn is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.checks import check_log, nothing_unraised, only_this_task, until, visible

from windlass import (
    ActiveTimeLimit,
    Agent,
    Approve,
    Ask,
    Cancelled,
    CancelRequested,
    Completed,
    Continuing,
    Deadline,
    Erring,
    ErrorPolicy,
    LateResult,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReply,
    ModelReplying,
    Regenerate,
    ReplyRejected,
    Resuming,
    SessionStarting,
    Step,
    StepEnding,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarted,
    TurnStarting,
    tool,
)
from windlass.decisions import Again
from windlass.errors import HookError, ServerError
from windlass.messages import assistant
from windlass.records import Record, Suspended
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import FakeClock, FunctionModel, RecordingObserver, ScriptedModel, breaks, calls, says, unpaired

SESSION = "s"


class Place:
    """Somewhere in a turn: whoever first comes `here` says so and stays until released."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.interrupted = 0

    async def here(self, *_: Any) -> None:
        if not self.reached.is_set():
            self.reached.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.interrupted += 1
                raise


class Watched:
    """An agent whose endings are watched, with a place at which its turn stays."""

    def __init__(self, model: Any = None, *, tools: Any = (), **options: Any) -> None:
        self.place = place = Place()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.outcomes: list[Any] = []
        self.returned: list[str] = []

        @tool
        async def work(n: int = 0) -> str:
            """Work."""
            return f"worked {n}"

        script = (calls("work", n=1), says("done"), says("again"), says("and again"))
        self.agent = Agent(model or ScriptedModel(*script), tools=[work, *tools], **options)
        self.here = place.here
        self.agent.gate(StepStarting, name="begun", priority=99)(lambda event: self.begun.append(event.step))
        self.agent.gate(StepEnding, name="ended", priority=99)(lambda event: self.ended.append(event.step.number))
        self.agent.gate(TurnEnding, name="outcome", priority=99, live=True)(
            lambda event: self.outcomes.append(event.outcome)
        )
        self.agent.observe(ToolReturned, wait=True)(lambda fact: self.returned.append(fact.result.status))

    async def closed(self) -> Any:
        """The turn is closed in every respect; what it came to."""
        assert await only_this_task()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        state = await check_log(self.agent, SESSION)
        log = await self.agent.store.read(SESSION)
        turns = sum(isinstance(record, TurnStarted) for record in log)
        assert state.over
        assert state.open is None
        assert sum(isinstance(record, TurnEnded) for record in log) == turns
        assert len(self.outcomes) == turns, "the hooks of TurnEnding run once in every turn"
        assert self.outcomes[-1] == state.outcome
        assert self.ended == self.begun, "a step that has begun ends, once"
        return state

    async def usable(self) -> None:
        """The session goes on with another turn."""
        result = await self.agent.run("and now?", session=SESSION)
        assert isinstance(result.outcome, Completed)
        await self.closed()


# ---------------------------------------------------------------- where

Built = Callable[[], Watched]


def in_the_model() -> Watched:
    async def reply(request: Any) -> Any:
        await watched.here()
        return says("done")

    watched = Watched(FunctionModel(reply))
    return watched


def in_a_tool() -> Watched:
    @tool
    async def stay() -> str:
        """Stay."""
        await watched.here()
        return "stayed"

    watched = Watched(ScriptedModel(calls("stay"), says("done"), says("again")), tools=[stay])
    return watched


def in_parallel_tools() -> Watched:
    @tool
    async def stay() -> str:
        """Stay."""
        await watched.here()
        return "stayed"

    script = calls([("work", {}), ("stay", {}), ("work", {"n": 2})]), says("done"), says("again")
    watched = Watched(ScriptedModel(*script), tools=[stay])
    return watched


def in_the_delay_of_a_retry() -> Watched:
    clock = FakeClock()
    policy = ErrorPolicy(retries=1, delay=5.0)
    watched = Watched(ScriptedModel(ServerError("no"), says("done"), says("again")), errors=policy, clock=clock)
    slept = clock.sleep

    async def sleep(seconds: float) -> None:
        watched.place.reached.set()
        await slept(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    return watched


class SlowStore(MemoryStore):
    """A store whose append takes a while, before or after it has kept the batch."""

    durable = True

    def __init__(self, when: str, number: int) -> None:
        super().__init__()
        self.when = when
        self.number = number
        self.here: Any = None

    async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
        self.number -= 1
        if self.number == 0 and self.when == "before":
            await self.here()
        kept = await super().append(session, records, expected, claim)
        if self.number == 0 and self.when == "after":
            await self.here()
        return kept


def in_the_commit(when: str, number: int) -> Built:
    def build() -> Watched:
        store = SlowStore(when, number)
        watched = Watched(store=store)
        store.here = watched.here
        return watched

    return build


def in_a_hook(kind: str, event: Any, **options: Any) -> Built:
    def build() -> Watched:
        script: list[Any] = [calls("work", n=1), says("done"), says("again"), says("and again")]
        if event is Erring:
            script.insert(0, ServerError("no"))
        watched = Watched(ScriptedModel(*script), errors=ErrorPolicy.retrying(1, delay=0))
        if event in (ModelReplying, TurnEnding):
            options["live"] = True

        async def hook(event: Any) -> None:
            await watched.here()

        getattr(watched.agent, kind)(event, name="place", **options)(hook)
        return watched

    return build


def in_a_group() -> Watched:
    watched = Watched()

    async def hook(event: Any) -> str:
        await watched.here()
        return "context"

    for number in range(3):
        watched.agent.inject(TurnStarting, group="all", name=f"member{number}")(hook)
    return watched


def in_a_wrap(effect: Any, when: str) -> Built:
    def build() -> Watched:
        watched = Watched()

        @watched.agent.wrap(effect)
        async def wrap(value: Any, call_next: Any) -> Any:
            if when == "before":
                await watched.here()
            result = await call_next(value)
            if when == "after":
                await watched.here()
            return result

        return watched

    return build


def in_an_observer() -> Watched:
    watched = Watched()

    @watched.agent.observe(ToolReturned, wait=True)
    async def look(fact: Any) -> None:
        await watched.here()

    return watched


EVENTS = [
    SessionStarting, TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding,
    Continuing, Stopping, Erring,
]  # fmt: skip
REWRITES = [SessionStarting, TurnStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding]
INJECTS = [SessionStarting, TurnStarting, StepStarting, ToolCalling, ToolReturning]
PLACES: dict[str, Built] = {
    "the model": in_the_model,
    "a tool": in_a_tool,
    "parallel tools": in_parallel_tools,
    "the delay of a retry": in_the_delay_of_a_retry,
    "a parallel group": in_a_group,
    "an observer": in_an_observer,
    **{f"a gate on {event.__name__}": in_a_hook("gate", event) for event in EVENTS},
    **{f"a rewrite on {event.__name__}": in_a_hook("rewrite", event) for event in REWRITES},
    **{f"an injection on {event.__name__}": in_a_hook("inject", event) for event in INJECTS},
    **{f"before {effect.__name__}": in_a_wrap(effect, "before") for effect in (ModelCall, ToolCall, Step)},
    **{f"after {effect.__name__}": in_a_wrap(effect, "after") for effect in (ModelCall, ToolCall)},
    **{f"commit {n}, {when}": in_the_commit(when, n) for n in (1, 2, 3) for when in ("before", "after")},
}

# ---------------------------------------------------------------- how


async def by_task(watched: Watched) -> None:
    """The task that runs the turn is cancelled: it raises, when the turn is closed."""
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    task.cancel("enough")
    await asyncio.wait([task])
    assert task.cancelled()


async def by_the_agent(watched: Watched) -> None:
    """Somebody else cancels the session's turn: the caller gets a result that says so."""
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    assert await watched.agent.cancel(SESSION, "enough")
    result = await task
    assert result.outcome == Cancelled("enough")


async def by_the_agent_while_streaming(watched: Watched) -> None:
    stream = watched.agent.stream("go", session=SESSION)
    events: list[Any] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 -- while it happens

    task = asyncio.ensure_future(read())
    await watched.place.reached.wait()
    assert await watched.agent.cancel(SESSION, "enough")
    await task
    assert stream.result.outcome == Cancelled("enough")
    assert visible(events) == stream.result.partial_text


async def by_leaving_the_stream(watched: Watched) -> None:
    stream = watched.agent.stream("go", session=SESSION)
    await read_until(stream, watched.place.reached)


async def by_leaving_the_iteration(watched: Watched) -> None:
    states = watched.agent.iterate("go", session=SESSION)
    await read_until(states, watched.place.reached)


async def read_until(events: Any, reached: asyncio.Event) -> None:
    """Read on until the turn has come to a place, then leave."""

    async def read() -> None:
        async for _ in events:
            pass

    reading = asyncio.ensure_future(read())
    await reached.wait()
    reading.cancel()
    await asyncio.wait([reading])
    await events.aclose()


async def by_task_and_agent(watched: Watched) -> None:
    """Both at once: what comes from outside is raised."""
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    assert await watched.agent.cancel(SESSION, "enough")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def by_task_again_and_again(watched: Watched) -> None:
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


async def by_a_time_out(watched: Watched) -> None:
    async def run() -> None:
        async with asyncio.timeout(None) as limit:
            reached = asyncio.ensure_future(watched.place.reached.wait())
            reached.add_done_callback(lambda _: limit.reschedule(0))
            await watched.agent.run("go", session=SESSION)

    with pytest.raises(TimeoutError):
        await run()


async def by_a_sibling(watched: Watched) -> None:
    """A task group cancels the turn because another task failed."""

    async def fail() -> None:
        await watched.place.reached.wait()
        raise ZeroDivisionError

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watched.agent.run("go", session=SESSION))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.ensure_future(run())
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


MEANS: list[Callable[[Watched], Awaitable[None]]] = [
    by_task, by_the_agent, by_the_agent_while_streaming, by_leaving_the_stream, by_leaving_the_iteration,
    by_task_and_agent, by_task_again_and_again, by_a_time_out, by_a_sibling,
]  # fmt: skip


@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize("place", PLACES)
async def test_wherever_a_turn_is_cancelled_it_is_closed(place, means):
    """Behaviour 83f: every call has a result, the ending hooks run once with the outcome, the session can be used."""
    watched = PLACES[place]()
    with nothing_unraised(collect=False):
        await means(watched)
        state = await watched.closed()
        assert isinstance(state.outcome, Cancelled)
        log = await watched.agent.store.read(SESSION)
        assert sum(isinstance(record, CancelRequested) for record in log) == 1
        await watched.usable()


# ---------------------------------------------------------------- the endings are not broken off


@pytest.mark.parametrize("kind", ["gate", "rewrite", "thread"])
@pytest.mark.parametrize("means", [by_task, by_leaving_the_stream, by_task_again_and_again])
async def test_a_cancel_does_not_break_off_the_hooks_of_turn_ending(means, kind):
    """A turn that was about to complete completes; who cancelled it hears of that when its hooks have run, once."""
    watched = Watched()
    ran: list[str] = []
    loop = asyncio.get_running_loop()

    def in_thread(event: Any) -> None:
        asyncio.run_coroutine_threadsafe(watched.here(), loop).result()
        ran.append("whole")

    async def hook(event: Any) -> None:
        await watched.here()
        ran.append("whole")

    if kind == "thread":
        watched.agent.gate(TurnEnding, live=True, thread=True)(in_thread)
    else:
        getattr(watched.agent, kind)(TurnEnding, live=True)(hook)
    going = asyncio.ensure_future(means(watched))
    await watched.place.reached.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert ran == []
    watched.place.release.set()
    await going
    assert ran == ["whole"]
    assert watched.place.interrupted == 0
    state = await watched.closed()
    assert isinstance(state.outcome, Completed)
    await watched.usable()


@pytest.mark.parametrize("means", [by_task, by_the_agent, by_leaving_the_stream, by_task_again_and_again])
async def test_a_cancel_does_not_break_off_the_hooks_of_step_ending(means):
    watched = Watched()
    ran: list[int] = []

    @watched.agent.gate(StepEnding)
    async def hook(event: Any) -> None:
        await watched.here()
        ran.append(event.step.number)

    going = asyncio.ensure_future(means(watched))
    await watched.place.reached.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    watched.place.release.set()
    await going
    assert ran == [1]
    assert watched.place.interrupted == 0
    state = await watched.closed()
    assert isinstance(state.outcome, Cancelled)
    await watched.usable()


async def test_a_cancel_at_the_end_of_a_turn_comes_too_late_and_does_not_hit_the_next():
    watched = Watched()

    @watched.agent.gate(TurnEnding, live=True)
    async def hook(event: Any) -> None:
        await watched.here()

    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    assert await watched.agent.cancel(SESSION, "too late") is False
    watched.place.release.set()
    assert isinstance((await task).outcome, Completed)
    assert await watched.agent.cancel(SESSION, "too late") is False
    await watched.usable()


async def test_ending_hooks_that_never_end_are_given_up():
    watched = in_a_tool()
    watched.agent._options.ending_timeout = 0.01

    @watched.agent.gate(StepEnding)
    async def never(event: Any) -> None:
        await asyncio.Event().wait()

    @watched.agent.gate(TurnEnding, live=True)
    async def never_either(event: Any) -> None:
        await asyncio.Event().wait()

    await by_task(watched)
    state = await watched.closed()
    assert isinstance(state.outcome, Cancelled)


# ---------------------------------------------------------------- from inside


@pytest.mark.parametrize("how", ["async tool", "tool in a thread", "gate", "rewrite", "wrap", "step wrap", "twice"])
async def test_a_hook_or_tool_may_cancel_its_own_turn(how):
    called: list[str] = []

    @tool
    async def asynchronous(turn: Turn) -> str:
        """Cancel."""
        turn.cancel("enough")
        if how == "twice":
            turn.cancel("again")
        await asyncio.Event().wait()
        return "never"

    @tool
    def in_a_thread(turn: Turn) -> str:
        """Cancel."""
        turn.cancel("enough")
        return "done all the same"

    name = "in_a_thread" if "thread" in how else "asynchronous" if how in ("async tool", "twice") else "work"
    watched = Watched(ScriptedModel(calls(name), says("done"), says("x"), says("y")), tools=[asynchronous, in_a_thread])
    agent = watched.agent

    def once(turn: Any) -> None:
        if not called:
            called.append(how)
            turn.cancel("enough")

    if how == "gate":

        @agent.gate(ToolCalling)
        async def gate(event: Any, turn: Turn) -> None:
            once(turn)
            await asyncio.sleep(0)

    elif how == "rewrite":

        @agent.rewrite(ModelCalling)
        def rewrite(event: Any, turn: Turn) -> None:
            once(turn)

    elif how == "wrap":

        @agent.wrap(ModelCall)
        async def wrap(request: Any, call_next: Any, turn: Turn) -> Any:
            reply = await call_next(request)
            once(turn)
            await asyncio.sleep(0)
            return reply

    elif how == "step wrap":

        @agent.wrap(Step)
        async def around(state: Any, call_next: Any, turn: Turn) -> Any:
            await call_next(state)
            once(turn)

    with nothing_unraised():
        result = await agent.run("go", session=SESSION)
        assert result.outcome == Cancelled("enough")
        await watched.closed()
        log = await agent.store.read(SESSION)
        assert [record.reason for record in log if isinstance(record, CancelRequested)] == ["enough"]
        agent.model.script[:] = [says("again")] * 9  # type: ignore[attr-defined]
        await watched.usable()


async def test_a_turn_object_that_outlives_its_turn_cancels_nothing():
    kept: list[Any] = []
    watched = Watched()

    @watched.agent.rewrite(ModelCalling)
    def keep(event: Any, turn: Turn) -> None:
        kept.append(turn)

    await watched.agent.run("go", session=SESSION)
    with pytest.raises(HookError, match="the turn is over"):
        kept[0].cancel("too late")
    await watched.usable()


async def test_a_cancel_before_the_turn_has_begun_is_heard():
    """The session is entered already, the loop is not."""

    class Slow(MemoryStore):
        async def inbox(self, session: str, taken: Any) -> Any:
            await watched.here()
            return await super().inbox(session, taken)

    watched = Watched(store=Slow())
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await watched.place.reached.wait()
    assert await watched.agent.cancel(SESSION, "enough")
    watched.place.release.set()
    assert (await task).outcome == Cancelled("enough")
    await watched.closed()
    await watched.usable()


async def test_a_turn_that_runs_while_its_task_is_being_cancelled_tells_its_own_cancel_from_that():
    """Cleaning up after a cancel with an agent: `cancelling()` is not 0, and stays what it was."""
    outcomes: list[Any] = []

    @tool
    async def stop(turn: Turn) -> str:
        """Stop."""
        turn.cancel("enough")
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(calls("stop")), tools=[stop])

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            outcomes.append((await agent.run("clean up")).outcome)
            task = asyncio.current_task()
            assert task is not None
            outcomes.append(task.cancelling())

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert outcomes == [Cancelled("enough"), 1]


async def test_a_cancel_that_a_tool_swallows_ends_the_turn_all_the_same():
    @tool
    async def stubborn() -> str:
        """Do not stop."""
        try:
            await watched.here()
        except asyncio.CancelledError:
            return "I go on"
        return "never"

    watched = Watched(ScriptedModel(calls("stubborn"), says("done"), says("again")), tools=[stubborn])
    await by_the_agent(watched)
    state = await watched.closed()
    assert state.messages[2].parts[0].content[0].text == "I go on"
    assert watched.returned == ["ok"]


@pytest.mark.parametrize("means", [by_task, by_the_agent, by_leaving_the_stream])
async def test_of_parallel_calls_those_that_had_ended_keep_their_results(means):
    watched = in_parallel_tools()
    await means(watched)
    state = await watched.closed()
    assert [part.status for part in state.messages[2].parts] == ["ok", "interrupted", "ok"]
    assert "outcome unknown" in state.messages[2].parts[1].content[0].text


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("wait", [True, False])
async def test_a_tool_in_a_thread_is_of_unknown_outcome_and_its_late_result_is_a_fact(wait):
    """Behaviour 83f: a thread cannot be stopped; what it gives after all is told, and is no message."""
    release = threading.Event()
    entered = threading.Event()

    @tool
    def block() -> str:
        """Block."""
        entered.set()
        release.wait(30)
        return "late"

    seen: list[Any] = []
    watched = Watched(ScriptedModel(calls("block"), says("again")), tools=[block])
    watched.agent.observe(LateResult, wait=wait)(seen.append)
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    while not entered.is_set():  # noqa: ASYNC110 -- it is set in a thread
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    state = await watched.closed()
    assert watched.returned == ["interrupted"]
    assert "outcome unknown" in state.messages[2].parts[0].content[0].text
    release.set()
    while not seen:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert (seen[0].call, seen[0].status, seen[0].size) == ("s/1/1", "ok", 4)
    assert (await watched.agent.state(SESSION)) == state
    await watched.usable()


async def test_a_tool_in_a_thread_that_times_out_is_told_late_while_the_turn_goes_on():
    release = threading.Event()
    entered = threading.Event()

    @tool(timeout=0.001)
    def block() -> str:
        """Block."""
        entered.set()
        release.wait(30)
        return "late"

    async def reply(request: Any) -> Any:
        if not entered.is_set():  # a thread may take longer to start than there is time: then there is no late result
            return calls("block")
        release.set()
        while not seen.facts:
            await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        return says("done")

    seen = RecordingObserver(LateResult)
    agent = Agent(FunctionModel(reply), tools=[block]).with_capability(seen)
    events = [event async for event in agent.stream("go")]
    assert [(fact.status, fact.size) for fact in seen.of(LateResult)] == [("ok", 4)]
    assert [(event.status, event.size) for event in events if isinstance(event, LateResult)] == [("ok", 4)]


# ---------------------------------------------------------------- by time


@pytest.mark.parametrize(
    ("limit", "reason"), [(Deadline(after=60), StopReason.DEADLINE), (ActiveTimeLimit(60), StopReason.TIME_LIMIT)]
)
@pytest.mark.parametrize("place", ["the model", "a tool", "parallel tools"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_limit_of_time_ends_what_is_running(limit, reason, place, streamed):
    clock = FakeClock()
    watched = PLACES[place]()
    watched.agent._options.clock = clock
    watched.agent.criterion(limit)
    stream = watched.agent.stream("go", session=SESSION)

    async def run() -> Any:
        if not streamed:
            return await watched.agent.run("go", session=SESSION)
        async for _ in stream:
            pass
        return stream.result

    task = asyncio.ensure_future(run())
    await watched.place.reached.wait()
    await clock.advance(59)
    assert not task.done()
    await clock.advance(2)
    result = await task
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is reason
    await watched.closed()
    assert clock.sleepers == 0


async def test_a_limit_of_time_leaves_no_timer_behind():
    watched = Watched(criteria=[Deadline(after=60), ActiveTimeLimit(60)], clock=FakeClock())
    result = await watched.agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Completed)
    await watched.closed()


async def test_a_limit_of_time_holds_for_the_rest_of_a_suspended_turn():
    clock = FakeClock()
    watched = in_a_tool()
    watched.agent._options.clock = clock
    watched.agent.criterion(ActiveTimeLimit(60))
    watched.agent.gate(ToolCalling)(lambda event: Ask("?"))
    result = await watched.agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Suspended)
    await clock.advance(1_000)
    answers = {asked.id: Approve() for asked in result.waiting_for}
    task = asyncio.ensure_future(watched.agent.resume(SESSION, answers=answers))
    await watched.place.reached.wait()
    await clock.advance(59)
    assert not task.done()
    await clock.advance(2)
    assert (await task).stop_reason is StopReason.TIME_LIMIT
    assert await only_this_task()


# ---------------------------------------------------------------- what was shown


class Halfway:
    """A model that says half a sentence and stays there."""

    name = "halfway"

    def __init__(self, place: Place) -> None:
        self.place = place

    async def reply(self, request: Any) -> ModelReply:
        return ModelReply(assistant("a whole sentence"))

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        yield "half a "
        await self.place.here()
        yield "sentence"
        yield assistant("half a sentence")


def halfway(**options: Any) -> Watched:
    watched = Watched(**options)
    watched.agent.model = Halfway(watched.place)
    return watched


@pytest.mark.parametrize("means", [by_the_agent_while_streaming, by_leaving_the_stream])
async def test_text_that_was_shown_is_kept_and_marked(means):
    watched = halfway()
    await means(watched)
    state = await watched.closed()
    assert (state.messages[-1].text, state.messages[-1].partial) == ("half a ", True)
    assert state.text == "half a "
    await watched.usable()


async def test_of_a_turn_that_nobody_streamed_no_half_reply_is_kept():
    watched = in_the_model()
    await by_task(watched)
    assert [message.role for message in (await watched.closed()).messages] == ["user"]


@pytest.mark.parametrize(
    ("kind", "event", "live"),
    [
        ("gate", ModelReplying, False), ("gate", ModelReplying, True), ("rewrite", ModelReplying, False),
        ("rewrite", ModelReplying, True), ("gate", TurnEnding, False), ("rewrite", TurnEnding, False),
    ],
)  # fmt: skip
async def test_half_a_reply_that_hooks_have_not_looked_at_is_not_kept(kind, event, live):
    watched = halfway()
    getattr(watched.agent, kind)(event, live=live)(lambda event: None)
    stream = watched.agent.stream("go", session=SESSION)
    events: list[Any] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401

    task = asyncio.ensure_future(read())
    await watched.place.reached.wait()
    await watched.agent.cancel(SESSION)
    await task
    state = await watched.closed()
    assert [message.role for message in state.messages] == ["user"]
    assert visible(events) == stream.result.partial_text == ""
    assert live == any(isinstance(event, TextDelta) for event in events)
    await watched.usable()


async def test_what_transformers_held_back_is_not_kept():
    class Held:
        def __init__(self) -> None:
            self.held = ""

        def feed(self, text: str) -> Any:
            self.held += text
            yield self.held[0]
            self.held = self.held[1:]

        def flush(self) -> Any:
            yield self.held

    watched = halfway()
    watched.agent.transform(Held)
    await by_leaving_the_stream(watched)
    state = await watched.closed()
    assert (state.text, state.messages[-1].partial) == ("h", True)


async def test_a_call_half_spoken_is_none():
    watched = Watched()

    async def speak(request: Any) -> AsyncIterator[Any]:
        from windlass import ArgumentsDelta, ThinkingDelta

        if len(request.messages) > 1:
            yield assistant("again")
            return
        yield ThinkingDelta("hm", 0)
        yield TextDelta("I will", 1)
        yield ArgumentsDelta('{"n":', 2, name="work")
        await watched.here()

    watched.agent.model = FunctionModel(speak)
    await by_leaving_the_stream(watched)
    state = await watched.closed()
    assert [type(part).__name__ for part in state.messages[-1].parts] == ["ThinkingPart", "TextPart"]
    await watched.usable()


@pytest.mark.parametrize("means", [by_task, by_the_agent, by_leaving_the_stream])
async def test_a_reply_that_passed_its_gates_stays_when_the_turn_is_cancelled_after_it(means):
    watched = Watched(ScriptedModel(says("kept"), says("again")))
    watched.agent.gate(ModelReplying)(lambda event: None)

    @watched.agent.gate(MessageAdding)
    async def door(event: Any) -> None:
        if event.message.role == "assistant":
            await watched.here()

    await means(watched)
    state = await watched.closed()
    assert state.messages[-1].text == "kept"
    assert not any(isinstance(record, ReplyRejected) for record in await watched.agent.store.read(SESSION))


async def test_a_cancel_during_a_second_round_keeps_nothing_of_the_first():
    watched = Watched(ScriptedModel(says("rude")))

    async def speak(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            yield "rude"
            yield assistant("rude")
            return
        yield "polite, but"
        await watched.here()

    watched.agent.model = FunctionModel(speak)
    watched.agent.gate(ModelReplying, live=True)(lambda event: Regenerate("no") if event.reply.text == "rude" else None)
    await by_leaving_the_stream(watched)
    state = await watched.closed()
    assert [message.role for message in state.messages] == ["user"]


async def test_of_a_broken_attempt_that_was_to_be_repeated_nothing_is_kept():
    """The attempt has failed: its words do not count any more, in whatever way the turn is run."""
    watched = in_the_delay_of_a_retry()
    watched.agent.model = ScriptedModel(breaks("half a "), says("done"), says("again"))
    await by_leaving_the_stream(watched)
    state = await watched.closed()
    assert [message.role for message in state.messages] == ["user"]
    await watched.usable()


async def test_of_a_broken_attempt_nothing_is_kept_when_an_ending_hook_cancels():
    watched = Watched(ScriptedModel(breaks("half a "), says("again")), errors=ErrorPolicy.never())

    @watched.agent.gate(StepEnding)
    async def cancel(event: Any, turn: Turn) -> None:
        if event.step.number == 1:
            turn.cancel("enough")

    stream = watched.agent.stream("go", session=SESSION)
    events = [event async for event in stream]
    state = await watched.closed()
    assert [message.role for message in state.messages] == ["user"]
    assert visible(events) == stream.result.partial_text == ""
    await watched.usable()


# ---------------------------------------------------------------- more than one


async def test_the_other_turns_of_an_agent_do_not_notice():
    @tool
    async def stay(turn: Turn) -> str:
        """Stay."""
        reached.append(turn.session_id)
        await release.wait()
        return "stayed"

    reached: list[str] = []
    release = asyncio.Event()

    async def reply(request: Any) -> Any:
        return calls("stay") if len(request.messages) == 1 else says("done")

    agent = Agent(FunctionModel(reply), tools=[stay])
    tasks = {name: asyncio.ensure_future(agent.run("go", session=name)) for name in "abcdef"}
    await until(lambda: len(reached) == 6)
    assert await agent.cancel("a", "enough")
    tasks["b"].cancel()
    await asyncio.wait([tasks["a"], tasks["b"]])
    release.set()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert results[0].outcome == Cancelled("enough")  # type: ignore[union-attr]
    assert isinstance(results[1], asyncio.CancelledError)
    assert [result.text for result in results[2:]] == ["done"] * 4  # type: ignore[union-attr]
    assert await only_this_task()


async def test_a_cancel_of_a_retry_delay_given_by_a_hook():
    clock = FakeClock()
    watched = Watched(ScriptedModel(ModelError("no"), says("again")), clock=clock, errors=ErrorPolicy.retrying(1))
    watched.agent.gate(Erring)(lambda event: Again(100))
    task = asyncio.ensure_future(watched.agent.run("go", session=SESSION))
    await clock.wait_for_sleepers()
    task.cancel()
    await asyncio.wait([task])
    state = await watched.closed()
    assert isinstance(state.outcome, Cancelled)
    await watched.usable()


async def test_a_resumed_turn_can_be_cancelled_while_its_hooks_look_at_it():
    watched = Watched()
    watched.agent.gate(ToolCalling)(lambda event: Ask("?"))

    @watched.agent.gate(Resuming)
    async def drift(event: Any) -> None:
        await watched.here()

    result = await watched.agent.run("go", session=SESSION)
    answers = {asked.id: Approve() for asked in result.waiting_for}
    task = asyncio.ensure_future(watched.agent.resume(SESSION, answers=answers))
    await watched.place.reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    state = await watched.closed()
    assert isinstance(state.outcome, Cancelled)


async def test_records_are_what_every_way_of_cancelling_leaves():
    """The last records are the same, whoever cancelled."""

    async def told(means: Any) -> list[str]:
        watched = in_a_tool()
        await means(watched)
        log: Any = await watched.agent.store.read(SESSION)
        last = next(at for at, record in enumerate(log) if isinstance(record, CancelRequested))
        return sorted(type(record).__name__ for record in log[last:] if isinstance(record, Record))

    first = await told(by_task)
    for means in MEANS:
        assert await told(means) == first, means.__name__


# ---------------------------------------------------------------- cancelled without a moment to wait


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_is_not_asked_once_a_hook_has_cancelled_the_turn(streamed):
    model = ScriptedModel(says("never"))
    agent = Agent(model)

    @agent.gate(ModelCalling)
    def cancel(event: Any, turn: Turn) -> None:
        turn.cancel("enough")

    if streamed:
        stream = agent.stream("go")
        assert not [event async for event in stream if isinstance(event, TextDelta)]
        result = stream.result
    else:
        result = await agent.run("go")
    assert result.outcome == Cancelled("enough")
    assert model.requests == []


async def test_a_tool_is_not_called_once_a_gate_has_cancelled_the_turn():
    called: list[int] = []

    @tool(effect="pure", inline=True)
    def work(n: int) -> str:
        """Work."""
        called.append(n)
        return "worked"

    agent = Agent(ScriptedModel(calls([("work", {"n": 1}), ("work", {"n": 2})])), tools=[work])

    @agent.gate(ToolCalling)
    def cancel(event: Any, turn: Turn) -> None:
        turn.cancel("enough")

    result = await agent.run("go")
    assert result.outcome == Cancelled("enough")
    assert called == []
    assert [part.status for part in result.messages[2].parts] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_that_is_cancelled_before_its_gates_have_spoken_is_rejected_without_a_moment_to_wait_too(
    streamed,
):
    judged: list[str] = []
    agent = Agent(ScriptedModel(says("unjudged")))

    @agent.rewrite(ModelReplying, live=True)
    def cancel(event: Any, turn: Turn) -> None:
        turn.cancel("enough")

    agent.gate(ModelReplying, live=True)(lambda event: judged.append(event.reply.text))
    events: list[Any] = []
    if streamed:
        stream = agent.stream("go", session=SESSION)
        events = [event async for event in stream]
        result = stream.result
    else:
        result = await agent.run("go", session=SESSION)
    assert result.outcome == Cancelled("enough")
    assert judged == []
    assert [message.role for message in result.messages] == ["user"]
    assert visible(events) == result.partial_text == ""
    await check_log(agent, SESSION, result.state)


@pytest.mark.parametrize("sequential", [False, True])
async def test_no_call_is_begun_once_another_has_cancelled_the_turn_and_swallowed_it(sequential):
    called: list[int] = []

    @tool(sequential=sequential)
    async def stop(n: int, turn: Turn) -> str:
        """Cancel the turn, and go on."""
        called.append(n)
        turn.cancel("enough")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "went on"

    script = calls([("stop", {"n": n}) for n in range(3)])
    watched = Watched(ScriptedModel(script, says("again")), tools=[stop], max_parallel=1)
    result = await watched.agent.run("go", session=SESSION)
    assert result.outcome == Cancelled("enough")
    assert called == [0]
    await watched.closed()
    assert [part.status for part in result.messages[2].parts] == ["ok", "cancelled", "cancelled"]
    await watched.usable()


@pytest.mark.parametrize("way", ["run", "stream", "iterate"])
async def test_a_session_without_a_name_is_cancelled_by_the_id_it_was_given(way: str):
    agent = Agent(ScriptedModel(calls("wait"), says("never")))
    answers: list[bool] = []
    outcomes: list[Any] = []

    @agent.gate(TurnEnding)
    def ending(event: TurnEnding) -> None:
        outcomes.append(event.outcome)

    @agent.wrap(ToolCall)
    async def stop(call: Any, call_next: Any, turn: Turn) -> Any:
        answers.append(await agent.cancel(turn.session_id, "the user pressed stop"))
        await asyncio.Event().wait()

    match way:
        case "run":
            await agent.run("go")
        case "stream":
            assert [event async for event in agent.stream("go")]
        case _:
            assert [state async for state in agent.iterate("go")]
    assert answers == [True]
    assert outcomes == [Cancelled("the user pressed stop")]
    assert await only_this_task()


@pytest.mark.parametrize("event", [TurnStarting, ModelCalling, ModelReplying])
async def test_a_suspended_turn_is_cancelled_when_it_is_resumed_wherever_it_waits(event: Any):
    asked: list[str] = []
    agent = Agent(FunctionModel(lambda request: says("hi")))
    agent.gate(event)(lambda event: asked.append("") or Ask("ok?"))
    await agent.run("go", session="s")
    assert await agent.cancel("s", "not needed")
    result = await agent.resume("s")
    assert result.outcome == Cancelled("not needed")
    assert len(asked) == 1


# ---------------------------------------------------------------- a turn that waits for a person


@pytest.mark.parametrize("way", ["resume", "stream"])
@pytest.mark.parametrize("again", [False, True], ids=["first", "after another resume"])
@pytest.mark.parametrize(
    "event", [TurnStarting, ModelCalling, ModelReplying, ToolCalling, TurnEnding, Resuming], ids=lambda e: e.__name__
)
async def test_a_turn_can_be_cancelled_wherever_it_waits_for_a_person(tmp_path, event, again, way):
    """A cancel that was acknowledged counts at the next resume, also if the turn only waits to end."""
    sent: list[str] = []

    @tool
    async def send() -> str:
        """Send."""
        sent.append("sent")
        return "sent"

    def make() -> Agent:
        replies = [calls("send"), says("done")] if event in (ToolCalling, Resuming) else [says("done")]
        agent = Agent(ScriptedModel(*replies), tools=[send], store=store)
        agent.gate(event, name="sure")(lambda event: Ask("Sure?"))
        if event is Resuming:
            agent.gate(ToolCalling, name="before")(lambda event: Ask("Send?"))
        return agent

    store = SQLiteStore(tmp_path / "s.db")
    result = await make().run("go", session="s")
    if again or event is Resuming:
        result = await make().resume("s")
    assert result.waiting_for
    assert await make().cancel("s", "enough")
    if way == "resume":
        await make().resume("s")
    else:
        assert [item async for item in make().stream(session="s")]
    state = await make().state("s")
    assert (state.outcome, state.waiting, sent) == (Cancelled("enough"), (), [])
    assert unpaired(state.messages) == []
    log = list(await store.read("s"))
    assert [record.reason for record in log if isinstance(record, CancelRequested)] == ["enough"]
    assert await store.approvals() == []
    assert await store.inbox("s", ()) == []
    assert not await make().cancel("s", "again")
    assert (await make().run("and now", session="s")).outcome != Cancelled("enough")
    await store.verify("s")
    await store.close()


async def test_a_sub_agent_that_waits_to_end_can_be_cancelled_alone():
    store = MemoryStore()
    child = Agent(ScriptedModel(says("child done")), name="child")
    child.gate(TurnEnding, name="sure")(lambda event: Ask("Sure?"))
    script = ScriptedModel(calls("child", task="t"), says("all done"))
    parent = Agent(script, tools=[child.as_tool(description="Works.")], store=store)
    result = await parent.run("go", session="s")
    assert result.waiting_for
    assert await parent.cancel("s//1/1", "enough")
    assert (await parent.resume("s")).text == "all done"
    assert (await parent.state("s//1/1")).outcome == Cancelled("enough")
