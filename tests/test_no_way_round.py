"""No path goes round the hooks: wraps that change things, edits, resumes, races, side calls, rewinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    Deny,
    Edit,
    ErrorPolicy,
    Failed,
    Finish,
    Halt,
    HookAction,
    HookFailed,
    Lifecycle,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    NotDone,
    Resuming,
    Says,
    SessionStarting,
    StepEnding,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolReturning,
    TurnEnded,
    Veto,
    fold,
    tool,
)
from windlass.errors import HookError, StoreError
from windlass.messages import Usage
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .checks import out_of_time_once
from .ran import Ran


def too_big(event: ToolCalling) -> Says | None:
    return Says(decision=Deny("too big")) if event.call.arguments["x"] > 100 else None


async def test_a_combined_hook_judges_a_call_that_a_wrap_changed(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])
    agent.hook(ToolCalling)(too_big)

    @agent.wrap(ToolCall)
    async def enlarge(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"x": 999}))

    await agent.run("go")
    assert ran.calls == []


async def test_a_combined_hook_judges_what_a_person_edited(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])
    agent.hook(ToolCalling)(too_big)
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    await agent.run("go", session="s")
    await agent.resume("s", answers={"s/1/1": Edit({"x": 999})})
    assert ran.calls == []


async def test_a_combined_hook_judges_a_request_that_a_wrap_changed():
    model = ScriptedModel(says("never"))
    agent = Agent(model)
    agent.hook(ModelCalling)(lambda event: Halt("evil") if "evil" in event.request.system else None)

    @agent.wrap(ModelCall)
    async def corrupt(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(system="evil"))

    assert isinstance((await agent.run("go")).outcome, Stopped)
    assert model.requests == []


async def test_a_combined_hook_in_the_guard_band_judges_side_calls():
    side = ScriptedModel(says("leaked"), name="side")
    agent = Agent(ScriptedModel(says("end")))
    agent.hook(ModelCalling, band="guard")(
        lambda event: Halt("no") if "secret" in event.request.messages[-1].text else None
    )

    @agent.gate(ModelReplying)
    async def consult(event: ModelReplying, turn: Any) -> None:
        await turn.ask(side, "secret")

    assert isinstance((await agent.run("go")).outcome, Stopped)
    assert side.requests == []


async def test_a_hook_that_is_new_since_the_suspension_is_asked(ran: Ran):
    store = MemoryStore()

    def build(*script: Any) -> Agent:
        agent = Agent(ScriptedModel(*script), tools=[ran.do], store=store)
        agent.gate(ToolCalling, name="asks")(lambda event: Ask("sure?"))
        return agent

    await build(calls("do", x=1)).run("go", session="s")
    later = build(says("end"))
    later.hook(ToolCalling, name="new")(lambda event: Deny("not any more"))
    await later.resume("s", answers={"s/1/1": Approve()})
    assert ran.calls == []


async def test_a_lifecycle_that_rejects_a_reply_rejects_it_after_a_crash_too(ran: Ran):
    class Strict(Lifecycle):
        async def after_model(self, reply: Any) -> Any:
            return HookAction.Halt("bad words")

    def build(store: MemoryStore, *script: Any) -> Agent:
        agent = Agent(ScriptedModel(*script), tools=[ran.do], store=store).with_lifecycle(Strict())
        agent.gate(ModelReplying)(lambda event: None)
        return agent

    whole = MemoryStore()
    await build(whole, calls("do", x=1)).run("go", session="s")
    log = list(await whole.read("s"))
    replied = next(i for i, record in enumerate(log) if type(record).__name__ == "ModelReplied")
    left = MemoryStore()
    await left.append("s", log[: replied + 1], 0)
    assert isinstance((await build(left).resume("s")).outcome, Stopped)
    assert ran.calls == []


async def test_an_unsafe_tool_runs_once_however_a_wrap_races(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])

    @agent.gate(ToolCalling)
    async def slow(event: ToolCalling) -> None:
        await asyncio.sleep(0)

    @agent.wrap(ToolCall)
    async def race(call: ToolCall, call_next: Any) -> Any:
        changed = call.replace(arguments={"x": 2})
        both = await asyncio.gather(call_next(changed), call_next(changed), return_exceptions=True)
        return next(result for result in both if not isinstance(result, BaseException))

    await agent.run("go")
    assert ran.calls == [2]


async def test_an_approval_does_not_count_for_a_gate_that_had_not_asked_yet(ran: Ran):
    store = MemoryStore()

    def build(*script: Any) -> Agent:
        agent = Agent(ScriptedModel(*script), tools=[ran.do], store=store)
        agent.gate(ToolCalling, name="old")(lambda event: Ask("sure?"))
        return agent

    await build(calls("do", x=1)).run("go", session="s")
    later = build(says("end"))
    later.gate(ToolCalling, name="legal")(lambda event: Ask("legal?", approvers=("legal",)))
    result = await later.resume("s", answers={"s/1/1": Approve(by="bob")})
    assert isinstance(result.outcome, Suspended)
    assert [asked.by for asked in result.waiting_for] == [("legal",)]
    assert ran.calls == []
    await later.resume("s", answers={"s/1/1": Approve(by="legal")})
    assert ran.calls == [1]


def test_a_name_is_no_list_of_approvers_and_a_default_must_be_allowed():
    with pytest.raises(ValueError, match="not a str"):
        Ask("?", approvers="ann")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="approve"):
        Ask("?", allow=("reject",), default="approve")


async def test_the_guards_door_sees_every_message_of_a_resumed_turn(ran: Ran):
    model = ScriptedModel(calls("do", x=1), calls("do", x=2), says("end"))
    agent = Agent(model, tools=[ran.do])
    agent.gate(ToolCalling)(lambda event: Ask("sure?") if event.call.arguments["x"] == 1 else None)
    saw: list[str] = []

    @agent.gate(MessageAdding)
    def door(event: MessageAdding) -> Any:
        saw.append(event.message.text)
        return Deny("secret") if "SECRET" in event.message.text else Allow()

    @agent.gate(StepEnding)
    def add(event: StepEnding, turn: Any) -> None:
        turn.add("harmless" if event.step.number == 1 else "SECRET")

    await agent.run("go", session="s")
    result = await agent.resume("s", answers={"s/1/1": Approve()})
    assert "SECRET" in saw
    assert all("SECRET" not in message.text for message in result.messages)


async def test_a_tool_that_was_taken_out_of_the_session_does_not_run(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])
    agent.rewrite(SessionStarting)(lambda event: event.setup.replace(tools=()))
    result = await agent.run("go")
    assert ran.calls == []
    assert "there is no tool 'do'" in result.messages[2].parts[0].text  # type: ignore[union-attr]


async def test_a_cancel_after_the_end_of_a_turn_leaves_it_as_it_was():
    agent = Agent(ScriptedModel(says("done")), observer_patience=50)
    told = asyncio.Event()

    @agent.observe(TurnEnded)
    async def slow(fact: TurnEnded) -> None:
        told.set()
        for _ in range(50):  # the time is up by then
            await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await out_of_time_once(told, agent.run("go", session="s"))
    state = await agent.state("s")
    assert (state.turns, state.outcome) == (1, Completed())


async def test_a_finish_counts_although_a_sibling_had_to_wait(ran: Ran):
    agent = Agent(ScriptedModel(calls([("do", {"x": 1}), ("do", {"x": 2})])), tools=[ran.do])
    agent.gate(ToolCalling)(lambda event: Ask("sure?") if event.call.arguments["x"] == 2 else None)
    agent.gate(ToolReturning)(lambda event: Finish("enough") if event.call.arguments["x"] == 1 else None)
    assert isinstance((await agent.run("go", session="s")).outcome, Suspended)
    result = await agent.resume("s", answers={"s/1/2": Approve()})
    assert (result.outcome, result.text) == (Completed("enough"), "enough")


async def test_that_nobody_reviewed_it_is_not_forgotten_while_a_person_is_asked(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])

    @agent.gate(ModelReplying, on_error="unreviewed")
    def critic(event: ModelReplying) -> None:
        if event.reply.tool_calls:
            raise ConnectionError("away")

    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    await agent.run("go", session="s")
    result = await agent.resume("s", answers={"s/1/1": Approve()})
    assert result.outcome == Completed(unreviewed=("critic",))


async def test_a_call_that_had_ended_keeps_its_result_when_its_sibling_is_cancelled():
    @tool
    async def quick(turn: Any) -> str:
        """Be quick."""
        turn.add("quick was here")
        return "quick"

    begun = asyncio.Event()

    @tool
    async def slow() -> str:
        """Never end."""
        for _ in range(50):  # quick has its result by then
            await asyncio.sleep(0)
        begun.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(calls([("quick", {}), ("slow", {})])), tools=[quick, slow])
    with pytest.raises(TimeoutError):
        await out_of_time_once(begun, agent.run("go", session="s"))
    state = await agent.state("s")
    tools = next(message for message in state.messages if message.role == "tool")
    assert [part.status for part in tools.parts] == ["ok", "interrupted"]  # type: ignore[union-attr]
    assert fold("s", await agent.store.read("s")) == state


async def test_what_attempts_side_by_side_cost_is_counted():
    spent = Usage(input=100, output=1)
    agent = Agent(ScriptedModel(says("a", usage=spent), says("b", usage=spent)))

    @agent.wrap(ModelCall)
    async def both(request: Any, call_next: Any) -> Any:
        return (await asyncio.gather(call_next(request), call_next(request)))[0]

    assert (await agent.run("go")).usage.input == 200


async def test_a_retry_of_the_policy_goes_through_the_wraps_again_and_counts_on():
    tries = 0

    @tool
    async def flaky() -> str:
        """Fail once, harmlessly."""
        nonlocal tries
        tries += 1
        if tries == 1:
            raise NotDone("not yet")
        return "done"

    agent = Agent(
        ScriptedModel(calls("flaky"), says("end")),
        tools=[flaky],
        errors=ErrorPolicy(actions={"tool": "retry"}, delay=0),
    )

    @agent.wrap(ToolCall)
    async def through(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call)

    result = await agent.run("go", session="s")
    assert tries == 2
    assert result.messages[2].parts[0].text == "done"  # type: ignore[union-attr]
    called = [r.attempt for r in await agent.store.read("s") if type(r).__name__ == "ToolCalled"]
    assert called == [1, 2]


async def test_a_veto_is_not_given_twice_when_its_process_dies_after_it():
    def build(store: MemoryStore, *script: Any) -> Agent:
        agent = Agent(ScriptedModel(*script), store=store)
        agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("more"))
        return agent

    whole = MemoryStore()
    expected = await build(whole, says("one"), says("two")).run("go", session="s")
    log = list(await whole.read("s"))
    vetoed = next(i for i, record in enumerate(log) if type(record).__name__ == "StopVetoed")
    left = MemoryStore()
    await left.append("s", log[: vetoed + 2], 0)
    result = await build(left, says("two")).resume("s")
    assert [message.text for message in result.messages] == [message.text for message in expected.messages]


async def test_a_kept_call_next_is_refused_when_the_call_is_over(ran: Ran):
    model = ScriptedModel(calls("do", x=1), says("end"), says("never"))
    agent = Agent(model, tools=[ran.do])
    kept: list[Any] = []

    @agent.wrap(ModelCall)
    async def keep(request: Any, call_next: Any) -> Any:
        kept.append((call_next, request))
        return await call_next(request)

    @agent.wrap(ToolCall)
    async def keep_too(call: ToolCall, call_next: Any) -> Any:
        kept.append((call_next, call))
        return await call_next(call)

    await agent.run("go")
    assert len(kept) == 3
    for call_next, value in kept:
        with pytest.raises(HookError, match="over"):
            await call_next(value)
    assert len(model.requests) == 2
    assert ran.calls == [1]


async def test_steering_that_comes_during_the_last_reply_is_heard_in_this_turn():
    answered: list[str] = []

    async def talk(request: Any) -> Any:
        answered.append(request.messages[-1].text)
        if len(answered) == 1:
            await agent.steer("s", "and in French?")
        return says(f"reply {len(answered)}")

    agent = Agent(FunctionModel(talk))
    result = await agent.run("hello", session="s")
    assert answered == ["hello", "and in French?"]
    assert result.text == "reply 2"


async def test_a_store_that_fails_is_the_outcome_of_the_turn_and_nothing_is_acknowledged(ran: Ran):
    class Full(MemoryStore):
        durable = True

        async def append(self, session: str, records: Any, expected: int, claim: Any = None) -> bool:
            if expected:
                raise OSError("disk full")
            return await super().append(session, records, expected, claim)

    store = Full()
    result = await Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do], store=store).run(
        "go", session="s"
    )
    assert isinstance(result.outcome, Failed)
    assert "disk full" in result.outcome.error.message
    assert isinstance(result.error, StoreError)
    assert len(await store.read("s")) < result.state.seq


async def test_a_shadow_that_is_too_slow_is_given_up_and_says_so():
    agent = Agent(ScriptedModel(says("hi")), observer_patience=0.05)

    @agent.gate(ModelCalling, mode="shadow")
    async def slow(event: ModelCalling) -> None:
        await asyncio.sleep(60)

    await agent.run("go", session="s")
    failed = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert [(record.hook, record.effect) for record in failed] == [("slow", "shadow")]


async def test_a_gate_that_is_asked_again_on_resume_cannot_loosen_what_held_by_default(ran: Ran):
    def build(store: MemoryStore, *script: Any) -> Agent:
        return Agent(ScriptedModel(*script), tools=[ran.do], store=store, unmatched="deny")

    whole = MemoryStore()
    await build(whole, calls("do", x=1), says("end")).run("go", session="s")
    log = list(await whole.read("s"))
    decided = next(i for i, record in enumerate(log) if type(record).__name__ == "ToolDecided")
    left = MemoryStore()
    await left.append("s", log[: decided + 1], 0)
    later = build(left, says("end"))
    later.gate(ToolCalling, on_resume="rerun")(lambda event: Allow())
    await later.resume("s")
    assert ran.calls == []


@pytest.mark.parametrize("gated", [False, True])
async def test_whether_a_gate_has_spoken_makes_no_difference_to_a_limit(gated: bool):
    model = ScriptedModel(says("hi"))
    agent = Agent(model, criteria=[ActiveTimeLimit(0)])
    if gated:
        agent.gate(StepStarting)(lambda event: Allow())
    result = await agent.run("go")
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert model.requests == []


async def test_a_question_about_going_on_that_expired_is_answered_by_its_default(ran: Ran):
    agent = Agent(ScriptedModel(calls("do", x=1), says("end")), tools=[ran.do])
    agent.gate(ToolCalling)(lambda event: Ask("sure?"))
    agent.gate(Resuming)(lambda event: Ask("has nothing changed?", expires=0))
    await agent.run("go", session="s")
    again = await agent.resume("s", answers={"s/1/1": Approve()})
    assert isinstance(again.outcome, Suspended)
    result = await agent.resume("s")
    assert result.outcome == Stopped(StopReason.HALTED, "The question expired.")
    answers = [record.by for record in await agent.store.read("s") if type(record).__name__ == "Answered"]
    assert answers == ["", "default"]  # the first is kept, though the turn could not go on then
    assert ran.calls == []


async def test_what_a_hook_adds_before_the_turn_is_in_the_first_request():
    model = ScriptedModel(says("hi"))
    agent = Agent(model)

    @agent.gate(SessionStarting)
    def greet(event: SessionStarting, turn: Any) -> None:
        turn.add("the office is closed")

    await agent.run("go")
    assert [message.text for message in model.requests[0].messages] == ["go", "the office is closed"]
