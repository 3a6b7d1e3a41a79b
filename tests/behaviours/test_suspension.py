"""Suspension: questions are durable, answers are single-use, and what was interrupted is never silently repeated."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from tests.logs import SESSION, crashed_after, find, log_of
from tests.ran import Ran

from windlass import (
    Agent,
    Allow,
    Answered,
    Approve,
    Ask,
    Asked,
    Completed,
    Continuing,
    Deny,
    Edit,
    Halt,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    NotDone,
    Regenerate,
    Reject,
    Respond,
    Resuming,
    SessionStarting,
    StepEnded,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    Suspended,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    ToolReturning,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Vote,
    tool,
)
from windlass.errors import NotSuspended, StaleAnswer, UnsafeRetry
from windlass.records import Record
from windlass.stores import MemoryStore
from windlass.testing import HookTrace, ScriptedModel, calls, says, without_times


def one_call(*more: Any) -> ScriptedModel:
    return ScriptedModel(calls("send", to="ann"), *(more or (says("done"),)))


def asking(ran: Ran, *more: Any, ask: Ask | None = None, **options: Any) -> Agent[Any, Any]:
    """An agent whose calls all have to be approved."""
    agent: Agent[Any, Any] = Agent(one_call(*more), tools=ran.tools, **options)
    agent.gate(ToolCalling, name="asks")(lambda event: ask or Ask("May it?"))
    return agent


def paired(result: Any) -> bool:
    """Whether every call of the transcript has its result right after it."""
    messages = list(result.messages)
    for index, message in enumerate(messages):
        if wanted := [call.id for call in message.tool_calls]:
            after = messages[index + 1] if index + 1 < len(messages) else None
            if after is None or after.role != "tool" or [part.call_id for part in after.parts] != wanted:
                return False
    return True


# ---------------------------------------------------------------- Ask at every event that takes it

ASKABLE = [TurnStarting, ModelCalling, ModelReplying, ToolCalling, TurnEnding]


async def suspended_at(event: Any, ran: Ran, ask: Ask | None = None) -> tuple[Agent[Any, Any], ScriptedModel, Asked]:
    """An agent whose turn waits at an event, once."""
    model = ScriptedModel(calls("send", to="ann"), says("done"), says("done again"))
    agent: Agent[Any, Any] = Agent(model, tools=ran.tools)
    agent.gate(event, name="asks")(lambda event: ask or Ask("May it?"))
    result = await agent.run("go", session=SESSION)
    while event in (ModelCalling, ModelReplying) and len(await find(agent, Asked)) < 2:
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    assert isinstance(result.outcome, Suspended)
    assert result.stop_reason is StopReason.SUSPENDED
    (asked,) = result.waiting_for
    return agent, model, asked


@pytest.mark.parametrize("event", ASKABLE, ids=lambda event: event.__name__)
async def test_an_ask_suspends_the_turn_and_says_what_it_waits_for(event: Any, ran: Ran):
    """Behaviours 83b, 104: nothing happens until somebody answers, and the question says by whom and about what."""
    agent, model, asked = await suspended_at(event, ran)
    assert (asked.event, asked.question, asked.by) == (event.__name__, "May it?", ("asks",))
    before = (len(model.requests), list(ran.calls), await log_of(agent))
    again = await agent.resume(SESSION)
    assert isinstance(again.outcome, Suspended)
    assert [question.id for question in again.waiting_for] == [asked.id]
    assert (len(model.requests), ran.calls) == before[:2]


@pytest.mark.parametrize("event", ASKABLE, ids=lambda event: event.__name__)
async def test_an_approved_question_lets_the_turn_go_on_as_it_stood(event: Any, ran: Ran):
    """Behaviours 83b, 104: the same result as without the question, nothing done twice."""
    agent, model, asked = await suspended_at(event, ran)
    result = await agent.resume(SESSION, answers={asked.id: Approve()})
    assert result.outcome == Completed()
    assert result.text == "done"
    assert len(model.requests) == 2
    assert ran.calls == ["ann"]
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_rejected_turn_is_halted(ran: Ran):
    """Behaviour 83c: TurnStarting: a Reject is a Halt; no model is asked and the message does not enter."""
    agent, model, asked = await suspended_at(TurnStarting, ran)
    result = await agent.resume(SESSION, answers={asked.id: Reject("not now")})
    assert result.outcome == Stopped(StopReason.HALTED, "not now")
    assert model.requests == []
    assert len(result.messages) == 0


async def test_a_rejected_request_is_halted(ran: Ran):
    """Behaviour 83c: ModelCalling: a Reject is a Halt; the request does not leave."""
    agent, model, asked = await suspended_at(ModelCalling, ran)
    result = await agent.resume(SESSION, answers={asked.id: Reject("too dear")})
    assert result.outcome == Stopped(StopReason.HALTED, "too dear")
    assert len(model.requests) == 1
    assert paired(result)


async def test_a_rejected_reply_is_regenerated(ran: Ran):
    """Behaviour 83c: ModelReplying: a Reject is a Regenerate with the person's words as feedback."""
    agent, model, asked = await suspended_at(ModelReplying, ran)
    result = await agent.resume(SESSION, answers={asked.id: Reject("be kinder")})
    assert isinstance(result.outcome, Suspended), "the next reply is asked about, too"
    assert "be kinder" in model.requests[2].messages[-1].text
    (again,) = result.waiting_for
    assert again.id != asked.id
    done = await agent.resume(SESSION, answers={again.id: Approve()})
    assert done.text == "done again"
    assert "done" not in [message.text for message in done.messages]


async def test_a_rejected_call_is_denied_and_the_model_reads_why(ran: Ran):
    """Behaviour 83c: ToolCalling: a Reject is a Deny; the model goes on."""
    agent, model, asked = await suspended_at(ToolCalling, ran)
    result = await agent.resume(SESSION, answers={asked.id: Reject("not to ann")})
    assert result.outcome == Completed()
    assert ran.calls == []
    part = model.requests[1].messages[-1].parts[0]
    assert part.status == "denied"
    assert "not to ann" in part.text


async def test_a_call_rejected_without_a_word_tells_the_model_not_to_retry(ran: Ran):
    """Behaviour 83c: without a message the model is told not to try again."""
    agent, model, asked = await suspended_at(ToolCalling, ran)
    await agent.resume(SESSION, answers={asked.id: Reject()})
    assert "not try it again" in model.requests[1].messages[-1].parts[0].text


async def test_a_rejected_answer_is_withheld(ran: Ran):
    """Behaviour 83c: TurnEnding: a Reject is a Deny: the text is not handed out."""
    agent, _, asked = await suspended_at(TurnEnding, ran)
    result = await agent.resume(SESSION, answers={asked.id: Reject("not like this")})
    assert result.outcome == Stopped(StopReason.WITHHELD, "not like this")
    assert result.text == ""


@pytest.mark.parametrize("event", ASKABLE, ids=lambda event: event.__name__)
async def test_a_person_may_respond_in_place_of_what_was_asked_about(event: Any, ran: Ran):
    """Behaviour 83c: the text stands for the answer, the reply or the result; what it replaces does not happen."""
    agent, model, asked = await suspended_at(event, ran)
    requests = len(model.requests)
    result = await agent.resume(SESSION, answers={asked.id: Respond("said by a person")})
    assert result.outcome == Completed()
    if event is ToolCalling:
        part = model.requests[1].messages[-1].parts[0]
        assert (part.status, part.text) == ("responded", "said by a person")
        assert ran.calls == []
        assert result.text == "done"
    else:
        assert result.text == "said by a person"
        assert len(model.requests) == requests


async def test_an_edited_call_runs_with_the_edited_arguments_under_its_id(ran: Ran):
    """Behaviour 109: what a person wrote is what runs, and the transcript has both: what was proposed, what ran."""
    agent, model, asked = await suspended_at(ToolCalling, ran)
    result = await agent.resume(SESSION, answers={asked.id: Edit({"to": "bob"})})
    assert result.outcome == Completed()
    assert ran.calls == ["bob"]
    *_, proposed, answered = model.requests[1].messages
    assert proposed.tool_calls[0].json == asked.call.json
    [part] = answered.parts
    note = '[Before this call ran, a person changed its arguments to {"to":"bob"}]\n'
    assert (part.call_id, part.text) == (asked.id, f"{note}sent to bob")


@pytest.mark.parametrize("event", [TurnStarting, ModelCalling, ModelReplying, TurnEnding], ids=lambda e: e.__name__)
async def test_only_a_call_can_be_edited(event: Any, ran: Ran):
    """Behaviour 83c: where there are no arguments an Edit is not among the answers and is refused."""
    agent, model, asked = await suspended_at(event, ran)
    assert "edit" not in asked.allow
    requests = len(model.requests)
    with pytest.raises(StaleAnswer, match="edit"):
        await agent.resume(SESSION, answers={asked.id: Edit({"to": "bob"})})
    assert len(model.requests) == requests


# ---------------------------------------------------------------- Resuming


def checked_for_drift(ran: Ran) -> Agent[Any, Any]:
    agent = asking(ran)
    agent.gate(Resuming, name="drift")(lambda event: Ask("The price has changed. Still?"))
    return agent


async def test_resuming_may_ask_again_and_then_stays_suspended(ran: Ran):
    """Behaviour 83b: an answer does not release the call while the drift is not accepted."""
    agent = checked_for_drift(ran)
    first = await agent.run("go", session=SESSION)
    (asked,) = first.waiting_for
    result = await agent.resume(SESSION, answers={asked.id: Approve()})
    assert isinstance(result.outcome, Suspended)
    assert ran.calls == []
    assert "The price has changed. Still?" in [question.question for question in result.waiting_for]


async def test_an_approved_drift_lets_the_turn_go_on(ran: Ran):
    """Behaviour 83b: approved, the turn goes on with the other answers."""
    agent = checked_for_drift(ran)
    await agent.run("go", session=SESSION)
    waiting = (await agent.resume(SESSION)).waiting_for
    assert {asked.event for asked in waiting} == {"ToolCalling", "Resuming"}
    result = await agent.resume(SESSION, answers={asked.id: Approve() for asked in waiting})
    assert result.outcome == Completed()
    assert ran.calls == ["ann"]


async def test_a_rejected_drift_halts_the_turn_and_closes_its_calls(ran: Ran):
    """Behaviours 83b, 83c: a person may stop the turn there; nothing runs and no call is left open."""
    agent = checked_for_drift(ran)
    await agent.run("go", session=SESSION)
    waiting = (await agent.resume(SESSION)).waiting_for
    (drift,) = [asked for asked in waiting if asked.event == "Resuming"]
    result = await agent.resume(SESSION, answers={drift.id: Reject("then not")})
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.HALTED
    assert "then not" in result.outcome.detail
    assert ran.calls == []
    assert paired(result)
    returned = await find(agent, ToolReturned)
    assert [record.call for record in returned] == ["s1/1/1"], "every open call is closed, however a turn ends"


async def test_a_drift_cannot_be_answered_by_a_response(ran: Ran):
    """Behaviour 83c: there is nothing a text could stand for, so that answer is not offered."""
    agent = checked_for_drift(ran)
    await agent.run("go", session=SESSION)
    waiting = (await agent.resume(SESSION)).waiting_for
    (drift,) = [asked for asked in waiting if asked.event == "Resuming"]
    assert set(drift.allow) == {"approve", "reject"}


async def test_a_halt_on_resuming_ends_the_turn_and_closes_its_calls(ran: Ran):
    """Behaviours 83b, 83c: Halt over Ask over Allow; no transcript is left with a call without a result."""
    agent = asking(ran)
    agent.gate(Resuming)(lambda event: Halt("the deal is off"))
    first = await agent.run("go", session=SESSION)
    result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    assert result.outcome == Stopped(StopReason.HALTED, "the deal is off")
    assert ran.calls == []
    assert [record.call for record in await find(agent, ToolReturned)] == ["s1/1/1"]


@pytest.mark.parametrize("answer", [Allow(), Halt("the deal is off")], ids=repr)
async def test_what_was_decided_on_resuming_is_in_the_log(answer: Any, ran: Ran):
    """Behaviour 84: every decision is recorded with its hook's name, that on a resume too."""
    agent = asking(ran)
    agent.gate(Resuming, name="drift")(lambda event: answer)
    first = await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    rows = HookTrace(await log_of(agent)).of("Resuming")
    assert rows == [("Resuming", "drift", type(answer).__name__)]


# ---------------------------------------------------------------- several questions


def three_asked(ran: Ran, store: Any = None) -> Agent[Any, Any]:
    three = [("send", {"to": "ann"}), ("send", {"to": "bob"}), ("send", {"to": "cid"})]
    agent: Agent[Any, Any] = Agent(ScriptedModel(calls(three), says("done")), tools=ran.tools, store=store)
    agent.gate(ToolCalling, name="asks")(lambda event: Ask(f"To {event.call.arguments['to']}?"))
    return agent


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
async def test_several_questions_are_answered_one_by_one_in_any_order(order: tuple[int, ...], ran: Ran):
    """Behaviours 83b, 108: each answer releases its own call at once, results enter in the order of the calls."""
    people = {1: "ann", 2: "bob", 3: "cid"}
    agent = three_asked(ran)
    result = await agent.run("go", session=SESSION)
    assert [asked.id for asked in result.waiting_for] == ["s1/1/1", "s1/1/2", "s1/1/3"]
    for count, number in enumerate(order, 1):
        result = await agent.resume(SESSION, answers={f"s1/1/{number}": Approve()})
        assert ran.calls == [people[n] for n in order[:count]]
        if count < 3:
            assert isinstance(result.outcome, Suspended)
            assert [asked.id for asked in result.waiting_for] == sorted(f"s1/1/{n}" for n in order[count:])
            assert [message.role for message in result.messages] == ["user"]
    assert result.outcome == Completed()
    assert [part.text for part in result.messages[2].parts] == ["sent to ann", "sent to bob", "sent to cid"]


async def test_several_questions_may_be_answered_at_once_and_differently(ran: Ran):
    """Behaviours 83b, 108: approve, reject and respond in one resume."""
    agent = three_asked(ran)
    await agent.run("go", session=SESSION)
    result = await agent.resume(
        SESSION, answers={"s1/1/3": Respond("cid knows"), "s1/1/1": Approve(), "s1/1/2": Reject("not bob")}
    )
    assert result.outcome == Completed()
    assert ran.calls == ["ann"]
    assert [part.status for part in result.messages[2].parts] == ["ok", "denied", "responded"]


async def test_another_process_may_take_the_answers(ran: Ran):
    """Behaviour 83b: the question is in the log, not in the process that put it."""
    first = three_asked(ran)
    await first.run("go", session=SESSION)
    log = await log_of(first)
    store = MemoryStore()
    await store.append(SESSION, log, 0)
    other = Agent(ScriptedModel(says("done")), tools=ran.tools, store=store)
    other.gate(ToolCalling, name="asks")(lambda event: Ask("again?"))
    result = await other.resume(SESSION, answers={f"s1/1/{n}": Approve() for n in (1, 2, 3)})
    assert result.outcome == Completed()
    assert sorted(ran.calls) == ["ann", "bob", "cid"]


# ---------------------------------------------------------------- answers that do not fit


async def refused(agent: Agent[Any, Any], answers: dict[str, Any], ran: Ran) -> StaleAnswer:
    """The error of an answer that does not fit; nothing ran and nothing was written."""
    before, calls_before = await log_of(agent), list(ran.calls)
    with pytest.raises(StaleAnswer) as caught:
        await agent.resume(SESSION, answers=answers)
    assert ran.calls == calls_before
    assert await log_of(agent) == before
    assert caught.value.session == SESSION
    return caught.value


async def test_an_answer_to_an_unknown_question_is_refused_and_nothing_runs(ran: Ran):
    """Behaviours 83b, 109: the error names the question and says which are open."""
    agent = asking(ran)
    await agent.run("go", session=SESSION)
    error = await refused(agent, {"s1/9/9": Approve()}, ran)
    assert error.ask_id == "s1/9/9"
    assert "s1/1/1" in str(error)


async def test_one_wrong_answer_voids_the_right_ones_beside_it(ran: Ran):
    """Behaviours 83b, 109: all answers are checked before any is taken."""
    agent = three_asked(ran)
    await agent.run("go", session=SESSION)
    await refused(agent, {"s1/1/1": Approve(), "s1/1/9": Approve()}, ran)
    result = await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert ran.calls == ["ann"]
    assert isinstance(result.outcome, Suspended)


@pytest.mark.parametrize("answer", [Edit({"to": "bob"}), Respond("no need"), Approve()], ids=repr)
async def test_an_answer_that_the_question_does_not_allow_is_refused_and_nothing_runs(answer: Any, ran: Ran):
    """Behaviours 83b, 109: the error lists what is allowed."""
    agent = asking(ran, ask=Ask("May it?", allow=("reject",)))
    await agent.run("go", session=SESSION)
    error = await refused(agent, {"s1/1/1": answer}, ran)
    assert "allowed: reject" in str(error)


async def test_something_that_is_no_answer_is_refused_and_nothing_runs(ran: Ran):
    """Behaviours 83b, 109: `True` is not an approval."""
    agent = asking(ran)
    await agent.run("go", session=SESSION)
    await refused(agent, {"s1/1/1": True}, ran)


async def test_a_question_is_answered_once(ran: Ran):
    """Behaviours 83b, 101, 109: a second answer is refused and nothing runs again."""
    agent = three_asked(ran)
    await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    await refused(agent, {"s1/1/1": Approve()}, ran)
    assert ran.calls == ["ann"]


async def test_an_answer_to_a_turn_that_is_over_is_refused(ran: Ran):
    """Behaviours 83b, 109: once the turn has ended there is nothing to resume."""
    agent = asking(ran)
    await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    with pytest.raises(NotSuspended):
        await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert ran.calls == ["ann"]


async def test_an_answer_by_somebody_who_may_not_answer_is_refused(ran: Ran):
    """Behaviours 83b, 109: approvers are named, and only they count."""
    agent = asking(ran, ask=Ask("May it?", approvers=("ann", "bob")))
    await agent.run("go", session=SESSION)
    await refused(agent, {"s1/1/1": Approve()}, ran)
    await refused(agent, {"s1/1/1": Approve(by="cid")}, ran)
    result = await agent.resume(SESSION, answers={"s1/1/1": Approve(by="bob")})
    assert result.outcome == Completed()
    assert [record.by for record in await find(agent, Answered)] == ["bob"]


async def test_an_answer_after_the_question_has_expired_is_refused_and_nothing_runs(ran: Ran, clock):
    """Behaviours 83b, 101, 109: an expired question takes no answer any more."""
    agent = asking(ran, ask=Ask("May it?", expires=60), clock=clock)
    await agent.run("go", session=SESSION)
    clock.tick(61)
    error = await refused(agent, {"s1/1/1": Approve()}, ran)
    assert "expired" in str(error)


async def test_an_answer_in_time_is_taken(ran: Ran, clock):
    """Behaviours 83b, 109: until then it does."""
    agent = asking(ran, ask=Ask("May it?", expires=60), clock=clock)
    await agent.run("go", session=SESSION)
    clock.tick(59)
    result = await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert result.outcome == Completed()
    assert ran.calls == ["ann"]


@pytest.mark.parametrize("default", ["reject", "approve"])
async def test_an_expired_question_is_answered_by_its_default(default: Any, ran: Ran, clock):
    """Behaviours 83b, 109: the default is taken at the next resume and recorded as such."""
    agent = asking(ran, ask=Ask("May it?", expires=60, default=default), clock=clock)
    await agent.run("go", session=SESSION)
    clock.tick(61)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == (["ann"] if default == "approve" else [])
    (answered,) = await find(agent, Answered)
    assert (answered.expired, answered.by) == (True, "default")


async def test_after_a_refused_answer_the_question_is_still_open(ran: Ran):
    """Behaviours 83b, 109: a wrong answer costs nothing but an exception."""
    agent = asking(ran)
    await agent.run("go", session=SESSION)
    await refused(agent, {"s1/9/9": Approve()}, ran)
    result = await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert result.outcome == Completed()
    assert ran.calls == ["ann"]


# ---------------------------------------------------------------- 109: edits


async def test_every_other_gate_judges_the_edited_call(ran: Ran):
    """Behaviour 109: an edit does not get round the gates that had nothing to ask."""
    agent = asking(ran)
    agent.gate(ToolCalling, name="no_bob")(lambda event: Deny("not bob") if "bob" in event.call.json else None)
    await agent.run("go", session=SESSION)
    result = await agent.resume(SESSION, answers={"s1/1/1": Edit({"to": "bob"})})
    assert result.outcome == Completed()
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "not bob" in returned.result.text


async def test_the_gate_that_asked_does_not_ask_again_about_what_the_person_wrote(ran: Ran):
    """Behaviour 109: one question, one edit, one execution; the gate may still refuse what the person wrote."""
    asked: list[str] = []
    judged: list[str] = []
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="asks")(lambda event: asked.append(event.call.json) or Ask("May it?"))
    agent.gate(ToolCalling, name="looks")(lambda event: judged.append(event.call.json))
    await agent.run("go", session=SESSION)
    result = await agent.resume(SESSION, answers={"s1/1/1": Edit({"to": "bob"})})
    assert result.outcome == Completed()
    assert asked == ['{"to":"ann"}', '{"to":"bob"}']
    assert judged == ['{"to":"ann"}', '{"to":"bob"}']
    assert ran.calls == ["bob"]


async def test_another_gate_may_ask_about_the_edited_call(ran: Ran):
    """Behaviour 109: then there is a new question, bound to the edited arguments."""
    agent = asking(ran)
    agent.gate(ToolCalling, name="about_bob")(lambda event: Ask("Bob?") if "bob" in event.call.json else None)
    first = await agent.run("go", session=SESSION)
    second = await agent.resume(SESSION, answers={"s1/1/1": Edit({"to": "bob"})})
    assert isinstance(second.outcome, Suspended)
    assert ran.calls == []
    (asked,) = second.waiting_for
    assert (asked.question, asked.by) == ("Bob?", ("about_bob",))
    assert asked.digest != first.waiting_for[0].digest
    assert asked.call is not None
    assert asked.call.arguments == {"to": "bob"}
    result = await agent.resume(SESSION, answers={asked.id: Approve()})
    assert result.outcome == Completed()
    assert ran.calls == ["bob"]


async def test_an_edited_call_still_falls_to_a_halt(ran: Ran):
    """Behaviour 109: the strictest answer of the others holds."""
    agent = asking(ran)
    agent.gate(ToolCalling, name="stop_bob")(lambda event: Halt("bob again") if "bob" in event.call.json else None)
    await agent.run("go", session=SESSION)
    result = await agent.resume(SESSION, answers={"s1/1/1": Edit({"to": "bob"})})
    assert result.outcome == Stopped(StopReason.HALTED, "bob again")
    assert ran.calls == []


async def test_an_approval_is_bound_to_the_digest_that_was_reviewed(ran: Ran):
    """Behaviours 101, 109: question, answer and decision carry the digest of the very arguments."""
    agent = asking(ran)
    first = await agent.run("go", session=SESSION)
    (asked,) = first.waiting_for
    await agent.resume(SESSION, answers={asked.id: Approve()})
    assert asked.call is not None
    assert asked.digest == asked.call.digest
    (answered,) = await find(agent, Answered)
    assert answered.digest == asked.digest
    assert [decided.digest for decided in await find(agent, ToolDecided)] == [asked.digest] * 2


# ---------------------------------------------------------------- 83b: a new message on a suspended session


async def test_a_new_message_on_a_suspended_session_closes_the_open_calls_first(ran: Ran):
    """Behaviour 83b: the model is never shown a call without a result, and the call never runs."""
    model = one_call(says("hello"))
    agent = Agent(model, tools=ran.tools)
    agent.gate(ToolCalling, name="asks")(lambda event: Ask("May it?"))
    await agent.run("go", session=SESSION)
    result = await agent.run("never mind", session=SESSION)
    assert result.outcome == Completed()
    assert result.text == "hello"
    assert ran.calls == []
    assert paired(result)
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert model.requests[1].messages[2].parts[0].status == "cancelled"


async def test_the_superseded_turn_has_an_outcome_of_its_own(ran: Ran):
    """Behaviour 83b: the log says how the first turn ended before it says that the second began."""
    agent = asking(ran, says("hello"))
    await agent.run("go", session=SESSION)
    await agent.run("never mind", session=SESSION)
    first, second = await find(agent, TurnEnded)
    assert isinstance(first.outcome, Stopped)
    assert first.outcome.reason is StopReason.SUPERSEDED
    assert second.outcome == Completed()


async def test_the_question_of_a_superseded_turn_cannot_be_answered_any_more(ran: Ran):
    """Behaviours 83b, 109: the answer comes too late, and nothing runs."""
    agent = asking(ran, says("hello"))
    await agent.run("go", session=SESSION)
    await agent.run("never mind", session=SESSION)
    with pytest.raises(NotSuspended):
        await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert ran.calls == []


async def test_a_superseded_turn_passes_its_ending_hooks(ran: Ran):
    """Behaviours 83a, 83b: StepEnding and TurnEnding run on every exit, this one too."""
    agent = asking(ran, says("hello"))
    seen: list[Any] = []
    agent.gate(StepEnding)(lambda event: seen.append(event.step.number))
    agent.gate(TurnEnding)(lambda event: seen.append(event.outcome))
    await agent.run("go", session=SESSION)
    await agent.run("never mind", session=SESSION)
    assert seen == [1, Stopped(StopReason.SUPERSEDED, "the user went on"), 2, Completed()]


async def test_of_a_call_that_was_started_no_new_message_says_that_it_did_not_run(ran: Ran):
    """Behaviours 83b, 99: the model reads that nobody knows, and nothing else."""
    agent, _ = await interrupted(calls("send", to="ann"), ran)
    result = await agent.run("never mind", session=SESSION)
    [told] = result.messages[2].parts
    assert told.status == "interrupted"
    assert "may or may not have happened" in told.text
    assert "not run" not in told.text
    assert ran.calls == []


async def test_finished_calls_of_a_superseded_step_keep_their_results(ran: Ran):
    """Behaviour 83b: what was done is told, what waited is closed."""
    agent = three_asked(ran)
    await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={"s1/1/2": Approve()})
    result = await agent.run("never mind", session=SESSION)
    assert [part.status for part in result.messages[2].parts] == ["cancelled", "ok", "cancelled"]
    assert ran.calls == ["bob"]


# ---------------------------------------------------------------- 84: one trace, whichever way


class Batches:
    """A durable store that remembers where each append ended: there a process may have died."""

    durable = True

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.ends: list[int] = []
        for name in (
            "read",
            "sessions",
            "put",
            "inbox",
            "cursor",
            "advance",
            "put_pipeline",
            "pipeline",
            "close",
            "passes",
            "ownership",
            "release",
            "unread",
        ):
            setattr(self, name, getattr(self.inner, name))

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        inbox = await self.inner.append(session, records, expected, claim)
        self.ends.append(expected + len(records))
        return inbox


def traced(model: ScriptedModel, store: Any) -> Agent[Any, Any]:
    """An agent with a hook of every verb on every event that a turn comes by."""

    @tool(effect="idempotent")
    async def take(what: str) -> str:
        """Take."""
        return f"took {what}"

    agent: Agent[Any, Any] = Agent(model, tools=[*Ran().tools, take], store=store, criteria=[StepLimit(9)])
    events = [
        SessionStarting, TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning,
        MessageAdding, StepEnding, Stopping, TurnEnding,
    ]  # fmt: skip
    for event in events:
        agent.gate(event, name=f"gate_{event.__name__}")(lambda event: Allow())
        if event.injects is not None:
            agent.inject(event, name=f"inject_{event.__name__}")(lambda event: "a note")
    agent.gate(Continuing, name="votes")(lambda event: Vote.ALLOW)
    agent.rewrite(TurnStarting, name="polite")(lambda event: f"{event.message.text}, please")
    agent.rewrite(ModelCalling, name="brief")(lambda event: event.request.replace(system="Be brief."))
    agent.rewrite(ToolCalling, name="lower")(lambda event: {"what": event.call.arguments["what"].lower()})
    agent.rewrite(ToolReturning, name="mark")(lambda event: f"[{event.result.text}]")
    agent.gate(ModelReplying, name="critic")(lambda event: Regenerate("no") if event.reply.text == "rude" else None)

    @agent.wrap(ModelCall)
    async def around_model(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    @agent.wrap(ToolCall)
    async def around_tool(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    return agent


SCRIPT = [
    calls([("look", {"what": "UP"}), ("take", {"what": "DOWN"})]),
    says("rude"),
    calls("take", what="AHEAD"),
    says("done"),
]


async def full_trace() -> tuple[HookTrace, Batches]:
    store = Batches()
    result = await traced(ScriptedModel(*SCRIPT), store).run("go", session=SESSION)
    assert result.outcome == Completed()
    return HookTrace(await store.inner.read(SESSION)), store


async def test_iterate_leaves_the_same_trace_of_hooks_as_run():
    """Behaviour 84: one loop: event, hook and decision are the same, row by row."""
    expected, _ = await full_trace()
    assert len(expected.rows) > 40
    agent = traced(ScriptedModel(*SCRIPT), MemoryStore())
    states = [state async for state in agent.iterate("go", session=SESSION)]
    assert states[-1].outcome == Completed()
    assert HookTrace(await log_of(agent)) == expected


async def test_run_in_another_thread_leaves_the_same_trace_of_hooks_as_run():
    """Behaviour 84: the synchronous form is the same loop again."""
    expected, _ = await full_trace()
    agent = traced(ScriptedModel(*SCRIPT), MemoryStore())
    assert agent.run_sync("go", session=SESSION).outcome == Completed()
    assert HookTrace(await log_of(agent)) == expected


async def test_a_turn_resumed_after_any_append_leaves_the_same_trace_of_hooks_as_run():
    """Behaviour 84: what is recorded is not asked again, what is not is asked once."""
    expected, store = await full_trace()
    log = await store.inner.read(SESSION)
    ends = [end for end in store.ends if end < len(log)]
    assert len(ends) > 5
    wrong: dict[str, Any] = {}
    for end in ends:
        left = MemoryStore()
        await left.append(SESSION, log[:end], 0)
        replied = sum(type(record).__name__ == "ModelReplied" for record in log[:end])
        agent = traced(ScriptedModel(*SCRIPT[replied:]), left)
        result = await agent.resume(SESSION)
        trace = HookTrace(await log_of(agent))
        if result.outcome != Completed() or trace != expected:
            wrong[f"after record {end}, {type(log[end - 1]).__name__}"] = (result.outcome, trace)
    assert wrong == {}


async def test_a_limit_that_was_reached_when_the_process_died_holds_for_the_one_that_resumes(ran: Ran):
    """Behaviours 84, 94: a step that ended without its vote is voted on before anything else happens."""
    first = Agent(ScriptedModel(calls("look", what="up")), tools=Ran().tools, criteria=[StepLimit(1)])
    await first.run("go", session=SESSION)
    model = ScriptedModel(calls("look", what="down"))
    store = await crashed_after(await log_of(first), StepEnded)
    agent = Agent(model, tools=ran.tools, criteria=[StepLimit(1)], store=store)
    result = await agent.resume(SESSION)
    assert result.stop_reason is StopReason.STEP_LIMIT
    assert model.requests == []
    assert ran.calls == []


async def test_a_turn_resumed_by_iterate_leaves_the_same_trace_of_hooks_as_one_resumed_by_resume(ran: Ran):
    """Behaviour 84: a suspended turn goes on the same way whoever goes on with it."""
    traces: list[HookTrace] = []
    for how in ("resume", "iterate"):
        agent = asking(Ran())
        agent.gate(ToolReturning, name="sees")(lambda event: Allow())
        await agent.run("go", session=SESSION)
        answers = {"s1/1/1": Approve()}
        if how == "resume":
            assert (await agent.resume(SESSION, answers=answers)).outcome == Completed()
        else:
            states = [state async for state in agent.iterate(session=SESSION, answers=answers)]
            assert states[-1].outcome == Completed()
        traces.append(HookTrace(await log_of(agent)))
    assert traces[0] == traces[1]
    assert ("ToolCalling", "asks", "Ask") in traces[0].rows


async def test_iterate_hands_over_the_state_after_every_step():
    """Behaviour 84: the last state carries the outcome; a log folded so far gives the state that was handed over."""
    agent = traced(ScriptedModel(*SCRIPT), MemoryStore())
    states = [state async for state in agent.iterate("go", session=SESSION)]
    assert [state.steps for state in states] == [1, 2, 3]
    assert [state.outcome for state in states] == [None, None, Completed()]


# ---------------------------------------------------------------- 99: interrupted calls


async def interrupted(reply: Any, ran: Ran, after: type = ToolCalled) -> tuple[Agent[Any, Any], ScriptedModel]:
    """An agent in a new process, and the log of one that died right after it had started a call."""
    first = Agent(ScriptedModel(reply, says("done")), tools=Ran().tools)
    await first.run("go", session=SESSION)
    store = await crashed_after(await log_of(first), after)
    model = ScriptedModel(says("done"))
    return Agent(model, tools=ran.tools, store=store), model


async def test_an_unsafe_call_that_was_started_is_not_run_again_and_its_outcome_is_unknown(ran: Ran):
    """Behaviour 99: the model is told that it may or may not have happened."""
    agent, model = await interrupted(calls("send", to="ann"), ran)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == []
    part = model.requests[0].messages[-1].parts[0]
    assert part.status == "interrupted"
    assert "unknown" in part.text


async def test_an_unsafe_call_that_was_started_is_not_run_again_whatever_a_wrap_does(ran: Ran):
    """Behaviours 99, 113: nor by a wrap that insists, in the process that resumes."""
    agent, model = await interrupted(calls("send", to="ann"), ran)

    @agent.wrap(ToolCall)
    async def insists(call: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next(call)
            except Exception:
                continue
        return "gave up"

    await agent.resume(SESSION)
    assert ran.calls == []
    assert model.requests[0].messages[-1].parts[0].status == "interrupted"


async def test_an_idempotent_call_that_was_started_is_run_again_with_the_same_key(ran: Ran):
    """Behaviour 99: the key is that of the call, before and after the crash."""
    before = Ran()
    first = Agent(ScriptedModel(calls("charge", amount=5), says("done")), tools=before.tools)
    await first.run("go", session=SESSION)
    agent, model = await interrupted(calls("charge", amount=5), ran)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == before.calls == [(5, "s1/1/1")]
    assert model.requests[0].messages[-1].parts[0].text == "charged"


@pytest.mark.parametrize(
    "reply", [calls("look", what="up"), calls("ping", to="up")], ids=["pure", "declared safe to retry"]
)
async def test_a_call_that_is_safe_to_repeat_is_run_again(reply: Any, ran: Ran):
    """Behaviour 99: a pure call that was started is simply made again."""
    agent, model = await interrupted(reply, ran)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == ["up"]
    assert model.requests[0].messages[-1].parts[0].status == "ok"


async def test_an_unsafe_call_that_was_decided_but_not_started_is_run_once(ran: Ran):
    """Behaviour 99: nothing is in doubt before the call was started."""
    agent, model = await interrupted(calls("send", to="ann"), ran, after=ToolDecided)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == ["ann"]
    assert model.requests[0].messages[-1].parts[0].status == "ok"


async def test_a_call_that_has_returned_is_not_run_again(ran: Ran):
    """Behaviour 99: what is recorded is not done again, whatever its class."""
    agent, model = await interrupted(calls("charge", amount=5), ran, after=ToolReturned)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert ran.calls == []
    assert model.requests[0].messages[-1].parts[0].text == "charged"


async def test_of_several_interrupted_calls_each_is_treated_by_its_class(ran: Ran):
    """Behaviour 99: the unsafe one is in doubt, the others run, results enter in the order of the calls."""
    three = [("send", {"to": "ann"}), ("charge", {"amount": 5}), ("look", {"what": "up"})]
    first = Agent(ScriptedModel(calls(three), says("done")), tools=Ran().tools)
    await first.run("go", session=SESSION)
    log = [record for record in await log_of(first) if not isinstance(record, ToolReturned)]
    last = max(index for index, record in enumerate(log) if isinstance(record, ToolCalled))
    store = MemoryStore()
    await store.append(SESSION, log[: last + 1], 0)
    model = ScriptedModel(says("done"))
    agent = Agent(model, tools=ran.tools, store=store)
    result = await agent.resume(SESSION)
    assert result.outcome == Completed()
    assert sorted(ran.calls, key=repr) == ["up", (5, "s1/1/2")] or sorted(ran.calls, key=repr) == [(5, "s1/1/2"), "up"]
    assert [part.status for part in result.messages[2].parts] == ["interrupted", "ok", "ok"]


# ---------------------------------------------------------------- 113: retries of unsafe calls


def flaky(error: Exception, **options: Any) -> tuple[Any, list[int]]:
    """An unsafe tool that fails the first time."""
    attempts: list[int] = []

    @tool(**options)
    async def act() -> str:
        """Act."""
        attempts.append(1)
        if len(attempts) == 1:
            if isinstance(error, TimeoutError):
                await asyncio.sleep(30)
            raise error
        return "acted"

    return act, attempts


def with_retries(agent: Agent[Any, Any], times: int = 3) -> list[Exception]:
    caught: list[Exception] = []

    @agent.wrap(ToolCall)
    async def retry(call: Any, call_next: Any) -> Any:
        for _ in range(times - 1):
            try:
                return await call_next(call)
            except Exception as error:
                caught.append(error)
        return await call_next(call)

    return caught


async def test_a_second_attempt_at_an_unsafe_call_that_timed_out_is_refused(ran: Ran):
    """Behaviour 113: it was started, so it is not made again, and the model reads that the outcome is unknown."""
    act, attempts = flaky(TimeoutError(), timeout=0.01)
    model = ScriptedModel(calls("act"), says("done"))
    agent = Agent(model, tools=[act])
    caught = with_retries(agent)
    result = await agent.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert attempts == [1]
    assert [type(error) for error in caught] == [TimeoutError, UnsafeRetry]
    part = model.requests[1].messages[-1].parts[0]
    assert part.status == "interrupted"
    assert "unknown" in part.text


async def test_a_second_attempt_is_made_if_the_tool_says_that_nothing_happened():
    """Behaviour 113: `NotDone` is the tool's word that the first attempt did nothing."""
    act, attempts = flaky(NotDone("no connection"))
    model = ScriptedModel(calls("act"), says("done"))
    agent = Agent(model, tools=[act])
    with_retries(agent)
    await agent.run("go")
    assert attempts == [1, 1]
    assert model.requests[1].messages[-1].parts[0].text == "acted"


@pytest.mark.parametrize("options", [{"retry": "safe"}, {"effect": "idempotent"}, {"effect": "pure"}], ids=repr)
async def test_a_second_attempt_is_made_if_the_tool_declares_it_safe(options: Any):
    """Behaviour 113: `retry="safe"`, idempotent and pure tools are tried again after a time-out."""
    act, attempts = flaky(TimeoutError(), timeout=0.01, **options)
    model = ScriptedModel(calls("act"), says("done"))
    agent = Agent(model, tools=[act])
    with_retries(agent)
    await agent.run("go")
    assert attempts == [1, 1]
    assert model.requests[1].messages[-1].parts[0].text == "acted"


async def test_a_second_attempt_at_an_unsafe_call_that_failed_is_refused():
    """Behaviour 113: an ordinary error does not say that nothing happened either."""
    act, attempts = flaky(RuntimeError("half done"))
    model = ScriptedModel(calls("act"), says("done"))
    agent = Agent(model, tools=[act])
    with_retries(agent)
    await agent.run("go")
    assert attempts == [1]
    assert model.requests[1].messages[-1].parts[0].status != "ok"


async def test_a_second_attempt_at_an_unsafe_call_that_succeeded_is_refused():
    """Behaviour 113: a wrap that calls twice for good measure does not send twice."""
    ran = Ran()
    model = one_call()
    agent = Agent(model, tools=ran.tools)

    @agent.wrap(ToolCall)
    async def twice(call: Any, call_next: Any) -> Any:
        await call_next(call)
        return await call_next(call)

    await agent.run("go")
    assert ran.calls == ["ann"]


async def test_an_unsafe_call_that_timed_out_without_a_wrap_is_of_unknown_outcome():
    """Behaviour 113: timed out after it was started means that nobody knows."""
    act, _ = flaky(TimeoutError(), timeout=0.01)
    model = ScriptedModel(calls("act"), says("done"))
    result = await Agent(model, tools=[act]).run("go")
    assert result.outcome == Completed()
    part = model.requests[1].messages[-1].parts[0]
    assert part.status == "interrupted"
    assert "unknown" in part.text


# ---------------------------------------------------------------- 104: a suspended turn and silent hooks


@pytest.mark.parametrize("event", ASKABLE, ids=lambda event: event.__name__)
async def test_silent_gates_beside_an_ask_do_not_change_the_question(event: Any, ran: Ran):
    """Behaviour 104: the question has the same id, digest and answers with twenty gates that say nothing."""
    _, _, alone = await suspended_at(event, ran)
    model = ScriptedModel(calls("send", to="ann"), says("done"))
    agent: Agent[Any, Any] = Agent(model, tools=Ran().tools)
    agent.gate(event, name="asks")(lambda event: Ask("May it?"))
    for number in range(20):
        agent.gate(event, name=f"silent{number}")(lambda event: None)
    result = await agent.run("go", session=SESSION)
    while event in (ModelCalling, ModelReplying) and len(await find(agent, Asked)) < 2:
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    (asked,) = result.waiting_for
    assert without_times(asked) == without_times(alone)


async def test_gates_are_asked_again_on_resume_unless_they_say_so(ran: Ran):
    """Behaviours 84, 104: as long as the call has not begun; `on_resume="reuse"` keeps what one said before."""
    asked: list[str] = []
    agent = asking(ran)
    agent.gate(ToolCalling, name="reused", on_resume="reuse")(lambda event: asked.append("reused"))
    agent.gate(ToolCalling, name="usual")(lambda event: asked.append("usual"))
    await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert asked == ["reused", "usual", "usual"]
    assert ran.calls == ["ann"]


async def test_a_gate_that_is_asked_again_on_resume_may_refuse_what_a_person_approved(ran: Ran):
    """Behaviour 83c: the strictest of old and new holds."""
    agent = asking(ran)
    changed: list[int] = []
    agent.gate(ToolCalling, name="rerun", on_resume="rerun")(lambda event: Deny("too late") if changed else None)
    await agent.run("go", session=SESSION)
    changed.append(1)
    await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert ran.calls == []


async def test_a_gate_that_is_new_since_the_suspension_is_asked_on_resume(ran: Ran):
    """Behaviours 83c, 84: a process with a further guard does not run what that guard refuses."""
    first = asking(ran)
    await first.run("go", session=SESSION)
    agent = Agent(ScriptedModel(says("done")), tools=ran.tools, store=first.store)
    agent.gate(ToolCalling, name="asks")(lambda event: Ask("May it?"))
    agent.gate(ToolCalling, name="new_guard", band="guard")(lambda event: Deny("new rules"))
    result = await agent.resume(SESSION, answers={"s1/1/1": Approve()})
    assert result.outcome == Completed()
    assert ran.calls == []
