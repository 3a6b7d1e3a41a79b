"""Behaviours 41-42: a hook is written once, plain or async, and works in every way of running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Lifecycle,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReply,
    ModelReplying,
    Result,
    Slot,
    Step,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    assistant,
    tool,
)
from windlass.testing import ScriptedModel, calls, says


class Count(Struct):
    value: int = 0


COUNT = Slot("count", Count)


@tool(effect="pure")
def sync_look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


@tool(effect="pure")
async def async_look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def run_async(agent: Agent) -> Result:
    return asyncio.run(agent.run("go"))


def run_sync(agent: Agent) -> Result:
    return agent.run_sync("go")


def run_sync_inside_a_loop(agent: Agent) -> Result:
    async def main() -> Result:
        return agent.run_sync("go")

    return asyncio.run(main())


ways = pytest.mark.parametrize("run", [run_async, run_sync, run_sync_inside_a_loop])
Run = Callable[[Agent], Result]


def looking(*, sync: bool) -> Agent:
    look = sync_look if sync else async_look
    return Agent(ScriptedModel(calls(look.name, at="sea"), says("done")), tools=[look])


@ways
def test_a_plain_wrap_works_in_every_way_of_running(run: Run):
    """Behaviour 41: a wrap that is a plain function gets the value from `call_next`, in async and sync runs."""
    agent = looking(sync=True)
    seen: list[Any] = []

    @agent.wrap(ModelCall)
    def around_model(request, call_next):
        reply = call_next(request.replace(system="Be brief."))
        seen.append(reply.text or reply.tool_calls[0].name)
        return reply

    @agent.wrap(ToolCall)
    def around_tool(call, call_next):
        result = call_next(call)
        seen.append(result.text)
        return f"{result.text}!"

    result = run(agent)

    assert seen == ["sync_look", "saw sea", "done"]
    assert result.text == "done"
    assert result.messages[2].parts[0].text == "saw sea!"
    assert {request.system for request in agent.model.requests} == {"Be brief."}


@ways
def test_an_async_wrap_works_in_every_way_of_running(run: Run):
    """Behaviour 41: an async wrap works in a sync run too."""
    agent = looking(sync=True)
    seen: list[Any] = []

    @agent.wrap(ModelCall)
    async def around_model(request, call_next):
        await asyncio.sleep(0)
        reply = await call_next(request)
        seen.append(reply.text or reply.tool_calls[0].name)
        return reply

    @agent.wrap(ToolCall)
    async def around_tool(call, call_next):
        result = await call_next(call)
        seen.append(result.text)
        return result

    assert run(agent).text == "done"
    assert seen == ["sync_look", "saw sea", "done"]


@ways
def test_plain_and_async_wraps_nest(run: Run):
    """Behaviour 41: plain around async around plain: the order is that of registration, whatever the colour."""
    agent = Agent(ScriptedModel(says("x")))
    log: list[str] = []

    def marked(reply: ModelReply, mark: str) -> ModelReply:
        log.append(f"{mark} out")
        return reply.replace(message=assistant(reply.text + mark))

    @agent.wrap(ModelCall)
    def outer(request, call_next):
        log.append("o in")
        return marked(call_next(request), "o")

    @agent.wrap(ModelCall)
    async def middle(request, call_next):
        log.append("m in")
        return marked(await call_next(request), "m")

    @agent.wrap(ModelCall)
    def inner(request, call_next):
        log.append("i in")
        return marked(call_next(request), "i")

    result = run(agent)

    assert log == ["o in", "m in", "i in", "i out", "m out", "o out"]
    assert result.text == "ximo"


@ways
def test_a_plain_wrap_may_retry_and_short_circuit(run: Run):
    """Behaviour 41: `call_next` of a plain wrap raises the model's error, may be called again, or not at all."""
    model = ScriptedModel(TimeoutError("slow"), calls("async_look", at="sea"), says("done"))
    agent = Agent(model, tools=[async_look])

    @agent.wrap(ModelCall)
    def retry(request, call_next):
        try:
            return call_next(request)
        except TimeoutError:
            return call_next(request)

    @agent.wrap(ToolCall)
    def dry(call, call_next):
        return "dry"

    result = run(agent)

    model.assert_done()
    assert result.messages[2].parts[0].text == "dry"
    assert result.text == "done"


@ways
def test_an_error_of_a_plain_wrap_comes_out_unchanged(run: Run):
    """Behaviour 41: what a plain wrap raises is the error of the turn, the very same object."""
    agent = Agent(ScriptedModel(says("x")))
    error = ValueError("mine")

    @agent.wrap(ModelCall)
    def failing(request, call_next):
        call_next(request)
        raise error

    assert run(agent).error is error


@ways
def test_a_plain_wrap_writes_like_an_async_one(run: Run):
    """Behaviour 41: a plain wrap may ask for the turn and for slots, and what it sets is kept."""
    agent = Agent(ScriptedModel(says("x")))
    agent.slot(COUNT)

    @agent.wrap(ModelCall)
    def count(request, call_next, turn, so_far: Count):
        turn.set(COUNT, Count(so_far.value + 1))
        reply = call_next(request)
        turn.add(f"counted {reply.text}")
        return reply

    result = run(agent)

    assert result.slots == {"count": Count(1)}
    assert [message.text for message in result.messages] == ["go", "x", "counted x"]


@ways
def test_plain_wraps_of_a_step_and_a_turn_work(run: Run):
    """Behaviour 41: wraps of a step and of a turn may be plain, too."""
    agent = looking(sync=False)
    log: list[str] = []

    @agent.wrap(Turn)
    def around_turn(turn, call_next):
        log.append("turn in")
        state = call_next(turn)
        log.append("turn out")
        return state

    @agent.wrap(Step)
    def around_step(state, call_next):
        log.append("step in")
        step = call_next(state)
        log.append("step out")
        return step

    assert run(agent).text == "done"
    assert log == ["turn in", "step in", "step out", "step in", "step out", "turn out"]


async def test_a_plain_wrap_does_not_stall_the_event_loop():
    """Behaviours 41, 83g: while a plain wrap waits, the loop goes on: the wrap is not run on the loop's thread."""
    agent = Agent(ScriptedModel(says("x")))
    released = threading.Event()
    threads: list[bool] = []

    @agent.wrap(ModelCall)
    def waiting(request, call_next):
        threads.append(threading.current_thread() is threading.main_thread())
        assert released.wait(50)
        return call_next(request)

    async def release() -> None:
        released.set()

    result, _ = await asyncio.gather(agent.run("go"), release())

    assert result.text == "x"
    assert threads == [False]


EVENTS: list[Any] = [TurnStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, TurnEnding]


def add_hooks(agent: Agent, log: list[str], *, sync: bool) -> None:
    """Every verb at every event, in one colour."""

    def register(verb: str, event: Any) -> None:
        label = f"{verb} {event.__name__}"

        def plain(*_: Any) -> None:
            log.append(label)

        async def awaited(*_: Any) -> None:
            await asyncio.sleep(0)
            log.append(label)

        getattr(agent, verb)(event)(plain if sync else awaited)

    for event in EVENTS:
        register("gate", event)
        register("rewrite", event)
        register("hook", event)
        if event.injects is not None:
            register("inject", event)
    register("observe", ModelReplied)


@ways
@pytest.mark.parametrize("sync", [True, False], ids=["plain", "async"])
def test_hooks_of_either_colour_are_called_exactly_once_per_event(run: Run, sync: bool):
    """Behaviour 42: whatever the way of running and the colour of the hook, each is called once per event."""
    agent = looking(sync=sync)
    log: list[str] = []
    add_hooks(agent, log, sync=sync)

    assert run(agent).text == "done"

    twice = {"ModelCalling", "ModelReplying", "ModelReplied"}
    expected = {}
    for event in EVENTS:
        for verb in ("hook", "rewrite", "gate", *(["inject"] if event.injects is not None else [])):
            expected[f"{verb} {event.__name__}"] = 2 if event.__name__ in twice else 1
    expected["observe ModelReplied"] = 2
    assert {label: log.count(label) for label in sorted(set(log))} == dict(sorted(expected.items()))


@ways
def test_a_lifecycle_may_mix_plain_and_async_methods(run: Run):
    """Behaviour 42: of a lifecycle with methods of both colours each is called once per event, in order."""
    log: list[str] = []

    class Mixed(Lifecycle):
        def before_agent(self, text):
            log.append("before_agent")

        async def before_model(self, messages):
            log.append("before_model")

        def wrap_model_call(self, request, call_next):
            log.append("wrap_model_call")
            return call_next(request)

        async def after_model(self, reply):
            log.append("after_model")

        async def wrap_tool_call(self, call, call_next):
            log.append("wrap_tool_call")
            return await call_next(call)

        async def after_agent(self, text):
            log.append("after_agent")

    agent = looking(sync=True).with_lifecycle(Mixed())

    assert run(agent).text == "done"
    step = ["before_model", "wrap_model_call", "after_model"]
    assert log == ["before_agent", *step, "wrap_tool_call", *step, "after_agent"]


class BothForms:
    """A callable that has a plain and an async form; it is registered as what calling it gives."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def plain(self, event) -> None:
        self.log.append("plain")

    async def awaited(self, event) -> None:
        self.log.append("awaited")

    async def __call__(self, event) -> None:
        await self.awaited(event)


@ways
def test_a_callable_object_is_called_once_in_its_own_colour(run: Run):
    """Behaviour 42: an object with an async `__call__` is awaited, once, also in a sync run."""
    both = BothForms()
    agent = Agent(ScriptedModel(says("x")))
    agent.gate(ModelCalling)(both)
    agent.gate(ModelCalling)(both.plain)

    assert run(agent).text == "x"
    assert both.log == ["awaited", "plain"]


@ways
def test_a_plain_hook_that_hands_on_a_coroutine_is_awaited(run: Run):
    """Behaviour 42: a plain function or lambda around an async one is awaited, not lost."""
    agent = Agent(ScriptedModel(says("x")))

    async def shout(text: str) -> str:
        return text.upper()

    agent.rewrite(ModelReplying)(lambda event: shout(event.reply.text))

    assert run(agent).text == "X"


@ways
def test_a_plain_wrap_that_hands_on_a_coroutine_is_awaited(run: Run):
    """Behaviour 42: the same of a wrap."""
    agent = Agent(ScriptedModel(says("x")))

    async def canned(text: str) -> str:
        return text

    agent.wrap(ModelCall)(lambda request, call_next: canned("canned"))

    assert run(agent).text == "canned"
