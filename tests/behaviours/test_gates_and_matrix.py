"""Gates: the strictest wins whatever the order, failing ones fail as the matrix says, and nothing goes round them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from tests.logs import SESSION, find
from tests.ran import Ran

from windlass import (
    Agent,
    Allow,
    Answer,
    Approve,
    Ask,
    Compacting,
    Completed,
    Continuing,
    Delegating,
    Deny,
    Erring,
    ErrorPolicy,
    Finish,
    Halt,
    HookDecided,
    HookFailed,
    Ignore,
    MessageAdded,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Result,
    Resuming,
    Rewind,
    SessionStarting,
    Stage,
    StepEnding,
    StepStarting,
    Stopped,
    Stopping,
    StopReason,
    SubagentStopping,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
    Vote,
)
from windlass.decisions import Again, Fail
from windlass.errors import IllegalAnswer, RegistrationError, ServerError
from windlass.events import EVENTS
from windlass.testing import ScriptedModel, calls, says


def one_call(*more: Any) -> ScriptedModel:
    return ScriptedModel(calls("add", a=1), *(more or (says("done"),)))


def tool_texts(request: Any) -> list[str]:
    return [part.text for message in request.messages if message.role == "tool" for part in message.parts]


def roles(result: Result[Any]) -> list[str]:
    return [message.role for message in result.messages]


# ---------------------------------------------------------------- 87: a gate that fails


class Row(NamedTuple):
    """One row of the matrix in DESIGN section 3, as far as gates are concerned."""

    ranks: tuple[Any, ...]
    raised: Any
    rejected: Any


MATRIX: dict[type, Row] = {
    SessionStarting: Row((Halt, Allow), Halt, None),
    TurnStarting: Row((Halt, Ask, Answer, Allow), Halt, Halt),
    StepStarting: Row((Halt, Allow), Halt, None),
    Compacting: Row((Deny, Allow), Deny, None),
    ModelCalling: Row((Halt, Ask, Answer, Allow), Halt, Halt),
    ModelReplying: Row((Halt, Regenerate, Ask, Allow), Halt, Regenerate),
    ToolCalling: Row((Halt, Deny, Ask, Answer, Allow), Deny, Deny),
    Delegating: Row((Halt, Deny, Ask, Allow), Deny, Deny),
    ToolReturning: Row((Halt, Deny, Finish, Allow), Deny, None),
    MessageAdding: Row((Halt, Deny, Allow), Halt, None),
    StepEnding: Row((Halt, Rewind, Allow), Halt, None),
    Continuing: Row((Vote.FORBID, Vote.REQUEST, Vote.ALLOW_STOP, Vote.ALLOW), Vote.FORBID, None),
    Stopping: Row((Halt, Veto, Allow), None, None),
    SubagentStopping: Row((Halt, Veto, Allow), None, None),
    Resuming: Row((Halt, Ask, Allow), Ask, Halt),
    Erring: Row((Halt, Fail, Ignore, Again), Halt, None),
    TurnEnding: Row((Deny, Ask, Allow), Deny, Deny),
}
NEEDS_MORE_PARTS = {Compacting, Delegating, SubagentStopping}
"""Events that only compaction and sub-agents emit; their rows are checked here, their effects where they are made."""


class Told(NamedTuple):
    """What a turn with a broken gate came to."""

    agent: Agent[Any, Any]
    model: ScriptedModel
    result: Result[Any]
    ran: Ran


Break = Callable[[Agent[Any, Any], type], None]


def _raises(agent: Agent[Any, Any], event: type) -> None:
    @agent.gate(event)
    def broken(event: Any) -> Any:
        raise RuntimeError("boom")


def _raises_later(agent: Agent[Any, Any], event: type) -> None:
    @agent.gate(event)
    async def broken(event: Any, turn: Any) -> Any:
        await asyncio.sleep(0)
        raise RuntimeError("boom")


def _times_out(agent: Agent[Any, Any], event: type) -> None:
    @agent.gate(event, timeout=0.01)
    async def broken(event: Any) -> Any:
        await asyncio.sleep(30)


def _answers_illegally(agent: Agent[Any, Any], event: type) -> None:
    @agent.gate(event)
    def broken(event: Any) -> Any:
        return Again() if Again not in type(event).ranks else Veto("no")


def _answers_no_decision(agent: Agent[Any, Any], event: type) -> None:
    @agent.gate(event)
    def broken(event: Any) -> Any:
        return True


BREAKS = [_raises, _raises_later, _times_out, _answers_illegally, _answers_no_decision]


async def _turn(event: type, break_it: Break, ran: Ran) -> Told:
    """A turn that comes by the event with a gate that fails there."""
    if event is Erring:
        model = ScriptedModel(ServerError("the model is down"), says("never said"))
    else:
        model = one_call()
    agent: Agent[Any, Any] = Agent(model, tools=ran.tools, errors=ErrorPolicy.retrying(3, delay=0))
    break_it(agent, event)
    if event is Resuming:

        @agent.gate(ToolCalling)
        def ask_first(event: Any) -> Ask:
            return Ask("May it?")

        first = await agent.run("go", session=SESSION)
        assert isinstance(first.outcome, Suspended)
        result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    else:
        result = await agent.run("go", session=SESSION)
    return Told(agent, model, result, ran)


def halted_before_the_model(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.HALTED
    assert told.model.requests == []
    assert told.ran.calls == []
    return outcome.detail


def halted_after_the_reply(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.HALTED
    assert len(told.model.requests) == 1
    assert told.ran.calls == []
    assert "assistant" not in roles(told.result)
    return outcome.detail


def halted_after_the_step(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.HALTED
    assert len(told.model.requests) == 1
    assert told.ran.calls == [("add", 1)]
    return outcome.detail


def denied(told: Told) -> str:
    assert told.ran.calls == []
    assert told.result.outcome == Completed()
    (text,) = tool_texts(told.model.requests[1])
    return text


def withheld_result(told: Told) -> str:
    assert told.ran.calls == [("add", 1)]
    assert told.result.outcome == Completed()
    (text,) = tool_texts(told.model.requests[1])
    assert "added 1" not in text
    return text


def forbidden(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.FORBIDDEN
    assert len(told.model.requests) == 1
    return outcome.detail


def stop_stands_unreviewed(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Completed)
    assert told.result.text == "done"
    return ", ".join(outcome.unreviewed)


def stays_suspended(told: Told) -> str:
    assert isinstance(told.result.outcome, Suspended)
    assert told.ran.calls == []
    assert len(told.model.requests) == 1
    return "; ".join(asked.question for asked in told.result.waiting_for)


def halted_by_the_error(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.HALTED
    assert len(told.model.requests) == 1
    return outcome.detail


def withheld_answer(told: Told) -> str:
    outcome = told.result.outcome
    assert isinstance(outcome, Stopped)
    assert outcome.reason is StopReason.WITHHELD
    assert told.result.text == ""
    return outcome.detail


WHAT_HOLDS: dict[type, Callable[[Told], str]] = {
    SessionStarting: halted_before_the_model,
    TurnStarting: halted_before_the_model,
    StepStarting: halted_before_the_model,
    ModelCalling: halted_before_the_model,
    ModelReplying: halted_after_the_reply,
    ToolCalling: denied,
    ToolReturning: withheld_result,
    MessageAdding: halted_before_the_model,
    StepEnding: halted_after_the_step,
    Continuing: forbidden,
    Stopping: stop_stands_unreviewed,
    Resuming: stays_suspended,
    Erring: halted_by_the_error,
    TurnEnding: withheld_answer,
}


def test_the_matrix_of_the_design_has_a_row_for_every_event():
    """Behaviour 87: no event is without a row, and every row is tried out or waits for a later part."""
    assert set(MATRIX) == set(EVENTS)
    assert set(WHAT_HOLDS) | NEEDS_MORE_PARTS == set(EVENTS)


@pytest.mark.parametrize("event", MATRIX, ids=lambda event: event.__name__)
def test_every_event_carries_its_row_of_the_matrix(event: Any):
    """Behaviour 87: which answers are legal, strictest first, and what a failing gate or a Reject counts as."""
    row = MATRIX[event]
    assert event.ranks == row.ranks
    assert event.raised == row.raised
    if row.rejected is not None:
        assert event.rejected is row.rejected


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda fn: fn.__name__.strip("_"))
@pytest.mark.parametrize("event", WHAT_HOLDS, ids=lambda event: event.__name__)
async def test_a_gate_that_fails_is_closed_as_the_matrix_says_and_is_named(event: type, break_it: Break, ran: Ran):
    """Behaviour 87: raised, timed out or answered illegally: the row's column holds and the reason names the gate."""
    told = await _turn(event, break_it, ran)
    assert "broken" in WHAT_HOLDS[event](told)


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda fn: fn.__name__.strip("_"))
@pytest.mark.parametrize("event", WHAT_HOLDS, ids=lambda event: event.__name__)
async def test_a_gate_that_fails_leaves_a_fact_in_the_log(event: type, break_it: Break, ran: Ran):
    """Behaviour 87: the failure is a record that names hook, event and error."""
    told = await _turn(event, break_it, ran)
    failed = (await find(told.agent, HookFailed))[0]
    assert (failed.hook, failed.event) == ("broken", event.__name__)
    kind = {_raises: "RuntimeError", _raises_later: "RuntimeError", _times_out: "HookTimeout"}
    assert failed.error.type == kind.get(break_it, "IllegalAnswer")


async def test_an_illegal_answer_says_what_would_have_been_legal(ran: Ran):
    """Behaviours 87, 105: an answer that its event cannot take is refused when it is given, naming hook and answers."""
    agent = Agent(one_call(), tools=ran.tools)
    _answers_illegally(agent, ToolCalling)
    result = await agent.run("go", session=SESSION)
    (failed,) = await find(agent, HookFailed)
    for word in ("broken", "Again", "ToolCalling", "Halt, Deny, Ask, Answer, Allow"):
        assert word in failed.error.message
    assert result.outcome == Completed()


async def test_one_broken_gate_does_not_silence_a_stricter_one(ran: Ran):
    """Behaviour 87: a gate that failed counts as an answer; a stricter answer of another still wins."""
    agent = Agent(one_call(), tools=ran.tools)
    _raises(agent, ToolCalling)

    @agent.gate(ToolCalling)
    def stop_all(event: Any) -> Halt:
        return Halt("enough")

    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "enough")


async def test_an_allow_cannot_open_what_a_broken_gate_closed(ran: Ran):
    """Behaviour 87: `Allow` beside a gate that failed does not run the tool."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: Allow())
    _raises(agent, ToolCalling)
    await agent.run("go")
    assert ran.calls == []


async def test_a_critic_that_may_fail_leaves_the_outcome_unreviewed(ran: Ran):
    """Behaviour 87: `on_error="unreviewed"` on ModelReplying lets the reply pass and marks the outcome."""
    agent = Agent(ScriptedModel(says("hello")), tools=ran.tools)

    @agent.gate(ModelReplying, on_error="unreviewed", timeout=0.01)
    async def critic(event: Any) -> Any:
        await asyncio.sleep(30)

    result = await agent.run("go")
    assert result.outcome == Completed(unreviewed=("critic",))
    assert result.text == "hello"


async def test_a_plain_gate_in_a_thread_is_timed_out_too(ran: Ran):
    """Behaviour 87: a time-out on a plain function works in a thread and closes as ever."""
    import threading

    release = threading.Event()
    agent = Agent(one_call(), tools=ran.tools)

    @agent.gate(ToolCalling, timeout=0.01, thread=True)
    def slow(event: Any) -> None:
        release.wait(50)

    try:
        await agent.run("go", session=SESSION)
    finally:
        release.set()
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert "slow" in returned.result.text


# ---------------------------------------------------------------- 85: order cannot matter

ANSWERS: dict[str, Any] = {
    "allows": lambda event: Allow(),
    "answers": lambda event: Answer("from the cache"),
    "asks": lambda event: Ask("May it?"),
    "denies": lambda event: Deny("no"),
    "denies_too": lambda event: Deny("never"),
    "halts": lambda event: Halt("enough"),
    "is_silent": lambda event: None,
}


async def verdict_of(names: Sequence[str]) -> Any:
    agent = Agent(one_call(), tools=Ran().tools)
    for name in names:
        agent.gate(ToolCalling, name=name)(ANSWERS[name])
    await agent.run("go", session=SESSION)
    return (await find(agent, ToolDecided))[0].verdict


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("allows", "is_silent"), Allow()),
        (("allows", "answers", "is_silent"), Answer("from the cache")),
        (("allows", "answers", "asks"), Ask("May it?")),
        (("allows", "answers", "asks", "denies"), Deny("no")),
        (("denies", "asks", "denies_too"), Deny("no; never")),
        (("allows", "denies", "asks", "halts"), Halt("enough")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple) else "+".join(value),
)
async def test_the_strictest_gate_wins_in_every_order(names: tuple[str, ...], expected: Any):
    """Behaviour 85: gates in any permutation give the same verdict, reasons included."""
    for order in itertools.permutations(names):
        assert await verdict_of(order) == expected, order


async def test_all_gates_are_asked_even_if_one_has_refused(ran: Ran):
    """Behaviour 85: no gate is spared by the answer of another, so registering order shows nowhere."""
    asked: list[str] = []
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="first")(lambda event: asked.append("first") or Deny("no"))
    agent.gate(ToolCalling, name="second")(lambda event: asked.append("second") or Halt("no"))
    agent.gate(ToolCalling, name="third")(lambda event: asked.append("third"))
    await agent.run("go", session=SESSION)
    assert asked == ["first", "second", "third"]
    (decided,) = await find(agent, ToolDecided)
    assert dict(decided.answers) == {"first": Deny("no"), "second": Halt("no")}


@pytest.mark.parametrize("order", list(itertools.permutations(["Halt", "Answer", "Allow"])))
async def test_the_order_of_gates_on_a_model_call_does_not_matter(order: tuple[str, ...]):
    """Behaviour 85: the same holds for an event that is not about a tool."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model)
    answers = {"Halt": Halt("enough"), "Answer": Answer("cached"), "Allow": Allow()}
    for name in order:
        agent.gate(ModelCalling, name=name)(lambda event, answer=answers[name]: answer)
    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "enough")
    assert model.requests == []


async def test_a_gate_judges_the_payload_as_a_rewrite_registered_after_it_left_it(ran: Ran):
    """Behaviour 85: rewrites come first, whatever was registered first."""
    seen: list[int] = []
    agent = Agent(one_call(), tools=ran.tools)

    @agent.gate(ToolCalling, band="early", priority=100)
    def no_big_numbers(event: Any) -> Deny | None:
        seen.append(event.call.arguments["a"])
        return Deny("too big") if event.call.arguments["a"] > 100 else None

    @agent.rewrite(ToolCalling)
    def make_it_big(event: Any) -> Any:
        return event.call.replace(arguments={"a": 1000})

    await agent.run("go")
    assert seen == [1000]
    assert ran.calls == []


async def test_a_gate_on_a_request_judges_what_will_leave():
    """Behaviour 85: the request a gate sees is the one the model gets."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model, system="Be kind.")
    judged: list[Any] = []
    agent.gate(ModelCalling)(lambda event: judged.append(event.request))
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(system="Be brief."))
    await agent.run("go")
    assert [request.system for request in judged] == ["Be brief."]
    assert model.requests[0].system == "Be brief."


async def test_an_allow_said_before_a_later_rewrite_does_not_count(ran: Ran):
    """Behaviour 85: `Says(decision=Allow())` is void once the payload has changed; a refusal stands."""
    agent = Agent(one_call(), tools=ran.tools, unmatched="deny")
    agent.hook(ToolCalling, name="approves_one")(lambda event: Allow())
    agent.rewrite(ToolCalling)(lambda event: event.call.replace(arguments={"a": 2}))
    await agent.run("go")
    assert ran.calls == []


# ---------------------------------------------------------------- 83c: a rejected call never runs


def _finish(agent: Agent[Any, Any]) -> None:
    agent.gate(ToolReturning)(lambda event: Finish("all done"))


def _allow(agent: Agent[Any, Any]) -> None:
    agent.gate(ToolCalling, name="allows", band="guard")(lambda event: Allow())


def _answer(agent: Agent[Any, Any]) -> None:
    agent.gate(ToolCalling, name="answers")(lambda event: Answer("cached"))


def _wrap(agent: Agent[Any, Any]) -> None:
    @agent.wrap(ToolCall)
    async def insist(call: Any, call_next: Any) -> Any:
        return await call_next(call)


def _rewrite(agent: Agent[Any, Any]) -> None:
    agent.rewrite(ToolCalling)(lambda event: event.call.replace(arguments={"a": 7}))


def _rewind(agent: Agent[Any, Any]) -> None:
    agent.gate(StepEnding)(lambda event: Rewind(1, "again") if event.step.number == 1 else None)


def _veto(agent: Agent[Any, Any]) -> None:
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("go on"))


def _request(agent: Agent[Any, Any]) -> None:
    agent.gate(Continuing)(lambda event: Vote.REQUEST if event.turn.steps < 2 else None)


ROUTINGS = [_finish, _allow, _answer, _wrap, _rewrite, _rewind, _veto, _request]


@pytest.mark.parametrize("route", ROUTINGS, ids=lambda fn: fn.__name__.strip("_"))
@pytest.mark.parametrize("how", ["gate", "person"])
async def test_a_rejected_call_never_runs_wherever_other_hooks_route_the_turn(
    how: str, route: Callable[[Agent[Any, Any]], None], ran: Ran
):
    """Behaviour 83c: reject plus any other hook's routing: the call is never executed."""
    agent = Agent(one_call(*[says(f"done {n}") for n in range(4)]), tools=ran.tools)
    agent.gate(ToolCalling, name="refuses")(lambda event: Deny("no") if how == "gate" else Ask("May it?"))
    route(agent)
    result = await agent.run("go", session=SESSION)
    if how == "person":
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Reject("no")})
    assert ran.calls == []
    assert not isinstance(result.outcome, Suspended)
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"


@pytest.mark.parametrize("route", ROUTINGS, ids=lambda fn: fn.__name__.strip("_"))
async def test_a_call_of_a_rejected_reply_never_runs(route: Callable[[Agent[Any, Any]], None], ran: Ran):
    """Behaviour 83c: the calls of a reply that was sent back are never proposed, whatever other hooks do."""
    agent = Agent(one_call(*[says(f"done {n}") for n in range(4)]), tools=ran.tools)
    agent.gate(ModelReplying)(lambda event: Regenerate("no tools") if event.reply.tool_calls else None)
    route(agent)
    await agent.run("go", session=SESSION)
    assert ran.calls == []
    assert await find(agent, ToolDecided) == []


# ---------------------------------------------------------------- 105: refused at registration

ILLEGAL: dict[type, type] = {
    SessionStarting: Deny,
    TurnStarting: Deny,
    StepStarting: Ask,
    Compacting: Halt,
    ModelCalling: Deny,
    ModelReplying: Deny,
    ToolCalling: Regenerate,
    Delegating: Answer,
    ToolReturning: Ask,
    MessageAdding: Ask,
    StepEnding: Deny,
    Continuing: Halt,
    Stopping: Deny,
    SubagentStopping: Deny,
    Resuming: Deny,
    Erring: Deny,
    TurnEnding: Halt,
}


@pytest.mark.parametrize("verb", ["gate", "hook"])
@pytest.mark.parametrize("event", ILLEGAL, ids=lambda event: event.__name__)
def test_a_declared_decision_that_its_event_cannot_take_is_refused_at_registration(event: Any, verb: str):
    """Behaviour 105: registration fails and names hook, event and what is legal."""
    wrong = ILLEGAL[event]
    agent = Agent(ScriptedModel())

    async def misplaced(event: Any) -> Any: ...

    misplaced.__annotations__["return"] = wrong | None
    with pytest.raises(RegistrationError) as caught:
        getattr(agent, verb)(event)(misplaced)
    message = str(caught.value)
    assert (caught.value.hook, caught.value.event) == ("misplaced", event.__name__)
    for word in ("misplaced", event.__name__, wrong.__name__):
        assert word in message
    for rank in event.ranks:
        assert (f"Vote.{rank.name}" if isinstance(rank, Vote) else rank.__name__) in message


@pytest.mark.parametrize(
    ("verb", "event"),
    [
        ("rewrite", StepStarting),
        ("rewrite", Continuing),
        ("inject", ModelCalling),
        ("inject", TurnEnding),
        ("gate", ToolReturned),
        ("observe", ToolCalling),
        ("wrap", ToolCalling),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_verb_that_its_event_cannot_take_is_refused_at_registration(verb: str, event: Any):
    """Behaviour 105: the same for a verb: nothing to change, nowhere to add, no event, no fact, no effect."""

    def misplaced(event: Any, call_next: Any = None) -> Any: ...

    with pytest.raises(RegistrationError, match=f"misplaced.*{event.__name__}"):
        getattr(Agent(ScriptedModel()), verb)(event)(misplaced)


@pytest.mark.parametrize("event", [e for e in EVENTS if e is not ModelReplying], ids=lambda event: event.__name__)
def test_only_a_critic_of_replies_may_fail_open(event: Any):
    """Behaviours 87, 105: `on_error="unreviewed"` on any other event would undo the matrix; registration refuses it."""
    agent = Agent(ScriptedModel())
    with pytest.raises(RegistrationError, match=event.__name__):
        agent.gate(event, on_error="unreviewed")(lambda event: None)


def test_legal_declared_decisions_are_taken():
    """Behaviour 105: what the event can take registers without a word."""
    agent = Agent(ScriptedModel())

    @agent.gate(ToolCalling)
    async def fits(event: ToolCalling) -> Deny | Ask | None: ...

    @agent.gate(Continuing)
    def votes(event: Continuing) -> Vote | None: ...

    agent.compile()


async def test_a_rewrite_that_changes_what_it_may_not_is_refused_by_name(ran: Ran):
    """Behaviour 105: a call keeps its tool; a rewrite that renames it fails the action and is named."""
    agent = Agent(one_call(), tools=ran.tools)

    @agent.rewrite(ToolCalling)
    def rename(event: Any) -> Any:
        return event.call.replace(name="delete")

    await agent.run("go", session=SESSION)
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "rename" in returned.result.text


async def test_an_injection_of_something_that_is_no_content_is_refused_by_name():
    """Behaviour 105: at the latest when it answers, naming the hook."""
    agent = Agent(ScriptedModel(says("hello")))
    agent.inject(TurnStarting, name="adds_a_number")(lambda event: 42)
    result = await agent.run("go")
    with pytest.raises(IllegalAnswer, match="adds_a_number"):
        result.raise_for_error()


# ---------------------------------------------------------------- 106: changed behind the gates


def _no_big_numbers(event: ToolCalling) -> Deny | None:
    return Deny("too big") if event.call.arguments["a"] > 100 else None


async def test_arguments_changed_by_a_wrap_go_to_the_gates_again(ran: Ran):
    """Behaviour 106: the gates judge what a wrap made of the call before it leaves."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="no_big_numbers")(_no_big_numbers)

    @agent.wrap(ToolCall)
    async def make_it_big(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"a": 1000}))

    await agent.run("go", session=SESSION)
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "too big" in returned.result.text


async def test_the_second_judgement_is_in_the_log(ran: Ran):
    """Behaviour 106: who refused the changed call is recorded."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="no_big_numbers")(_no_big_numbers)

    @agent.wrap(ToolCall)
    async def make_it_big(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"a": 1000}))

    await agent.run("go", session=SESSION)
    (decided,) = await find(agent, HookDecided)
    assert (decided.event, decided.verdict) == ("ToolCalling", Deny("too big"))
    assert decided.answers == (("no_big_numbers", Deny("too big")),)


async def test_changed_arguments_that_the_gates_allow_run(ran: Ran):
    """Behaviour 106: judged again does not mean refused; the changed arguments are what runs."""
    asked: list[int] = []
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: asked.append(event.call.arguments["a"]))

    @agent.wrap(ToolCall)
    async def make_it_two(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"a": 2}))

    await agent.run("go")
    assert asked == [1, 2]
    assert ran.calls == [("add", 2)]


async def test_a_call_renamed_by_a_wrap_meets_the_gates_of_the_other_tool(ran: Ran):
    """Behaviour 106: a matcher looks at the call that leaves, not at the one that came."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, tool="delete", name="never_delete")(lambda event: Deny("never"))

    @agent.wrap(ToolCall)
    async def rename(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(name="delete"))

    await agent.run("go")
    assert ran.calls == []


async def test_a_call_renamed_by_a_wrap_falls_under_what_holds_for_unmatched_calls(ran: Ran):
    """Behaviour 106: if no gate allows the changed call, `unmatched="deny"` holds for it too."""
    agent = Agent(one_call(), tools=ran.tools, unmatched="deny")
    agent.gate(ToolCalling, tool="add")(lambda event: Allow())

    @agent.wrap(ToolCall)
    async def rename(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(name="delete"))

    await agent.run("go")
    assert ran.calls == []


async def test_nobody_can_be_asked_about_a_call_that_a_wrap_changed(ran: Ran):
    """Behaviour 106: there an `Ask` is a `Deny` that says so."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: Ask("So big?") if event.call.arguments["a"] > 100 else None)

    @agent.wrap(ToolCall)
    async def make_it_big(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"a": 1000}))

    result = await agent.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "So big?" in returned.result.text


async def test_a_halt_about_a_changed_call_ends_the_turn(ran: Ran):
    """Behaviour 106: a gate that halts on what a wrap made of a call halts the turn."""
    model = one_call()
    agent = Agent(model, tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: Halt("far too big") if event.call.arguments["a"] > 100 else None)

    @agent.wrap(ToolCall)
    async def make_it_big(call: Any, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"a": 1000}))

    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "far too big")
    assert ran.calls == []
    assert len(model.requests) == 1


@pytest.mark.parametrize("what", ["model", "tools", "system", "messages"])
async def test_a_request_changed_by_a_wrap_goes_to_the_gates_again(what: str, ran: Ran):
    """Behaviour 106: another model, other tools or other text: the gates judge before it leaves."""
    model, other = ScriptedModel(says("hello")), ScriptedModel(says("other"), name="other")
    agent = Agent(model, models=[other], tools=ran.tools, system="Be kind.")
    first: list[Any] = []

    @agent.gate(ModelCalling)
    def only_the_first(event: Any) -> Halt | None:
        if not first:
            first.append(event.request)
            return None
        return Halt("not this one") if getattr(event.request, what) != getattr(first[0], what) else None

    @agent.wrap(ModelCall)
    async def change(request: Any, call_next: Any) -> Any:
        changed: dict[str, Any] = {"model": "other", "tools": (), "system": "Be rude.", "messages": []}
        return await call_next(request.replace(**{what: changed[what]}))

    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "not this one")
    assert model.requests == []
    assert other.requests == []


async def test_nobody_can_be_asked_about_a_request_that_a_wrap_changed():
    """Behaviour 106: a request cannot be denied, so there an `Ask` halts and says so."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model, system="Be kind.")
    agent.gate(ModelCalling)(lambda event: Ask("Rude?") if event.request.system == "Be rude." else None)

    @agent.wrap(ModelCall)
    async def change(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(system="Be rude."))

    result = await agent.run("go")
    assert isinstance(result.outcome, Stopped)
    assert "Rude?" in result.outcome.detail
    assert model.requests == []


async def test_who_refused_a_changed_request_is_in_the_log():
    """Behaviour 106: the second judgement of a request is recorded like the first."""
    agent = Agent(ScriptedModel(says("hello")), system="Be kind.")
    agent.gate(ModelCalling, name="kind")(lambda event: Halt("no") if event.request.system == "Be rude." else None)

    @agent.wrap(ModelCall)
    async def change(request: Any, call_next: Any) -> Any:
        return await call_next(request.replace(system="Be rude."))

    await agent.run("go", session=SESSION)
    (decided,) = await find(agent, HookDecided)
    assert (decided.event, decided.answers) == ("ModelCalling", (("kind", Halt("no")),))


@pytest.mark.parametrize("answer", [Ask("May it?"), Halt("no")], ids=repr)
async def test_a_side_call_that_a_guard_does_not_let_through_is_not_made(answer: Any):
    """Behaviour 106: a hook's own model call passes the guard gates; nobody can be asked there, so an Ask refuses."""
    other = ScriptedModel(says("secret"), name="other")
    agent = Agent(ScriptedModel(says("hello")), models=[other])
    agent.gate(ModelCalling, band="guard")(lambda event: answer if event.request.model == "other" else None)

    @agent.gate(TurnEnding)
    async def critic(event: Any, turn: Any) -> None:
        await turn.ask("other", "Is it good?")

    result = await agent.run("go")
    assert other.requests == []
    assert result.stop_reason is StopReason.WITHHELD


async def test_a_wrap_that_swallows_the_refusal_does_not_get_round_it():
    """Behaviour 106: the turn is halted even if the wrap makes up a reply of its own."""
    agent = Agent(ScriptedModel(says("hello")), system="Be kind.")
    agent.gate(ModelCalling)(lambda event: Halt("no") if event.request.system == "Be rude." else None)

    @agent.wrap(ModelCall)
    async def change(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request.replace(system="Be rude."))
        except Exception:
            return "made up"

    result = await agent.run("go")
    assert result.outcome == Stopped(StopReason.HALTED, "no")
    assert result.text == ""


async def test_an_unchanged_second_attempt_is_not_judged_again():
    """Behaviour 106: only what differs from what was judged goes to the gates again."""
    asked: list[int] = []
    agent = Agent(ScriptedModel(TimeoutError("slow"), says("hello")))
    agent.gate(ModelCalling)(lambda event: asked.append(1))

    @agent.wrap(ModelCall)
    async def twice(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except TimeoutError:
            return await call_next(request)

    result = await agent.run("go")
    assert result.text == "hello"
    assert asked == [1]


# ---------------------------------------------------------------- 108: all calls are decided before the first runs


def three_calls(*more: Any) -> ScriptedModel:
    three = [("add", {"a": 1}), ("add", {"a": 2}), ("add", {"a": 3})]
    return ScriptedModel(calls(three), *(more or (says("done"),)))


@pytest.mark.parametrize("halted", [1, 2, 3])
async def test_one_halted_call_of_three_keeps_all_of_them_from_running(halted: int, ran: Ran):
    """Behaviour 108: none runs, every call gets a result, the turn is halted."""
    model = three_calls()
    agent = Agent(model, tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: Halt("enough") if event.call.arguments["a"] == halted else Allow())
    result = await agent.run("go", session=SESSION)
    assert result.outcome == Stopped(StopReason.HALTED, "enough")
    assert ran.calls == []
    assert len(model.requests) == 1
    returned = await find(agent, ToolReturned)
    assert [r.call for r in returned] == ["s1/1/1", "s1/1/2", "s1/1/3"]
    assert [part.call_id for part in result.messages[-1].parts] == ["s1/1/1", "s1/1/2", "s1/1/3"]


@pytest.mark.parametrize("order", list(itertools.permutations(["deny", "ask", "allow"])))
async def test_of_a_denied_an_asked_and_an_allowed_call_only_the_allowed_one_runs(order: tuple[str, ...], ran: Ran):
    """Behaviour 108: the allowed one runs, the asked one waits, and results enter in the order of the calls."""
    answers = {"deny": Deny("no"), "ask": Ask("May it?"), "allow": Allow()}
    model = three_calls()
    agent = Agent(model, tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: answers[order[event.call.arguments["a"] - 1]])
    allowed, asked = order.index("allow") + 1, order.index("ask") + 1

    first = await agent.run("go", session=SESSION)
    assert isinstance(first.outcome, Suspended)
    assert [question.id for question in first.waiting_for] == [f"s1/1/{asked}"]
    assert ran.calls == [("add", allowed)]
    assert roles(first) == ["user"], "a step's results enter the transcript together"

    result = await agent.resume(SESSION, answers={f"s1/1/{asked}": Approve()})
    assert result.outcome == Completed()
    assert ran.calls == [("add", allowed), ("add", asked)]
    (message,) = [message for message in result.messages if message.role == "tool"]
    assert [part.call_id for part in message.parts] == ["s1/1/1", "s1/1/2", "s1/1/3"]
    status = {"deny": "denied", "ask": "ok", "allow": "ok"}
    assert [part.status for part in message.parts] == [status[kind] for kind in order]


async def test_a_step_whose_calls_were_all_denied_goes_on(ran: Ran):
    """Behaviour 108: the model must see why."""
    model = three_calls()
    agent = Agent(model, tools=ran.tools)
    agent.gate(ToolCalling)(lambda event: Deny(f"not {event.call.arguments['a']}"))
    result = await agent.run("go")
    assert result.text == "done"
    assert [text[-5:] for text in tool_texts(model.requests[1])] == ["not 1", "not 2", "not 3"]


async def test_every_call_is_decided_before_the_first_one_runs(ran: Ran):
    """Behaviour 108: the last gate has spoken when the first tool starts."""
    agent = Agent(three_calls(), tools=ran.tools)
    seen: list[tuple[int, int]] = []
    agent.gate(ToolCalling)(lambda event: seen.append((event.call.arguments["a"], len(ran.calls))))
    await agent.run("go")
    assert seen == [(1, 0), (2, 0), (3, 0)]
    assert len(ran.calls) == 3


# ---------------------------------------------------------------- 111: what a hook mutates


def _spoil(arguments: dict[str, Any]) -> None:
    arguments["a"] = 999
    arguments["extra"] = True


@pytest.mark.parametrize("verb", ["gate", "rewrite", "inject", "hook"])
async def test_a_hook_that_mutates_the_arguments_it_was_given_changes_nothing(verb: str, ran: Ran):
    """Behaviour 111: what is executed and recorded is what was judged."""
    agent = Agent(one_call(), tools=ran.tools)
    getattr(agent, verb)(ToolCalling, name="spoil")(lambda event: _spoil(event.call.arguments))
    seen: list[Any] = []
    agent.gate(ToolCalling, name="sees")(lambda event: seen.append(event.call.arguments))
    result = await agent.run("go", session=SESSION)
    assert ran.calls == [("add", 1)]
    assert seen == [{"a": 1}]
    assert result.messages[1].tool_calls[0].json == '{"a":1}'
    (decided,) = await find(agent, ToolDecided)
    assert decided.json is None


async def test_a_wrap_that_mutates_the_arguments_it_was_given_changes_nothing(ran: Ran):
    """Behaviour 111: in a wrap, too, another call has to be made with `replace`."""
    agent = Agent(one_call(), tools=ran.tools)

    @agent.wrap(ToolCall)
    async def spoil(call: Any, call_next: Any) -> Any:
        _spoil(call.arguments)
        return await call_next(call)

    await agent.run("go")
    assert ran.calls == [("add", 1)]


async def test_the_mapping_a_rewrite_returned_is_its_own_again_afterwards(ran: Ran):
    """Behaviour 111: arguments become bytes when they are handed over; changing the dict later changes nothing."""
    agent = Agent(one_call(), tools=ran.tools)
    mine: dict[str, Any] = {"a": 5}
    agent.rewrite(ToolCalling)(lambda event: event.call.replace(arguments=mine))
    agent.gate(ToolCalling)(lambda event: _spoil(mine))
    await agent.run("go")
    assert ran.calls == [("add", 5)]


@pytest.mark.parametrize("verb", ["gate", "rewrite"])
async def test_a_hook_that_mutates_the_settings_of_a_request_changes_nothing(verb: str):
    """Behaviour 111: the settings a model gets are the agent's, in this call and in the next."""
    model = ScriptedModel(says("one"), says("two"))
    settings: dict[str, Any] = {"temperature": 0}
    agent = Agent(model, settings=settings)

    def spoil(event: Any) -> None:
        event.request.settings["temperature"] = 9

    getattr(agent, verb)(ModelCalling)(spoil)
    await agent.run("go")
    await agent.run("go")
    assert settings == {"temperature": 0}
    assert [dict(request.settings) for request in model.requests] in ([], [{"temperature": 0}] * 2)


async def test_a_hook_that_mutates_the_schema_of_a_tool_changes_nothing(ran: Ran):
    """Behaviour 111: what a model is told of a tool cannot be spoilt in place."""
    model = ScriptedModel(says("one"))
    agent = Agent(model, tools=ran.tools)

    def spoil(event: Any) -> None:
        event.request.tools[0].schema["properties"].clear()

    agent.gate(ModelCalling)(spoil)
    await agent.run("go")
    assert "a" in ran.add.spec.schema["properties"]


# ---------------------------------------------------------------- 115: at equal rank


async def test_two_answers_that_differ_deny_the_call_and_both_hooks_are_named(ran: Ran):
    """Behaviour 115: unequal `Answer`s are a `Deny` naming both."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="one_cache")(lambda event: Answer(1))
    agent.gate(ToolCalling, name="other_cache")(lambda event: Answer(2))
    await agent.run("go", session=SESSION)
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert returned.result.status == "denied"
    assert "one_cache" in returned.result.text
    assert "other_cache" in returned.result.text


async def test_two_answers_that_agree_are_one_answer(ran: Ran):
    """Behaviour 115: equal values are no conflict."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="one_cache")(lambda event: Answer("same"))
    agent.gate(ToolCalling, name="other_cache")(lambda event: Answer("same"))
    await agent.run("go", session=SESSION)
    (returned,) = await find(agent, ToolReturned)
    assert (returned.result.status, returned.result.text) == ("answered", "same")


async def test_two_answers_to_a_model_call_that_differ_halt_and_name_both():
    """Behaviour 115: where nothing can be denied the turn is halted instead."""
    model = ScriptedModel(says("hello"))
    agent = Agent(model)
    agent.gate(ModelCalling, name="one_cache")(lambda event: Answer("a"))
    agent.gate(ModelCalling, name="other_cache")(lambda event: Answer("b"))
    result = await agent.run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.HALTED
    assert "one_cache" in result.outcome.detail
    assert "other_cache" in result.outcome.detail
    assert model.requests == []


@pytest.mark.parametrize("reverse", [False, True])
async def test_two_asks_are_one_question_with_both_reasons(reverse: bool, ran: Ran):
    """Behaviour 115: one question, the answers both allow, each on its own terms, whatever the order."""
    asks = {
        "a_costly": Ask("It costs money.", allow=("approve", "edit", "reject"), approvers=("ann", "bob")),
        "b_private": Ask("It reads mail.", allow=("approve", "reject", "respond"), approvers=("bob", "cid")),
    }
    agent = Agent(one_call(), tools=ran.tools)
    for name in sorted(asks, reverse=reverse):
        agent.gate(ToolCalling, name=name)(lambda event, ask=asks[name]: ask)
    result = await agent.run("go", session=SESSION)
    (asked,) = result.waiting_for
    assert asked.question == "It costs money.\nIt reads mail."
    assert asked.by == ("a_costly", "b_private")
    assert asked.allow == ("approve", "reject")
    assert asked.approvers == ("ann", "bob", "cid")
    assert [(terms.by, terms.stages) for terms in asked.terms] == [
        ("a_costly", (Stage(("ann", "bob")),)),
        ("b_private", (Stage(("bob", "cid")),)),
    ]
    done = await agent.resume(SESSION, answers={asked.id: Approve(by="bob")})
    assert done.outcome == Completed()
    assert ran.calls == [("add", 1)]


async def test_two_asks_that_no_answer_can_satisfy_deny_the_call(ran: Ran):
    """Behaviour 115: a question nobody could answer is not put; the call is denied and both hooks are named."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="one")(lambda event: Ask("a", allow=("approve",)))
    agent.gate(ToolCalling, name="other")(lambda event: Ask("b", allow=("respond",)))
    result = await agent.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert "one" in returned.result.text
    assert "other" in returned.result.text


async def test_after_an_approved_ask_the_next_rank_holds(ran: Ran):
    """Behaviour 115: an approved call that a dry run answers stays dry."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="asks")(lambda event: Ask("May it?"))
    agent.gate(ToolCalling, name="dry_run")(lambda event: Answer("would have added"))
    first = await agent.run("go", session=SESSION)
    await agent.resume(SESSION, answers={first.waiting_for[0].id: Approve()})
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert (returned.result.status, returned.result.text) == ("answered", "would have added")


async def test_feedbacks_of_equal_rank_are_all_kept_sorted_by_hook():
    """Behaviour 115: two Regenerates are one, with both feedbacks."""
    for order in (("a", "b"), ("b", "a")):
        model = ScriptedModel(says("rude"), says("kind"))
        agent = Agent(model)
        for name in order:
            agent.gate(ModelReplying, name=name)(
                lambda event, name=name: Regenerate(f"{name} objects") if event.reply.text == "rude" else None
            )
        await agent.run("go")
        assert "a objects\nb objects" in model.requests[1].messages[-1].text


async def test_a_person_may_respond_instead_and_the_tool_stays_untouched(ran: Ran):
    """Behaviours 83c, 115: a response is a result like any other and nothing is executed."""
    agent = Agent(one_call(), tools=ran.tools)
    agent.gate(ToolCalling, name="asks")(lambda event: Ask("May it?"))
    first = await agent.run("go", session=SESSION)
    result = await agent.resume(SESSION, answers={first.waiting_for[0].id: Respond("I did it by hand.")})
    assert result.outcome == Completed()
    assert ran.calls == []
    (returned,) = await find(agent, ToolReturned)
    assert (returned.result.status, returned.result.text) == ("responded", "I did it by hand.")
    assert await find(agent, MessageAdded) != []
