"""Approvals: each answer by a new agent object on a store that was opened again, as in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from windlass import (
    ActiveTimeLimit,
    Agent,
    Approve,
    Ask,
    Asked,
    Completed,
    Deadline,
    Deny,
    Edit,
    Reject,
    Respond,
    Slot,
    StepLimit,
    StopReason,
    Suspended,
    TokenLimit,
    ToolCalling,
    Turn,
    Usage,
    tool,
)
from windlass.errors import StaleAnswer
from windlass.protocols import Store
from windlass.records import ToolDecided
from windlass.stores import MemoryStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

SESSION = "s"
EDITED = '[Before this call ran, a person changed its arguments to {"euros":%d}]\n'


class Bank:
    """Where agents come and go: each is made anew, on a store that is opened again if it can be."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.opened: list[Store] = [] if path is not None else [MemoryStore()]
        self.paid: list[int] = []

    async def open(self) -> Store:
        if self.path is None:
            return self.opened[0]
        await self.close()
        self.opened.append(SQLiteStore(self.path, synchronous="NORMAL"))
        return self.opened[-1]

    async def close(self) -> None:
        if self.opened:
            await self.opened[-1].close()

    async def agent(self, *replies: Any, ask: Any = None, **options: Any) -> Agent[Any, Any]:
        """An agent that asks before it pays, unless `ask` says otherwise of an event."""

        @tool
        async def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        @tool(effect="pure")
        async def look(at: str) -> str:
            """Look."""
            return f"saw {at}"

        agent: Agent[Any, Any] = Agent(ScriptedModel(*replies), tools=[pay, look], store=await self.open(), **options)
        agent.gate(ToolCalling, tool="pay", name="ask")(ask or (lambda event: Ask("Pay?")))
        return agent


@pytest.fixture(params=["memory", "sqlite"])
async def bank(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bank]:
    made = Bank(tmp_path / "bank.db" if request.param == "sqlite" else None)
    yield made
    await made.close()


async def suspended(bank: Bank, *replies: Any, ask: Any = None) -> tuple[Asked, ...]:
    """What a turn waits for."""
    agent = await bank.agent(*(replies or (calls("pay", euros=5),)), ask=ask)
    result = await agent.run("go", session=SESSION)
    assert isinstance(result.outcome, Suspended)
    return result.waiting_for


async def resumed(bank: Bank, answers: dict[str, Any], *replies: Any) -> Any:
    """What comes of answers that somebody else's agent takes."""
    agent = await bank.agent(*(replies or (says("done"),)))
    return await agent.resume(SESSION, answers=answers)


def told(result: Any) -> list[tuple[str, str]]:
    """What the model read of each call."""
    return [(part.status, part.text) for part in result.messages[2].parts]


# ---------------------------------------------------------------- 43 to 48: what an answer does


async def test_a_call_that_nobody_asks_about_neither_pauses_nor_leaves_a_trace(bank):
    """Behaviour 43: the log is the same as that of an agent without the gate."""
    agent = await bank.agent(calls("look", at="sea"), says("done"))
    result = await agent.run("go", session=SESSION)
    other = Agent(ScriptedModel(calls("look", at="sea"), says("done")), tools=[agent.tools["look"]])
    without = await other.run("go", session=SESSION)
    assert result.outcome == Completed()
    assert result.state.messages == without.state.messages
    kinds = [type(record) for record in await agent.store.read(SESSION)]
    assert kinds == [type(record) for record in await other.store.read(SESSION)]
    assert list(await agent.store.approvals()) == []


async def test_an_approved_call_runs_unchanged(bank):
    """Behaviour 44: under its own id, once."""
    (asked,) = await suspended(bank)
    result = await resumed(bank, {asked.id: Approve()})
    assert (result.text, bank.paid, told(result)) == ("done", [5], [("ok", "paid 5")])
    assert result.messages[2].parts[0].call_id == result.messages[1].tool_calls[0].id == asked.id


async def test_an_edited_call_runs_with_the_new_arguments_under_the_same_id(bank):
    """Behaviour 44: what was proposed and what was executed are both in the log."""
    (asked,) = await suspended(bank)
    result = await resumed(bank, {asked.id: Edit({"euros": 3})})
    assert (bank.paid, told(result)) == ([3], [("ok", EDITED % 3 + "paid 3")])
    assert result.messages[2].parts[0].call_id == asked.id
    assert asked.call.arguments == {"euros": 5}
    [proposed] = result.messages[1].tool_calls
    [executed] = [r.json for r in await (await bank.open()).read(SESSION) if isinstance(r, ToolDecided) and r.json]
    assert (proposed.json, executed) == ('{"euros":5}', '{"euros":3}')


async def test_a_rejected_call_never_runs_and_the_model_goes_on(bank):
    """Behaviour 45: its result is an error that says why, paired with the call."""
    (asked,) = await suspended(bank)
    result = await resumed(bank, {asked.id: Reject("too much")})
    assert (result.outcome, result.text, bank.paid) == (Completed(), "done", [])
    assert told(result) == [("denied", "Denied: too much")]
    assert result.messages[2].parts[0].call_id == asked.id


async def test_a_call_rejected_without_a_message_is_not_to_be_tried_again(bank):
    """Behaviour 46: so the model is told."""
    (asked,) = await suspended(bank)
    ((status, text),) = told(await resumed(bank, {asked.id: Reject()}))
    assert status == "denied"
    assert "not try it again" in text


async def test_the_words_of_a_person_are_the_result_of_a_call_that_does_not_run(bank):
    """Behaviour 47: it counts as answered, not as an error."""
    (asked,) = await suspended(bank)
    result = await resumed(bank, {asked.id: Respond("I paid in cash.")})
    assert (result.outcome, bank.paid) == (Completed(), [])
    assert told(result) == [("responded", "I paid in cash.")]
    assert result.state.turn.failed_calls == 0


async def test_words_that_were_not_asked_for_are_refused(bank):
    """Behaviours 47, 50: the error lists what is allowed, and nothing has happened."""
    (asked,) = await suspended(bank, ask=lambda event: Ask("Pay?", allow=("approve", "reject")))
    with pytest.raises(StaleAnswer, match="'respond'; allowed: approve, reject"):
        await resumed(bank, {asked.id: Respond("I paid in cash.")})
    assert bank.paid == []
    assert (await resumed(bank, {asked.id: Approve()})).text == "done"


async def test_mixed_answers_keep_the_order_of_the_calls(bank):
    """Behaviour 48: the first and the third were asked about, the second was not."""
    three = calls([("pay", {"euros": 1}), ("look", {"at": "sea"}), ("pay", {"euros": 3})])
    first, third = await suspended(bank, three)
    result = await resumed(bank, {third.id: Edit({"euros": 4}), first.id: Reject("no")})
    assert told(result) == [("denied", "Denied: no"), ("ok", "saw sea"), ("ok", EDITED % 4 + "paid 4")]
    assert bank.paid == [4]
    proposed = [call.id for call in result.messages[1].tool_calls]
    assert [part.call_id for part in result.messages[2].parts] == proposed


# ---------------------------------------------------------------- 49 to 51: what is refused


async def test_an_answer_too_many_is_refused_and_nothing_is_executed(bank):
    """Behaviour 49: not even what was answered rightly beside it."""
    (asked,) = await suspended(bank)
    with pytest.raises(StaleAnswer, match="no such question is open"):
        await resumed(bank, {asked.id: Approve(), "s/9/9": Approve()})
    assert bank.paid == []
    assert (await resumed(bank, {asked.id: Approve()})).text == "done"


async def test_with_too_few_answers_nothing_is_executed_that_was_not_answered(bank):
    """Behaviour 49: questions may be answered one by one; the model is not asked before all are."""
    first, second = await suspended(bank, calls([("pay", {"euros": 1}), ("pay", {"euros": 2})]))
    agent = await bank.agent(says("done"))
    for answers, paid, waiting in [
        ({}, [], [first.id, second.id]),
        ({second.id: Approve()}, [2], [first.id]),
    ]:
        result = await agent.resume(SESSION, answers=answers)
        assert (bank.paid, [asked.id for asked in result.waiting_for]) == (paid, waiting)
        assert agent.model.requests == []
    assert (await resumed(bank, {first.id: Approve()})).text == "done"
    assert bank.paid == [2, 1]


@pytest.mark.parametrize("answer", [True, "approve", {"answer": "Approve"}, Deny("no"), None], ids=repr)
async def test_something_that_is_no_answer_is_refused_with_a_list_of_those_there_are(bank, answer):
    """Behaviour 50: nothing is guessed."""
    (asked,) = await suspended(bank)
    with pytest.raises(StaleAnswer, match="allowed: approve, edit, reject, respond"):
        await resumed(bank, {asked.id: answer})
    assert bank.paid == []


@pytest.mark.parametrize("allow", [(), "approve", ("aprove",), ("approve", "Reject"), ("approve", "")], ids=repr)
def test_an_ask_that_allows_nothing_or_something_misspelt_cannot_be_made(allow):
    """Behaviour 51: it is refused where it is written, not when somebody answers."""
    with pytest.raises(ValueError, match="allow"):
        Ask("Pay?", allow=allow)


@pytest.mark.parametrize("allow", [None, 7])
def test_an_ask_whose_answers_are_no_names_cannot_be_made(allow):
    """Behaviour 51: nor with something else in their place."""
    with pytest.raises((ValueError, TypeError)):
        Ask("Pay?", allow=allow)


# ---------------------------------------------------------------- 52, 53: when is asked, and what


async def test_a_predicate_that_is_false_lets_the_call_pass_without_a_pause(bank):
    """Behaviour 52: it is given the call as it will be made."""
    seen: list[tuple[str, Any]] = []

    def large(call: Any) -> bool:
        seen.append((call.name, dict(call.arguments)))
        return call.arguments.get("euros", 0) > 10

    agent = await bank.agent(calls([("pay", {"euros": 5}), ("pay", {"euros": 50})]), ask=lambda event: None)
    agent.gate(ToolCalling, tool=large, name="large")(lambda event: Ask("So much?"))
    result = await agent.run("go", session=SESSION)
    (asked,) = result.waiting_for
    assert (asked.call.arguments, bank.paid) == ({"euros": 50}, [5])
    assert seen == [("pay", {"euros": 5}), ("pay", {"euros": 50})]


async def test_a_gate_decides_by_call_and_state_whether_it_asks(bank):
    """Behaviours 52, 53: what is asked is made of the call, the state and what the application passed."""

    def ask(event: ToolCalling) -> Ask | None:
        state, turn = event.turn.state, event.turn
        spent = sum("paid" in message.parts[0].text for message in state.messages if message.role == "tool")
        text = f"{turn.scope}: {event.call.name} {event.call.arguments['euros']} after {spent} ({state.session})?"
        return Ask(text) if spent else None

    agent = await bank.agent(calls("pay", euros=5), calls("pay", euros=7), ask=ask)
    result = await agent.run("go", session=SESSION, scope="ann")
    (asked,) = result.waiting_for
    assert asked.question == "ann: pay 7 after 1 (s)?"
    assert bank.paid == [5]
    ((_, again),) = await (await bank.open()).approvals()
    assert again == asked


# ---------------------------------------------------------------- 60: limits of a turn and of a session

used = Slot("used", dict, default=dict)


def limited(agent: Agent[Any, Any], per_run: int, per_session: int) -> Agent[Any, Any]:
    """A limiter of one's own: a gate that counts in a slot, and so in the log."""
    agent.slot(used)

    @agent.gate(ToolCalling, tool="pay", name="limiter")
    def limiter(event: ToolCalling, turn: Turn[Any]) -> Deny | None:
        counts: dict[str, int] = turn.get(used)
        here, all_ = counts.get(turn.turn_ref, 0), sum(counts.values())
        if here >= per_run:
            return Deny(f"{here} of {per_run} payments of this turn are made")
        if all_ >= per_session:
            return Deny(f"{all_} of {per_session} payments of this session are made")
        turn.set(used, {**counts, turn.turn_ref: here + 1})
        return None

    return agent


async def test_limits_of_a_turn_and_of_a_session_are_counted_over_pauses(bank):
    """Behaviour 60: three turns pay once each, the fourth not at all; a pause starts no count afresh."""
    for turn in (1, 2, 3):
        agent = limited(await bank.agent(calls("pay", euros=turn)), 1, 3)
        (asked,) = (await agent.run("go", session=SESSION)).waiting_for
        agent = limited(await bank.agent(calls("pay", euros=100), says("done")), 1, 3)
        result = await agent.resume(SESSION, answers={asked.id: Approve()})
        texts = [message.parts[0].text for message in result.messages if message.role == "tool"]
        assert texts[-2:] == [f"paid {turn}", "Denied: 1 of 1 payments of this turn are made"]
    agent = limited(await bank.agent(calls("pay", euros=4), says("done")), 1, 3)
    result = await agent.run("go", session=SESSION)
    assert result.messages[-2].parts[0].text == "Denied: 3 of 3 payments of this session are made"
    assert (result.text, bank.paid) == ("done", [1, 2, 3])


@pytest.mark.parametrize(
    ("limit", "reason"),
    [(StepLimit(2), StopReason.STEP_LIMIT), (TokenLimit(40), StopReason.TOKEN_LIMIT)],
    ids=["steps", "tokens"],
)
async def test_a_limit_of_the_turn_goes_on_counting_after_a_pause(bank, limit, reason):
    """Behaviour 60: two steps of twenty tokens each, with a pause in each, and by a new agent every time."""
    reply = calls("pay", euros=5, _usage=Usage(15, 5))
    agent = await bank.agent(reply, criteria=[limit])
    result = await agent.run("go", session=SESSION)
    pauses = 0
    while result.waiting_for:
        pauses += 1
        agent = await bank.agent(reply, criteria=[limit])
        result = await agent.resume(SESSION, answers={result.waiting_for[0].id: Approve()})
    assert (pauses, result.stop_reason, bank.paid) == (2, reason, [5, 5])
    agent = await bank.agent(says("a new turn counts anew"), criteria=[limit])
    assert (await agent.run("again", session=SESSION)).outcome == Completed()


# ---------------------------------------------------------------- 95: a night


@pytest.mark.parametrize(
    ("limit", "reason"),
    [(ActiveTimeLimit(60), StopReason.COMPLETED), (Deadline(after=3600), StopReason.DEADLINE)],
    ids=["active time", "deadline"],
)
async def test_a_night_uses_up_a_deadline_but_no_active_time(bank, clock, limit, reason):
    """Behaviour 95: time spent waiting is no work, but it passes."""
    agent = await bank.agent(calls("pay", euros=5), criteria=[limit], clock=clock)
    (asked,) = (await agent.run("go", session=SESSION)).waiting_for
    clock.tick(12 * 3600)
    agent = await bank.agent(says("done"), criteria=[limit], clock=clock)
    result = await agent.resume(SESSION, answers={asked.id: Approve()})
    assert result.stop_reason is reason
    assert result.state.turn.active < 60


# ---------------------------------------------------------------- 101: stale answers


async def test_an_approval_of_other_arguments_than_are_open_now_is_stale(bank):
    """Behaviour 101: the question has been put anew since, about what a person wrote; an old answer does not count."""
    (asked,) = await suspended(bank)
    agent = await bank.agent()
    agent.gate(ToolCalling, name="second")(lambda event: Ask("Still?") if event.call.arguments["euros"] == 3 else None)
    (again,) = (await agent.resume(SESSION, answers={asked.id: Edit({"euros": 3})})).waiting_for
    assert again.digest != asked.digest
    late = {"id": again.id, "digest": asked.digest, "answer": {"answer": "Approve"}}
    assert await agent.store.put(SESSION, "late", "answer", late)
    result = await resumed(bank, {})
    assert [question.id for question in result.waiting_for] == [again.id]
    assert bank.paid == []
    assert (await resumed(bank, {again.id: Approve()})).text == "done"
    assert bank.paid == [3]


async def test_a_new_message_makes_the_answer_to_the_old_question_stale(bank):
    """Behaviour 101: the call was closed, and no approval opens it again."""
    (asked,) = await suspended(bank)
    agent = await bank.agent(calls("pay", euros=7))
    (other,) = (await agent.run("Something else.", session=SESSION)).waiting_for
    with pytest.raises(StaleAnswer, match="no such question"):
        await resumed(bank, {asked.id: Approve()})
    result = await resumed(bank, {other.id: Approve()})
    assert (result.text, bank.paid) == ("done", [7])
