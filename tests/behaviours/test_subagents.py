"""Sub-agents: an agent is a tool of another one, lives in its call, and answers it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Cancelled,
    Charged,
    Completed,
    Delegated,
    Delegating,
    Halt,
    ModelCalling,
    ModelReplying,
    ModelRequest,
    SessionEnded,
    SessionStarting,
    StepEnding,
    StepLimit,
    Stopping,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnded,
    TurnEnding,
    TurnStarted,
    TurnStarting,
    Veto,
    fold,
    tool,
)
from windlass.errors import ConfigError, SessionConflict, ToolDefinitionError, ToolError
from windlass.testing import FunctionModel, HookTrace, ScriptedModel, assert_same_everywhere, calls, says

from .trees import CALL, CHILD, S1, Asking, Tree, asked_for, sound, working

# ---------------------------------------------------------------- an agent as a tool


def test_an_agent_as_a_tool_takes_a_task_and_is_called_like_the_agent():
    child: Agent[Any, Any] = Agent(ScriptedModel(), name="researcher")
    made = child.as_tool()
    assert made.name == "researcher"
    assert "researcher" in made.description
    assert list(made.spec.schema["properties"]) == ["task"]
    assert made.spec.schema["required"] == ["task"]
    renamed = child.as_tool("look_up", "Looks things up.")
    assert (renamed.name, renamed.description) == ("look_up", "Looks things up.")


def test_a_name_that_no_tool_may_have_is_refused():
    child: Agent[Any, Any] = Agent(ScriptedModel(), name="my researcher")
    with pytest.raises(ToolDefinitionError, match="my researcher"):
        child.as_tool()
    assert child.as_tool("researcher").name == "researcher"


@pytest.mark.parametrize("share", [0, -0.5, 1.01])
def test_a_share_is_above_0_and_at_most_1(share: float):
    with pytest.raises(ConfigError, match="share"):
        Agent(ScriptedModel(), name="child").as_tool(share=share)


def test_tools_are_given_as_a_list_of_names():
    with pytest.raises(ConfigError, match="list of names"):
        Agent(ScriptedModel(), name="child").as_tool(tools="work")


def test_a_tool_that_the_child_does_not_have_is_refused_when_the_parent_is_compiled():
    tree = Tree(tools=["wrok"])
    with pytest.raises(ConfigError, match=r"'wrok'.*it has: work"):
        tree.parent.compile()
    with pytest.raises(ConfigError, match="'wrok'"):
        tree.parent.run_sync("go")


def test_a_depth_below_0_is_refused():
    with pytest.raises(ConfigError, match="max_depth"):
        Agent(ScriptedModel(), max_depth=-1)


async def test_the_tool_works_only_in_a_turn():
    made = Agent(ScriptedModel(), name="child").as_tool()
    with pytest.raises(ToolError, match="'child'"):
        await made("do it")


async def test_what_the_child_says_is_the_result_of_the_call():
    tree = Tree()
    result = await tree.run()
    assert result.text == "done"
    returned = await tree.result()
    assert (returned.text, returned.status) == ("worked", "ok")
    assert tree.ran == ["work"]


async def test_the_child_is_a_session_of_its_own_named_after_the_call():
    tree = Tree()
    await tree.run()
    assert list(await tree.parent.store.sessions()) == [S1, CHILD]
    log = await tree.log()
    assert log[1] == TurnStarted(1, log[1].message, f"{CHILD}/t1", at=log[1].at)
    assert log[1].message.text == "do it"
    assert [r.call for r in log if isinstance(r, ToolCalled)] == [f"{CHILD}/1/1"]
    assert isinstance(log[-1], SessionEnded)
    (delegated,) = await tree.find(Delegated)
    assert (delegated.call, delegated.session, delegated.agent, delegated.task) == (CALL, CHILD, "child", "do it")
    await sound(tree.parent)


async def test_a_child_of_a_session_without_a_name_ends_with_it():
    tree = Tree()
    result = await tree.parent.run("go")
    assert result.text == "done"
    for session in await tree.parent.store.sessions():
        assert isinstance((await tree.log(session))[-1], SessionEnded)


async def test_the_child_gets_the_scope_of_the_call():
    seen: list[Any] = []
    tree = Tree()

    @tree.child.gate(ToolCalling)
    def look(event: ToolCalling, turn: Turn) -> None:
        seen.append(turn.scope)

    await tree.parent.run("go", scope={"user": "ann"})
    assert seen == [{"user": "ann"}]


async def test_the_childs_own_wraps_of_a_turn_surround_it():
    tree = Tree()
    seen: list[str] = []

    @tree.child.wrap(Turn)
    async def around(turn: Turn, call_next: Any) -> None:
        seen.append("in")
        await call_next(turn)
        seen.append("out")

    await tree.run()
    assert seen == ["in", "out"]


async def test_a_call_without_a_task_is_an_error_the_model_reads():
    tree = Tree(parent=asked_for(job="x"))
    asked: list[Any] = []
    tree.parent.gate(Delegating)(lambda event: asked.append(event))
    result = await tree.run()
    assert result.text == "done"
    assert "task" in (await tree.result()).text
    assert (await tree.result()).status == "error"
    assert asked == []
    assert await tree.find(Delegated) == []


async def test_one_child_may_work_on_two_calls_at_once():
    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})])
    together = asyncio.Barrier(2)

    async def reply(request: ModelRequest) -> Any:
        async with asyncio.timeout(50):
            await together.wait()
        return says(f"did {request.messages[0].text}")

    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both, says("done")))
    result = await tree.run()
    assert [part.text for part in result.messages[2].parts] == ["did a", "did b"]
    assert sorted(await tree.parent.store.sessions()) == [S1, "s1//1/1", "s1//1/2"]
    assert result.usage.requests == 4


async def test_an_agent_may_be_its_own_child_as_deep_as_it_may_go():
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return says(last.parts[0].text) if last.role == "tool" else calls("agent", task="again")  # type: ignore[union-attr]

    agent: Agent[Any, Any] = Agent(FunctionModel(reply), max_depth=2)
    agent.tool(agent.as_tool())
    result = await agent.run("go", session=S1)
    assert list(await agent.store.sessions()) == ["s1", "s1//1/1", "s1//1/1//1/1"]
    assert "nested as deep" in result.text
    assert "max_depth" in result.text


async def test_the_smaller_of_the_depths_holds():
    ran: list[str] = []

    @tool
    def leaf() -> str:
        """Leaf."""
        ran.append("leaf")
        return "leaf"

    low: Agent[Any, Any] = Agent(working("leaf"), name="low", tools=[leaf])
    mid: Agent[Any, Any] = Agent(asked_for("mid", "low"), name="mid", tools=[low.as_tool()], max_depth=0)
    top: Agent[Any, Any] = Agent(asked_for("top", "mid"), name="top", tools=[mid.as_tool()])
    assert (await top.run("go", session=S1)).text == "top"
    (returned,) = [r for r in await top.store.read(CHILD) if isinstance(r, ToolReturned)]
    assert returned.result.status == "error"
    assert "max_depth" in returned.result.text
    assert ran == []


async def test_nobody_is_asked_about_a_task_that_goes_too_deep():
    tree = Tree(max_depth=0)
    tree.parent.gate(Delegating)(lambda event: Ask("really?"))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "max_depth" in (await tree.result()).text


# ---------------------------------------------------------------- what comes of a child


async def test_a_child_that_fails_is_an_error_and_its_siblings_go_on():
    def reply(request: ModelRequest) -> Any:
        if request.messages[0].text == "bad":
            raise RuntimeError("no such thing")
        return says("fine")

    three = calls([("child", {"task": "good"}), ("child", {"task": "bad"}), ("child", {"task": "good"})])
    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(three, says("done")))
    result = await tree.run()
    assert result.outcome == Completed()
    returned = [r.result for r in sorted(await tree.find(ToolReturned), key=lambda r: r.call)]
    assert [r.status for r in returned] == ["ok", "error", "ok"]
    assert returned[1].text == "Error: agent 'child' failed: RuntimeError"
    await sound(tree.parent)


async def test_a_child_that_is_stopped_is_an_error_that_says_why():
    tree = Tree(child_options={"criteria": [StepLimit(1)]})
    assert (await tree.run()).text == "done"
    returned = await tree.result()
    assert returned.status == "error"
    assert "agent 'child' was stopped (step_limit): StepLimit" in returned.text


async def test_a_child_that_is_halted_does_not_halt_its_parent():
    tree = Tree()
    tree.child.gate(TurnStarting)(lambda event: Halt("not today", "No."))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "was stopped (halted): not today" in (await tree.result()).text


async def test_a_child_that_was_cancelled_alone_is_an_error():
    tree = Tree()

    @tree.child.gate(ToolCalling)
    async def cancel(event: ToolCalling) -> None:
        await tree.parent.store.put(CHILD, "key", "cancel", "no longer needed")

    result = await tree.run()
    assert result.outcome == Completed()
    assert (await tree.result()).text == "Error: agent 'child' was cancelled: no longer needed"


async def test_a_child_can_be_steered():
    tree = Tree()

    @tree.child.gate(ModelCalling)
    async def steer(event: ModelCalling) -> None:
        if len(event.request.messages) == 3:
            await tree.parent.steer(CHILD, "and be quick")

    await tree.run()
    assert "and be quick" in [m.text for m in fold(CHILD, await tree.log()).messages]
    assert tree.ran == ["work", "work"]


async def test_a_model_that_cancels_itself_is_the_childs_own_trouble():
    def reply(request: ModelRequest) -> Any:
        raise asyncio.CancelledError("odd")

    tree = Tree(child=FunctionModel(reply))
    result = await tree.run()
    assert result.outcome == Completed()
    assert "agent 'child' failed" in (await tree.result()).text


async def test_a_childs_log_that_somebody_else_advances_ends_the_whole_pass_and_nothing_more_is_written():
    tree = Tree()

    @tree.child.gate(ToolCalling)
    async def meddle(event: ToolCalling) -> None:
        log = await tree.log()
        await tree.parent.store.append(CHILD, [SessionEnded()], len(log))

    with pytest.raises(SessionConflict):
        await tree.run()
    assert not await tree.find(ToolReturned)
    assert not await tree.find(TurnEnded)


async def test_a_cancel_of_the_parent_closes_both():
    started = asyncio.Event()

    async def reply(request: ModelRequest) -> Any:
        started.set()
        await asyncio.Event().wait()

    both = calls([("child", {"task": "a"}), ("child", {"task": "b"})])
    tree = Tree(child=FunctionModel(reply), parent=ScriptedModel(both))
    ended: list[str] = []
    tree.parent.gate(TurnEnding, band="guard")(lambda event: ended.append(event.turn.session_id))
    task = asyncio.create_task(tree.run())
    await started.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    for session in (S1, "s1//1/1", "s1//1/2"):
        state = fold(session, await tree.log(session))
        assert state.outcome == Cancelled("enough") or session != S1
        assert isinstance(state.outcome, Cancelled)
    assert ended == ["s1//1/1", "s1//1/2", S1]
    assert [r.result.status for r in await tree.find(ToolReturned)] == ["interrupted"] * 2


async def test_a_wrap_that_loses_patience_ends_the_child():
    async def reply(request: ModelRequest) -> Any:
        await asyncio.Event().wait()

    tree = Tree(child=FunctionModel(reply))

    @tree.parent.wrap(ToolCall, tool="child")
    async def impatient(call: ToolCall, call_next: Any) -> Any:
        try:
            async with asyncio.timeout(0):
                return await call_next(call)
        except TimeoutError:
            return "it took too long"

    result = await tree.run()
    assert result.outcome == Completed()
    assert (await tree.result()).text == "it took too long"
    assert isinstance(fold(CHILD, await tree.log()).outcome, Cancelled)


async def test_a_wrap_that_tries_again_starts_another_child():
    model = ScriptedModel(says("bad"), says("good"))
    tree = Tree(child=model)

    @tree.parent.wrap(ToolCall, tool="child")
    async def twice(call: ToolCall, call_next: Any) -> Any:
        result = await call_next(call)
        return result if result.text == "good" else await call_next(call)

    result = await tree.run()
    assert (await tree.result()).text == "good"
    assert list(await tree.parent.store.sessions()) == [S1, CHILD, f"{CHILD}.2"]
    assert [r.session for r in await tree.find(Charged)] == [CHILD, f"{CHILD}.2"]
    assert result.usage.requests == 4
    await sound(tree.parent)


async def test_a_parent_may_be_iterated():
    tree = Tree()
    states = [state async for state in tree.parent.iterate("go", session=S1)]
    assert [state.steps for state in states] == [1, 2]
    assert states[0].usage.requests == 3
    assert states[-1].text == "done"


async def test_why_tells_of_the_child_and_of_what_it_cost():
    tree = Tree()
    tree.parent.gate(Delegating, name="may")(lambda event: Allow())
    result = await tree.run()
    why = result.why()
    assert 'agent child was given the task "do it", in session s1//1/1' in str(why)
    told = {entry["what"]: entry for part in why.data["parts"] for entry in part["entries"]}
    assert (told["decide"]["event"], told["decide"]["hook"]) == ("Delegating", "may")
    assert told["charge"]["tokens"] == 22
    assert why.data["usage"]["requests"] == result.usage.requests == 4


# ---------------------------------------------------------------- the same as by itself


def hooked() -> Tree:
    """A child with a hook of every kind."""
    tree = Tree()
    child = tree.child
    child.rewrite(SessionStarting, name="setup")(lambda event: event.setup.replace(system="Be good."))
    child.inject(TurnStarting, name="know")(lambda event: "It is Monday.")
    child.rewrite(ModelCalling, name="brief")(lambda event: event.request.replace(system="Be brief."))
    child.gate(ModelReplying, name="read")(lambda event: Allow())
    child.rewrite(ToolCalling, name="same")(lambda event: event.call.replace(json="{ }"))
    child.gate(ToolCalling, name="may")(lambda event: Allow())
    child.rewrite(ToolReturning, name="nicer")(lambda event: event.result.text + "!")
    child.gate(StepEnding, name="step")(lambda event: Allow())
    child.gate(Stopping, name="stop")(lambda event: None if event.stop_active else Veto("again"))
    child.rewrite(TurnEnding, name="sign")(lambda event: event.text + " (child)")
    return tree


async def test_the_hooks_of_a_child_do_what_they_do_by_themselves():
    """Behaviour 84: the same turn as a sub-agent has the same hook trace as through run."""
    alone = hooked()
    await alone.child.run("do it", session=S1)
    below = hooked()
    await below.run()
    expected = HookTrace(await alone.child.store.read(S1))
    assert len(expected.rows) > 10
    assert HookTrace(await below.log()) == expected
    assert (await below.result()).text == "worked (child)"


async def test_an_agent_with_children_does_the_same_in_every_way_of_running():
    """Behaviour 84: a parent whose children ask, through run, stream, iterate, resume and as a sub-agent itself."""
    lived = await assert_same_everywhere(lambda: Asking().root)
    assert lived.state.text == "sent to ann; seen; sent to bob"


async def test_a_suspended_child_has_the_same_trace_too():
    """Behaviour 84: over a suspension as well."""

    def asking() -> Tree:
        tree = hooked()
        tree.child.gate(ToolCalling, name="ask")(lambda event: Ask())
        return tree

    alone = asking()
    result = await alone.child.run("do it", session=S1)
    await alone.child.resume(S1, answers={result.waiting_for[0].id: Approve()})
    below = asking()
    result = await below.run()
    await below.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert HookTrace(await below.log()) == HookTrace(await alone.child.store.read(S1))


# ---------------------------------------------------------------- in the parent's stream


async def test_a_session_of_ones_own_may_be_named_like_that_of_a_child():
    agent = Agent(ScriptedModel(says("one"), says("two")))
    await agent.run("go", session="ann/2024/1")
    assert (await agent.run("go on", session="ann/2024/1")).text == "two"


async def test_a_child_can_be_cancelled_alone():
    agent: Agent[Any, Any] | None = None

    @tool
    async def work() -> str:
        """Work."""
        assert agent is not None
        assert await agent.cancel("s1//1/1", "too slow")
        await asyncio.Event().wait()
        return "never"

    child = Agent(working(), name="child", tools=[work])
    agent = Agent(asked_for("went on", task="go"), tools=[child.as_tool()])
    parent = await agent.run("go", session=S1)
    assert (parent.text, parent.outcome) == ("went on", Completed())
    assert (await agent.state("s1//1/1")).outcome == Cancelled("too slow")
