"""Hooks that cancel, swallow, time out or break: each is named, none fails open, none ends the caller silently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Answer,
    Completed,
    Deny,
    Failed,
    Finish,
    ModelCall,
    ModelCalling,
    ModelReplying,
    Step,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnStarting,
    tool,
)
from windlass.errors import HookError
from windlass.records import HookDecided, HookFailed
from windlass.testing import FunctionModel, ScriptedModel, calls, says

ran: list[Any] = []


@tool
async def act(x: int = 0) -> str:
    """Act."""
    ran.append(x)
    return f"acted {x}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def acting(*replies: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(replies or (calls("act", x=1), says("end")))), tools=[act])


async def failures(agent: Agent[Any, Any], session: str = "s") -> list[HookFailed]:
    return [record for record in await agent.store.read(session) if isinstance(record, HookFailed)]


# ---------------------------------------------------------------- too late


@pytest.mark.parametrize("event", [ToolCalling, ModelCalling, TurnStarting])
async def test_a_verdict_after_the_time_out_does_not_count(event: Any):
    agent = acting()

    @agent.gate(event, timeout=0.01)
    async def stubborn(event: Any) -> Any:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return Allow()

    result = await agent.run("go", session="s")
    assert ran == []
    assert [failed.hook for failed in await failures(agent)] == ["stubborn"]
    assert "took longer" in (await failures(agent))[0].error.message
    assert result.text in ("end", "")


@pytest.mark.parametrize("verb", ["gate", "rewrite"])
async def test_no_tool_is_begun_once_the_caller_has_cancelled_while_the_reply_was_judged(verb: str):
    agent = acting()
    entered = asyncio.Event()

    async def stubborn(event: Any) -> None:
        entered.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            pass

    getattr(agent, verb)(ModelReplying)(stubborn)
    task = asyncio.ensure_future(agent.run("go", session="s"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []


@pytest.mark.parametrize("verb", ["gate", "rewrite", "wrap"])
async def test_nothing_is_begun_once_the_caller_has_cancelled_whatever_a_hook_does_with_that(verb: str):
    agent = acting()
    entered = asyncio.Event()

    async def stubborn(event: Any, call_next: Any = None) -> Any:
        entered.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            pass
        return None if call_next is None else await call_next(event)

    if verb == "wrap":
        agent.wrap(ModelCall)(stubborn)
    else:
        getattr(agent, verb)(ToolCalling if verb == "gate" else ModelCalling)(lambda event: stubborn(event))
    task = asyncio.ensure_future(agent.run("go", session="s"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []


@pytest.mark.parametrize("who", ["model", "tool"])
async def test_a_cancel_that_a_model_or_a_tool_swallows_ends_the_turn_before_the_next_effect(who: str):
    entered = asyncio.Event()
    asked: list[Any] = []

    async def stubborn() -> None:
        entered.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            pass

    @tool(name="act")
    async def slow(x: int) -> str:
        """Act."""
        ran.append(x)
        if who == "tool":
            await stubborn()
        return "acted"

    async def reply(request: Any) -> Any:
        asked.append(request)
        if who == "model" and len(asked) == 1:
            await stubborn()
        return calls("act", x=len(asked))

    agent = Agent(FunctionModel(reply), tools=[slow])
    task = asyncio.ensure_future(agent.run("go", session="s"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asked) == 1
    assert len(ran) <= 1


# ---------------------------------------------------------------- a CancelledError that nobody asked for


async def broken_wait(*_: Any) -> Any:
    inner = asyncio.ensure_future(asyncio.sleep(1))
    inner.cancel()
    return await inner


@pytest.mark.parametrize("verb", ["rewrite", "inject", "hook", "wrap model", "wrap step", "wrap turn", "model"])
async def test_a_cancelled_error_that_nobody_asked_for_is_the_hooks_failure(verb: str):
    agent = acting(says("end")) if verb != "model" else Agent(FunctionModel(broken_wait), name="m")
    if verb.startswith("wrap"):
        effect = {"model": ModelCall, "step": Step, "turn": Turn}[verb.split()[1]]
        agent.wrap(effect, name="mine")(broken_wait)
    elif verb != "model":
        getattr(agent, verb)(TurnStarting, name="mine")(broken_wait)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(agent.run("go", session="s"))
    outcome = task.result().outcome
    assert isinstance(outcome, Failed)
    assert "nobody cancelled" in outcome.error.message
    assert outcome.error.hook == (None if verb == "model" else "mine")


async def test_an_optional_injection_that_is_cancelled_by_nobody_is_skipped():
    agent = acting(says("end"))
    agent.inject(TurnStarting, name="memory", optional=True)(broken_wait)
    assert (await agent.run("go", session="s")).outcome == Completed()
    assert [failed.effect for failed in await failures(agent)] == ["skipped"]


# ---------------------------------------------------------------- names


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [KeyError("x"), Unreadable()])
@pytest.mark.parametrize("effect", [ModelCall, ToolCall])
async def test_a_bug_in_a_wrap_is_named(effect: Any, error: Exception):
    agent = acting()

    @agent.wrap(effect, name="outer", priority=9)
    async def outer(value: Any, call_next: Any) -> Any:
        return await call_next(value)

    @agent.wrap(effect, name="mine")
    async def mine(value: Any, call_next: Any) -> Any:
        raise error

    result = await agent.run("go", session="s")
    if effect is ModelCall:
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.hook == "mine"
        assert "mine" in str(result.why())
    else:
        assert result.outcome == Completed()
        assert "'mine'" in result.messages[2].parts[0].text


@pytest.mark.parametrize("verb", ["gate", "rewrite", "inject", "wrap"])
async def test_a_matcher_that_raises_is_named(verb: str):
    agent = acting()

    async def silent(*_: Any) -> Any:
        return None

    effect: Any = ToolCall if verb == "wrap" else ToolCalling
    getattr(agent, verb)(effect, name="mine", tool=lambda call: call.arguments["nowhere"])(silent)
    result = await agent.run("go", session="s")
    told = repr(result.messages) + repr(result.outcome)
    assert "'mine'" in told
    assert ran == []


@pytest.mark.parametrize("how", ["matcher", "raises", "exits", "cyclic", "cancels"])
async def test_a_shadow_gate_never_fails_a_turn(how: str):
    agent = acting()
    cyclic: list[Any] = []
    cyclic.append(cyclic)

    async def shadow(event: Any) -> Any:
        if how == "raises":
            raise KeyError("x")
        if how == "exits":
            raise SystemExit(1)
        if how == "cancels":
            await broken_wait()
        return Answer(cyclic)

    options: Any = {"tool": lambda call: call.arguments["nowhere"]} if how == "matcher" else {}
    agent.gate(ToolCalling, name="mine", mode="shadow", **options)(shadow)
    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert ran == [1]
    assert [(failed.hook, failed.effect) for failed in await failures(agent)] == [("mine", "shadow")]


async def test_an_error_of_another_hook_is_reported_by_the_hook_that_raised_it():
    agent = acting()
    agent.rewrite(TurnStarting, name="mine")(_raise(HookError("of an inner agent", hook="elsewhere")))
    result = await agent.run("go")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "mine"


@pytest.mark.parametrize("verb", ["gate", "rewrite", "tool"])
async def test_an_exception_without_a_readable_text_is_an_ordinary_failure(verb: str):
    agent = acting()
    if verb == "tool":

        @tool(name="act")
        async def failing(x: int) -> str:
            """Fail."""
            raise Unreadable

        agent = Agent(ScriptedModel(calls("act", x=1), says("end")), tools=[failing])
    else:
        getattr(agent, verb)(ToolCalling)(_raise(Unreadable()))
    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert ran == []


def _raise(error: Exception) -> Any:
    def hook(event: Any) -> Any:
        raise error

    return hook


# ---------------------------------------------------------------- costly gates


async def test_finish_is_no_refusal_so_a_costly_critic_is_asked():
    agent = acting()
    agent.gate(ToolReturning, name="done")(lambda event: Finish("ok"))
    agent.gate(ToolReturning, name="critic", costly=True)(lambda event: Deny("not this"))
    result = await agent.run("go", session="s")
    assert result.text == "end"
    assert "not this" in result.messages[2].parts[0].text


# ---------------------------------------------------------------- the turn's wraps


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_wrap_of_a_turn_that_fails_leaves_an_outcome(when: str):
    agent = acting(says("end"))

    @agent.wrap(Turn, name="span")
    async def span(turn: Any, call_next: Any) -> Any:
        if when == "before":
            raise KeyError("x")
        await call_next(turn)
        raise KeyError("x")

    result = await agent.run("go", session="s")
    records = await agent.store.read("s")
    assert type(records[-1]).__name__ in ("TurnEnded", "HookFailed")
    if when == "before":
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.hook == "span"
    else:
        assert result.outcome == Completed()
        assert [failed.hook for failed in await failures(agent)] == ["span"]


# ---------------------------------------------------------------- guards above guards


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("way", ["rewrite", "wrap", "transform"])
async def test_the_guards_of_agents_above_have_the_last_word(way: str, depth: int):
    replies = (calls("act", x=1), says("card")) if way != "transform" else (says("card"),)
    agent = Agent(ScriptedModel(*replies), tools=[act], name="leaf")
    said: list[str] = []
    for level in range(depth + 1):
        last = level == depth
        if way == "rewrite":
            limit = 10 if last else 999
            agent.rewrite(ToolCalling, tool="act", band="guard", priority=-level if last else 50)(
                lambda event, limit=limit: {"x": limit}
            )
        elif way == "wrap":

            async def wrap(call: Any, call_next: Any, level: int = level) -> Any:
                said.append(f"in {level}")
                return await call_next(call)

            agent.wrap(ToolCall, tool="act", band="guard", name=f"w{level}", priority=-level)(wrap)
        else:

            class Say:
                mark = str(level)

                def feed(self, text: str) -> Any:
                    yield self.mark if text else text

                def flush(self) -> Any:
                    return ()

            agent.transform(Say, band="guard", priority=-level if last else 50)
        if not last:
            above = ScriptedModel(calls(agent.name, task="t"), says("top"))
            agent = Agent(above, tools=[agent.as_tool()], name=f"a{level}")
    seen: list[Any] = []
    agent.observe(HookDecided)(lambda fact: None)
    if way == "transform":
        seen += [event async for event in agent.stream("go", session="s")]
        child = await agent.state("s" + "//1/1" * depth)
        assert child.text == str(depth)
    else:
        await agent.run("go", session="s")
        if way == "rewrite":
            assert ran == [10]
        else:
            assert said == [f"in {level}" for level in range(depth + 1)]


async def test_a_reply_hook_of_the_child_cannot_undo_the_guard_above():
    kid = Agent(ScriptedModel(says("secret")), name="kid")
    kid.rewrite(ModelReplying, band="guard")(lambda event: "secret again")
    top = Agent(ScriptedModel(calls("kid", task="t"), says("end")), tools=[kid.as_tool()])
    top.rewrite(ModelReplying, band="guard")(lambda event: event.reply.text.replace("secret", "•"))
    await top.run("go", session="s")
    assert (await top.state("s//1/1")).text == "• again"
