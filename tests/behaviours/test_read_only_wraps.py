"""Wraps that only read the turn: they cost less, and cannot write."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from windlass import Agent, ModelCall, Slot, Step, ToolCall, Turn, tool
from windlass.errors import HookError, RegistrationError
from windlass.testing import FakeClock, ScriptedModel, assert_same_everywhere, calls, says

COUNT = Slot("count", int)


class Tally(Struct):
    count: int = 0


@tool(effect="pure", inline=True)
def look() -> str:
    """Look."""
    return "seen"


def agent_with(**options: Any) -> Agent:
    return Agent(ScriptedModel(calls("look"), says("done")), tools=[look], clock=FakeClock(auto=True), **options)


@pytest.mark.parametrize("writing", [False, True])
async def test_a_read_only_wrap_reads_the_turn_and_its_clock(writing):
    def factory() -> Agent:
        agent = agent_with()
        agent.slot(COUNT)

        @agent.wrap(ModelCall, read_only=True)
        async def read_model(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
            await turn.sleep(1)
            assert turn.user_message.text == "go"
            return await call_next(request)

        @agent.wrap(ToolCall, tool="look", read_only=True)
        async def read_tool(call: Any, call_next: Any, turn: Turn[Any]) -> Any:
            async with turn.timeout(5):
                assert call.name in turn.tools
                return await call_next(call)

        if writing:

            @agent.wrap(ModelCall)
            async def write(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
                turn.set(COUNT, turn.get(COUNT) + 1)
                return await call_next(request)

        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == "done"
    assert dict(lived.state.slots) == ({"count": 2} if writing else {})


@pytest.mark.parametrize(
    "use",
    [
        lambda turn: turn.set(COUNT, 1),
        lambda turn: turn.add("hello"),
        lambda turn: turn.note("x"),
        lambda turn: turn.progress(1),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
async def test_a_read_only_wrap_cannot_write(use, inner):
    agent = agent_with()
    agent.slot(COUNT)
    errors: list[Exception] = []
    if inner:

        @agent.wrap(ModelCall, priority=1)
        async def outer(request: Any, call_next: Any) -> Any:
            return await call_next(request)

    @agent.wrap(ModelCall, read_only=True)
    async def write(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        try:
            use(turn)
        except HookError as error:
            errors.append(error)
        return await call_next(request)

    assert (await agent.run("go")).text == "done"
    assert len(errors) == 2


async def test_a_plain_function_may_read_too():
    agent = agent_with()
    seen: list[str] = []

    @agent.wrap(ModelCall, read_only=True)
    def read(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        seen.append(turn.session_id)
        return call_next(request)

    await agent.run("go", session="s")
    assert seen == ["s", "s"]


async def test_a_read_only_wrap_in_the_guard_band_holds_for_sub_agents():
    seen: list[str] = []
    child = Agent(ScriptedModel(says("child done")), name="child")
    agent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])

    @agent.wrap(ModelCall, read_only=True, band="guard")
    async def read(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
        seen.append(turn.session_id)
        return await call_next(request)

    await agent.run("go", session="s")
    assert seen == ["s", "s//1/1", "s"]


def test_read_only_is_for_wraps_of_calls_that_take_no_slots():
    agent = agent_with()
    with pytest.raises(RegistrationError, match="read_only, which is only for wraps of ModelCall and ToolCall"):
        agent.wrap(Step, read_only=True)(lambda state, call_next: None)  # type: ignore[call-overload]
    agent.slot(Slot("tally", Tally))

    async def take(request: Any, call_next: Any, tally: Tally) -> Any:
        return await call_next(request)

    agent.wrap(ModelCall, read_only=True)(take)
    with pytest.raises(RegistrationError, match="has read_only, but takes slots: tally"):
        agent.compile()
