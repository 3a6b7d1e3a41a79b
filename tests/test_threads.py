"""Plain functions run in threads: they cannot be stopped, but nothing they do counts once their call is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from windlass import (
    Agent,
    Cancelled,
    ModelCall,
    Step,
    ToolCall,
    ToolCalling,
    Turn,
    tool,
)
from windlass.errors import HookError, ModelError
from windlass.records import HookFailed, ToolReturned
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .checks import out_of_time_once


async def happened(event: threading.Event) -> None:
    """Wait for something that a thread does, without holding the loop."""
    assert await asyncio.to_thread(event.wait, 50)


async def cancelled(turn: asyncio.Task[Any]) -> None:
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


class Waiting:
    """Something async that never ends by itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.stopped = False

    async def __call__(self) -> str:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "never"


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("effect", [Turn, Step, ModelCall])
async def test_a_cancel_reaches_what_a_plain_wrap_surrounds(effect: Any):
    waiting = Waiting()

    async def reply(_: Any) -> str:
        return await waiting()

    agent = Agent(FunctionModel(reply))
    seen: list[BaseException] = []
    ended = threading.Event()

    @agent.wrap(effect)
    def around(given, call_next):
        try:
            return call_next(given)
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            ended.set()

    turn = asyncio.create_task(agent.run("go", session="s"))
    await waiting.begun.wait()
    await cancelled(turn)

    assert waiting.stopped
    closed = await agent.state("s")
    assert isinstance(closed.outcome, Cancelled)
    await happened(ended)
    assert [type(error) for error in seen] == [asyncio.CancelledError]
    assert (await agent.state("s")).seq == closed.seq


async def test_a_turn_that_timed_out_inside_a_plain_wrap_is_closed_before_the_caller_hears_of_it():
    waiting = Waiting()

    async def reply(_: Any) -> str:
        return await waiting()

    agent = Agent(FunctionModel(reply))

    @agent.wrap(Turn)
    def outer(turn, call_next):
        return call_next(turn)

    @agent.wrap(Turn)
    def inner(turn, call_next):
        return call_next(turn)

    with pytest.raises(TimeoutError):
        await out_of_time_once(waiting.begun, agent.run("go", session="s"))

    assert isinstance((await agent.state("s")).outcome, Cancelled)


async def test_the_reason_of_a_cancel_passes_through_a_plain_wrap():
    waiting = Waiting()

    async def reply(_: Any) -> str:
        return await waiting()

    agent = Agent(FunctionModel(reply))

    @agent.wrap(Turn)
    def around(turn, call_next):
        return call_next(turn)

    turn = asyncio.create_task(agent.run("go", session="s"))
    await waiting.begun.wait()
    turn.cancel("the user left")
    with pytest.raises(asyncio.CancelledError):
        await turn

    assert (await agent.state("s")).outcome == Cancelled("the user left")


async def test_a_cancel_reaches_the_tool_inside_a_plain_wrap_which_does_not_try_again():
    waiting = Waiting()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        return await waiting()

    agent = Agent(ScriptedModel(calls("wait")), tools=[wait])
    attempts = 0
    ended = threading.Event()

    @agent.wrap(ToolCall)
    def twice(call, call_next):
        nonlocal attempts
        try:
            for _ in range(2):
                attempts += 1
                try:
                    return call_next(call)
                except Exception:  # what a wrap that retries does; a cancel is not one
                    continue
        finally:
            ended.set()

    turn = asyncio.create_task(agent.run("go"))
    await waiting.begun.wait()
    await cancelled(turn)

    assert waiting.stopped
    await happened(ended)
    assert attempts == 1


@pytest.mark.parametrize("effect", [Turn, Step, ModelCall, ToolCall])
async def test_call_next_of_a_plain_wrap_is_refused_after_a_cancel(effect: Any):
    done: list[str] = []

    @tool(effect="pure", inline=True)
    def look() -> str:
        """Look."""
        done.append("tool")
        return "sea"

    model = ScriptedModel(calls("look"), says("done"))
    agent = Agent(model, tools=[look])
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    errors: list[Exception] = []

    @agent.wrap(effect)
    def slow(given, call_next):
        inside.set()
        go_on.wait(50)
        try:
            return call_next(given)
        except Exception as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    turn = asyncio.create_task(agent.run("go", session="s"))
    await happened(inside)
    await cancelled(turn)
    asked = len(model.requests)
    go_on.set()
    await happened(ended)

    [error] = errors
    assert isinstance(error, HookError)
    assert "'slow'" in str(error)
    assert "after its call had ended" in str(error)
    assert done == []
    assert len(model.requests) == asked


# ---------------------------------------------------------------- a call_next that was kept


async def test_a_call_next_that_a_plain_wrap_kept_is_refused():
    model = ScriptedModel(says("done"), says("never"))
    agent = Agent(model)
    kept: list[Callable[[], Any]] = []

    @agent.wrap(ModelCall)
    def keep(request, call_next):
        kept.append(lambda: call_next(request))
        return call_next(request)

    await agent.run("go")

    with pytest.raises(HookError, match=r"wrap 'keep' .* of ModelCall called call_next after its call had ended"):
        await asyncio.to_thread(kept[0])
    assert len(model.requests) == 1


async def test_a_call_next_that_a_wrap_with_the_turn_kept_is_refused():
    model = ScriptedModel(says("done"), says("never"))
    agent = Agent(model)
    kept: list[Callable[[], Any]] = []

    @agent.wrap(ModelCall)
    async def keep(request, call_next, turn):
        kept.append(lambda: call_next(request))
        return await call_next(request)

    await agent.run("go")

    with pytest.raises(HookError, match="after its call had ended"):
        await kept[0]()
    assert len(model.requests) == 1


async def test_a_call_next_that_a_wrap_of_a_turn_kept_is_refused():
    model = ScriptedModel(says("never"))
    agent = Agent(model)
    kept: list[Callable[[], Any]] = []

    @agent.wrap(Turn)
    async def keep(turn, call_next):
        kept.append(call_next)

    result = await agent.run("go")
    with pytest.raises(HookError, match="did not call call_next"):
        result.raise_for_error()
    with pytest.raises(HookError, match="after its call had ended"):
        await kept[0]()
    assert model.requests == []


async def test_call_next_of_a_plain_wrap_on_the_loop_is_refused_and_does_not_hang():
    agent = Agent(ScriptedModel(says("done")))

    async def later(request: Any, call_next: Any) -> Any:
        return call_next(request)

    @agent.wrap(ModelCall)
    def plain(request, call_next):
        return later(request, call_next)

    result = await asyncio.wait_for(agent.run("go"), 50)

    assert "make it `async def`" in repr(result.outcome)


# ---------------------------------------------------------------- StopIteration


async def test_a_plain_tool_that_raises_stop_iteration_fails_and_does_not_hang():
    @tool(effect="pure")
    def first() -> str:
        """The first of nothing."""
        return next(iter(()))

    agent = Agent(ScriptedModel(calls("first"), says("done")), tools=[first])

    result = await asyncio.wait_for(agent.run("go", session="s"), 50)

    assert result.text == "done"
    (returned,) = [record for record in await agent.store.read("s") if isinstance(record, ToolReturned)]
    assert returned.error.message == "a plain function raised StopIteration"


@pytest.mark.parametrize("effect", [Turn, Step])
async def test_a_plain_wrap_of_a_segment_that_raises_stop_iteration_does_not_hang(effect: Any):
    agent = Agent(ScriptedModel(says("done")))

    @agent.wrap(effect)
    def stops(given, call_next):
        raise StopIteration

    try:
        told = repr((await asyncio.wait_for(agent.run("go"), 20)).outcome)
    except HookError as error:
        told = str(error)

    assert "'stops'" in told
    assert "raised StopIteration" in told


async def test_a_plain_wrap_of_a_model_call_that_raises_stop_iteration_does_not_hang():
    agent = Agent(ScriptedModel(says("done")))

    @agent.wrap(ModelCall)
    def stops(request, call_next):
        raise StopIteration

    result = await asyncio.wait_for(agent.run("go"), 50)

    assert "raised StopIteration" in repr(result.outcome)


async def test_a_hook_in_a_thread_that_raises_stop_iteration_counts_as_failed():
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "sea"

    agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])

    @agent.gate(ToolCalling, thread=True)
    def stops(event):
        raise StopIteration

    result = await asyncio.wait_for(agent.run("go", session="s"), 50)

    assert "gate 'stops' failed" in repr(result.messages)
    (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert failed.error.message == "a plain function raised StopIteration"


# ---------------------------------------------------------------- the pool


def nesting(max_parallel: int, width: int) -> Agent:
    """An agent whose plain tool runs the same agent, `width` times at once, as deep as the message says."""

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last.role != "user":
            return says("done").reply
        level = int(last.text)
        if level == 0:
            return says("bottom").reply
        return calls([("descend", {"level": level - 1})] * width).reply

    @tool(effect="pure")
    def descend(level: int) -> str:
        """Go one level down."""
        return agent.run_sync(str(level)).text

    agent = Agent(FunctionModel(reply), tools=[descend], max_parallel=max_parallel)
    return agent


@pytest.mark.parametrize(("max_parallel", "depth", "width"), [(1, 4, 1), (2, 3, 2), (2, 2, 4)])
async def test_plain_tools_that_run_their_own_agent_do_not_use_up_the_pool(max_parallel: int, depth: int, width: int):
    agent = nesting(max_parallel, width)

    result = await asyncio.wait_for(agent.run(str(depth)), 50)

    assert result.text == "done"


async def test_plain_tools_of_many_turns_share_the_pool():
    threads: set[str] = set()

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        threads.add(threading.current_thread().name)
        return "sea"

    agent = Agent(
        FunctionModel(lambda request: says("done").reply if len(request.messages) > 1 else calls("look").reply),
        tools=[look],
        max_parallel=2,
    )

    await asyncio.gather(*[agent.run("go") for _ in range(20)])

    assert 1 <= len(threads) <= 2


# ---------------------------------------------------------------- whose error it is

written_either_way = pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])


def raising(agent: Agent, effect: Any, error: Exception, *, plain: bool) -> None:
    async def awaited(given, call_next):
        raise error

    def threaded(given, call_next):
        raise error

    agent.wrap(effect, name="breaks")(threaded if plain else awaited)


@written_either_way
async def test_an_error_of_a_wrap_of_a_step_carries_the_name_of_the_wrap(plain: bool):
    agent = Agent(ScriptedModel(says("done")))
    error = ValueError("no span")
    raising(agent, Step, error, plain=plain)

    result = await agent.run("go")

    assert isinstance(result.error, HookError)
    assert result.error.hook == "breaks"
    assert "wrap 'breaks' (" in str(result.error)
    assert "of Step failed: ValueError: no span" in str(result.error)
    assert result.error.__cause__ is error


@written_either_way
async def test_an_error_of_a_wrap_of_a_turn_carries_the_name_of_the_wrap(plain: bool):
    agent = Agent(ScriptedModel(says("done")))
    error = ValueError("no span")
    raising(agent, Turn, error, plain=plain)

    @agent.wrap(Turn, priority=10)
    async def outermost(turn, call_next):
        return await call_next(turn)

    result = await agent.run("go")
    with pytest.raises(HookError, match=r"wrap 'breaks' \(.*\) of Turn failed: ValueError: no span") as raised:
        result.raise_for_error()

    assert raised.value.hook == "breaks"
    assert raised.value.__cause__ is error


@written_either_way
async def test_an_error_from_inside_passes_the_wraps_of_a_step_as_it_is(plain: bool):
    error = ModelError("down")
    agent = Agent(ScriptedModel(error))
    seen: list[Exception] = []

    @agent.wrap(Step)
    async def awaited(step, call_next):
        try:
            return await call_next(step)
        except Exception as caught:
            seen.append(caught)
            raise

    if plain:

        @agent.wrap(Step)
        def threaded(step, call_next):
            return call_next(step)

    result = await agent.run("go")

    assert seen == [error]
    assert result.error is error
