"""What is not let in: refused sessions, withheld messages and results, and nothing that goes by the guard's door."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    Agent,
    Completed,
    Continuing,
    Deny,
    ErrorPolicy,
    Failed,
    Halt,
    MessageAdding,
    Pipeline,
    SessionStarting,
    Slot,
    StepEnding,
    Stopped,
    Stopping,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import SessionError, ToolError
from windlass.messages import user
from windlass.records import ErrorHandled, HookFailed, MessageAdded, ToolAttempted, ToolDecided, TurnStarted
from windlass.stores import MemoryStore, open_store
from windlass.testing import FunctionModel, ScriptedModel, calls, says
from windlass.transfer import export_session, import_session

CARD = "4111-1111"


def raising(*_: Any) -> Any:
    raise ValueError(f"cannot read {CARD}")


async def log(agent: Agent[Any, Any], session: str = "s") -> str:
    return repr(list(await agent.store.read(session)))


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize("gate", [raising, lambda event: Halt("not you")])
@pytest.mark.parametrize("band", ["normal", "guard"])
async def test_a_refused_session_is_refused_again(gate: Any, band: Any):
    asked: list[Any] = []
    agent = Agent(FunctionModel(lambda request: says("secret")))

    @agent.gate(SessionStarting, band=band)
    def guard(event: Any) -> Any:
        asked.append(event)
        return gate(event)

    for _ in range(3):
        result = await agent.run("x", session="s")
        assert isinstance(result.outcome, Stopped)
    assert len(asked) == 3
    assert "secret" not in await log(agent)


async def test_a_session_is_opened_once_its_gate_lets_it():
    verdicts = iter([Halt("not yet"), None])
    agent = Agent(ScriptedModel(says("one"), says("two")))
    agent.gate(SessionStarting)(lambda event: next(verdicts))
    assert isinstance((await agent.run("x", session="s")).outcome, Stopped)
    assert (await agent.run("x", session="s")).text == "one"
    assert (await agent.run("x", session="s")).text == "two"


# ---------------------------------------------------------------- the user's message


def refusals() -> list[Any]:
    return [
        pytest.param("rewrite", TurnStarting, raising, id="rewrite of TurnStarting fails"),
        pytest.param("rewrite", MessageAdding, raising, id="rewrite of MessageAdding fails"),
        pytest.param("rewrite", SessionStarting, raising, id="rewrite of SessionStarting fails"),
        pytest.param("gate", SessionStarting, lambda event: Halt("no"), id="SessionStarting halts"),
        pytest.param("gate", TurnStarting, lambda event: Halt("no"), id="TurnStarting halts"),
        pytest.param("gate", TurnStarting, raising, id="gate of TurnStarting fails"),
        pytest.param("gate", MessageAdding, lambda event: Deny("no"), id="MessageAdding denies"),
        pytest.param("hook", TurnStarting, raising, id="hook of TurnStarting fails"),
    ]


@pytest.mark.parametrize(("verb", "event", "fn"), refusals())
@pytest.mark.parametrize("way", ["run", "stream", "sqlite"])
async def test_a_message_that_was_not_let_in_is_stored_as_withheld(verb: str, event: Any, fn: Any, way: str, tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/s.db") if way == "sqlite" else MemoryStore()
    agent = Agent(ScriptedModel(says("never")), store=store)
    getattr(agent, verb)(event, band="guard")(fn if fn is not raising else _fails)
    seen: list[Any] = []
    agent.observe(TurnStarted, wait=True)(seen.append)
    message = f"my card is {CARD}"
    if way == "stream":
        async with agent.stream(message, session="s") as stream:
            seen += [event async for event in stream]
        result = stream.result
    else:
        result = await agent.run(message, session="s")
    assert isinstance(result.outcome, Stopped | Failed)
    assert CARD not in await log(agent) + repr(seen) + str(result.why()) + repr(result.state)
    (started,) = [record for record in await store.read("s") if isinstance(record, TurnStarted)]
    assert started.withheld == len(message)
    assert not [record for record in await store.read("s") if isinstance(record, MessageAdded)]
    await store.close()


def _fails(event: Any) -> Any:
    raise ValueError("auth server down")


async def test_a_rewritten_message_is_stored_as_it_was_rewritten():
    agent = Agent(ScriptedModel(says("ok")))
    agent.rewrite(TurnStarting)(lambda event: event.message.text.replace(CARD, "•"))
    await agent.run(f"my card is {CARD}", session="s")
    assert CARD not in await log(agent)


async def test_a_rewrite_of_the_message_sees_the_new_turn():
    agent = Agent(ScriptedModel(says("one"), says("two")))
    seen: list[Any] = []
    plan = agent.slot(Slot("plan", str, default=str))

    @agent.rewrite(TurnStarting)
    def look(event: Any, turn: Any) -> None:
        seen.append((turn.user_message.text, turn.turn_ref, turn.steps, turn.usage.requests, turn.get(plan)))
        turn.set(plan, "set")

    @agent.gate(TurnStarting)
    def gate(event: Any, turn: Any) -> None:
        assert turn.get(plan) == "set"

    await agent.run("first", session="s", slots={"plan": "given"})
    await agent.run("second", session="s")
    assert seen == [("first", "s/t1", 0, 0, "given"), ("second", "s/t2", 0, 0, "set")]
    assert (await agent.state("s")).slots["plan"] == "set"


async def test_a_hook_may_ask_a_model_before_the_turn_is_let_in():
    judge = ScriptedModel(says("fine"), says("fine"), name="judge")
    agent = Agent(ScriptedModel(says("ok")), models=[judge])

    @agent.rewrite(TurnStarting)
    async def ask(event: Any, turn: Any) -> None:
        await turn.ask(judge, "is it fine?")

    @agent.gate(SessionStarting)
    async def ask_too(event: Any, turn: Any) -> None:
        await turn.ask(judge, "may they?")

    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert result.usage.requests == 3


# ---------------------------------------------------------------- results


@tool(effect="pure")
async def card() -> str:
    """Read a card."""
    raise ValueError(f"bad card {CARD}")


async def test_the_result_of_a_call_that_an_error_closed_passes_the_guard():
    agent = Agent(ScriptedModel(calls("card"), says("end")), tools=[card], errors=ErrorPolicy.strict())
    seen: list[str] = []
    agent.rewrite(ToolReturning, band="guard")(lambda event: seen.append(event.result.text) or "clean")
    first = await agent.run("go", session="s")
    assert isinstance(first.outcome, Failed)
    await agent.run("and?", session="s")
    assert len(seen) == 1
    assert "clean" in repr(agent.model.requests[-1].messages)
    assert CARD not in repr(agent.model.requests[-1].messages) + repr(seen)
    assert "may or may not have happened" not in seen[0]  # it is pure


@pytest.mark.parametrize("what", ["deny", "fail", "slow"])
async def test_the_result_of_a_cancelled_call_passes_the_guard(what: str):
    entered = asyncio.Event()

    @tool
    async def block() -> str:
        """Block."""
        entered.set()
        await asyncio.sleep(60)
        return "never"

    agent = Agent(ScriptedModel(calls("block"), says("end")), tools=[block], ending_timeout=0.05)

    @agent.gate(ToolReturning)
    async def guard(event: Any) -> Any:
        if what == "slow":
            await asyncio.sleep(60)
        if what == "fail":
            raise ValueError(CARD)
        return Deny("not this one")

    task = asyncio.ensure_future(agent.run("go", session="s"))
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])
    (returned,) = [record for record in await agent.store.read("s") if isinstance(record, ToolReturned)]
    assert returned.result.text.startswith("Withheld")
    assert CARD not in returned.result.text


async def test_halt_and_finish_about_a_closed_call_are_recorded_without_effect():
    agent = Agent(ScriptedModel(calls("card"), says("end")), tools=[card], errors=ErrorPolicy.strict())
    agent.gate(ToolReturning)(lambda event: Halt("too late"))
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert "too late" in await log(agent)


@pytest.mark.parametrize("verb", ["gate", "rewrite"])
async def test_a_failing_guard_does_not_quote_what_it_withholds(verb: str):
    @tool(effect="pure")
    async def show() -> str:
        """Show a card."""
        return CARD

    agent = Agent(ScriptedModel(calls("show"), says("end")), tools=[show])
    getattr(agent, verb)(ToolReturning, name="guard", band="guard")(lambda event: f"{int(event.result.text)}")
    result = await agent.run("go", session="s")
    told = repr(agent.model.requests[-1].messages)
    assert CARD not in told
    assert "'guard' failed" in told
    assert result.outcome == Completed()
    (failed,) = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert failed.hook == "guard"
    assert "ValueError" in failed.error.type + failed.error.message


@pytest.mark.parametrize("policy", [ErrorPolicy(), ErrorPolicy.strict()])
async def test_a_tools_error_is_not_told_past_hooks_that_clean_its_results(policy: Any):
    agent = Agent(ScriptedModel(calls("card"), says("end")), tools=[card], errors=policy)
    agent.rewrite(ToolReturning)(lambda event: "clean")
    seen: list[Any] = []
    async with agent.stream("go", session="s") as stream:
        seen += [event async for event in stream]
    assert CARD not in repr(seen)
    assert CARD not in await log(agent)
    assert CARD not in str(await agent.why("s"))


async def test_an_attempt_that_a_wrap_discards_is_told_without_what_no_hook_has_cleaned():
    @tool(effect="pure")
    async def show() -> str:
        """Show a card."""
        return CARD

    agent = Agent(ScriptedModel(calls("show"), says("end")), tools=[show])
    agent.rewrite(ToolReturning, band="guard")(lambda event: event.result.text.replace(CARD, "•"))

    @agent.wrap(ToolCall)
    async def twice(call: Any, call_next: Any) -> Any:
        await call_next(call)
        return await call_next(call)

    seen: list[Any] = []
    agent.observe(ToolAttempted, wait=True)(seen.append)
    async with agent.stream("go", session="s") as stream:
        seen += [event async for event in stream]
    assert [fact for fact in seen if isinstance(fact, ToolAttempted)]
    assert CARD not in repr(seen) + str(stream.result.why()) + repr(stream.result.messages)


@pytest.mark.parametrize("first", [0, 1])
async def test_errors_of_parallel_calls_are_each_handled_once_and_told_to_nobody(first: int):
    """Whichever of them ends the turn, its text is not told past the hooks that clean the results."""
    turns = [asyncio.Event(), asyncio.Event()]

    @tool(effect="pure", name="card")
    async def failing(x: int) -> str:
        """Fail, one after the other."""
        if x != first:
            await turns[first].wait()
            await asyncio.sleep(0)
        turns[x].set()
        raise ValueError(f"bad card {CARD}")

    both = calls([("card", {"x": 0}), ("card", {"x": 1})])
    agent = Agent(ScriptedModel(both), tools=[failing], errors=ErrorPolicy.strict())
    agent.rewrite(ToolReturning, band="guard")(lambda event: "clean")
    seen: list[Any] = []
    async with agent.stream("go", session="s") as stream:
        seen += [event async for event in stream]
    assert CARD not in repr(seen) + await log(agent)
    handled = [record for record in await agent.store.read("s") if isinstance(record, ErrorHandled)]
    assert {record.category for record in handled} == {"tool"}


async def test_the_model_reads_of_an_exception_only_that_the_tool_failed():
    @tool(name="plain")
    async def plain() -> str:
        """Fail."""
        raise OSError("/home/ann/secret")

    @tool(name="open", show_errors=True)
    async def shown() -> str:
        """Fail openly."""
        raise OSError("/tmp/x is missing")

    @tool(name="told")
    async def told() -> str:
        """Fail with words."""
        raise ToolError("try another date")

    several = calls([("plain", {}), ("open", {}), ("told", {})])
    agent = Agent(ScriptedModel(several, says("end")), tools=[plain, shown, told])
    await agent.run("go", session="s")
    texts = [part.text for part in agent.model.requests[-1].messages[-1].parts]
    assert texts == [
        "Error: the tool failed (call s/1/1)",
        "Error: OSError: /tmp/x is missing",
        "Error: try another date",
    ]
    returned = [record for record in await agent.store.read("s") if isinstance(record, ToolReturned)]
    assert returned[0].error.message == "/home/ann/secret"


# ---------------------------------------------------------------- messages


async def test_a_hook_that_fails_at_the_door_is_asked_once_and_the_message_stays_out():
    asked: list[Any] = []

    @tool(effect="pure")
    async def show() -> str:
        """Show a card."""
        return CARD

    agent = Agent(ScriptedModel(calls("show"), says("end")), tools=[show])

    @agent.rewrite(MessageAdding)
    def once(event: Any) -> None:
        if event.message.role == "tool":
            asked.append(event)
            if len(asked) == 1:
                raise ValueError("no")

    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert len(asked) == 1
    assert CARD not in repr(result.messages)
    assert result.messages[-1].parts[0].status == "denied"


@pytest.mark.parametrize("event", [StepEnding, Continuing, Stopping])
async def test_a_message_that_is_added_at_the_very_end_is_not_lost(event: Any):
    agent = Agent(ScriptedModel(says("end")))

    @agent.gate(event)
    def add(event: Any, turn: Any) -> None:
        turn.add("remember this")

    result = await agent.run("go", session="s")
    assert result.outcome == Completed()
    assert [message.text for message in result.messages].count("remember this") == 1
    assert [message.text for message in (await agent.state("s")).messages].count("remember this") == 1


class Smuggler:
    def __init__(self, record: Any) -> None:
        self.record = record

    def handle(self, state: Any, turn: Any) -> Any:
        return state.record(self.record) if self.record is not None else state.replace(steps=99)


async def test_a_message_of_a_phase_handler_passes_the_door():
    pipeline = Pipeline.minimal().with_handler("before_turn", Smuggler(MessageAdded(user("SECRET"))))
    agent = Agent(ScriptedModel(says("end")), pipeline=pipeline)
    agent.gate(MessageAdding)(lambda event: Deny("no") if "SECRET" in event.message.text else None)
    result = await agent.run("go", session="s")
    assert "SECRET" not in repr(result.messages)
    assert result.outcome == Completed()


@pytest.mark.parametrize("record", [None, ToolDecided("s/1/1", Deny())])
async def test_a_phase_handler_may_neither_make_up_a_state_nor_decide(record: Any):
    pipeline = Pipeline.minimal().with_handler("before_turn", Smuggler(record))
    result = await Agent(ScriptedModel(says("end")), pipeline=pipeline).run("go", session="s")
    assert isinstance(result.outcome, Failed)
    assert "'Smuggler'" in result.outcome.error.message


async def test_a_bug_in_a_phase_handler_is_named():
    class Broken:
        def handle(self, state: Any, turn: Any) -> Any:
            raise KeyError("x")

    result = await Agent(
        ScriptedModel(says("end")), pipeline=Pipeline.minimal().with_handler("after_step", Broken())
    ).run("go")
    assert isinstance(result.outcome, Failed)
    assert "'Broken' failed" in result.outcome.error.message


# ---------------------------------------------------------------- composites and forks


class Idle:
    def __init__(self, segment: Any) -> None:
        pass

    async def execute(self, fold: Any) -> None:
        """Record nothing."""


@pytest.mark.parametrize("extra", ["nothing", "gate"])
async def test_an_executor_that_records_nothing_leaves_no_call_open(extra: str):
    agent = Agent(
        ScriptedModel(calls("card"), says("end")),
        tools=[card],
        pipeline=Pipeline.minimal().with_composite("executor", Idle),
    )
    if extra == "gate":
        agent.gate(ToolCalling)(lambda event: None)
    result = await agent.run("go", session="s")
    parts = [part for message in result.messages for part in message.parts]
    asked = [part.id for part in parts if type(part).__name__ == "ToolCallPart"]
    answered = [part.call_id for part in parts if type(part).__name__ == "ToolResultPart"]
    assert asked == answered
    assert (await agent.state("s")).messages == result.messages


async def test_a_sub_agents_session_cannot_be_forked_or_imported_out_of_its_parents_guard():
    kid = Agent(ScriptedModel(calls("card"), says("leaf")), tools=[card], name="kid")
    top = Agent(ScriptedModel(calls("kid", task="t"), says("end")), tools=[kid.as_tool()])
    await top.run("go", session="p")
    with pytest.raises(SessionError, match="sub-agent"):
        await top.fork("p//1/1", to="f")
    other = MemoryStore()
    await import_session(other, await export_session(top.store, "p//1/1"), session="mine")
    alone = Agent(ScriptedModel(says("free")), tools=[card], store=other)
    with pytest.raises(SessionError, match="sub-agent"):
        await alone.run("go", session="mine")


async def test_a_wrap_around_a_tool_is_not_seen_by_closed_calls():
    entered: list[Any] = []
    agent = Agent(ScriptedModel(calls("card"), says("end")), tools=[card], errors=ErrorPolicy.strict())

    @agent.wrap(ToolCall)
    async def count(call: Any, call_next: Any) -> Any:
        entered.append(call)
        return await call_next(call)

    assert isinstance((await agent.run("go")).outcome, Failed)
    assert len(entered) == 1


async def test_the_error_of_a_childs_ending_hook_does_not_reach_the_parents_model():
    kid = Agent(ScriptedModel(says("z")), name="kid")
    kid.rewrite(TurnEnding, name="bad")(raising)
    top = Agent(ScriptedModel(calls("kid", task="t"), says("top")), tools=[kid.as_tool()])
    await top.run("go", session="s")
    told = repr(top.model.requests[-1].messages)
    assert "'bad' failed" in told
    assert CARD not in told
