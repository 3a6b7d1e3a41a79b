"""Answers from elsewhere, and answerers in the process: the same path as `resume(answers=…)`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Answered, Approve, Ask, Cancelled, Deny, Edit, Reject, Respond, ToolCalling, tool
from windlass.approvals import at_the_terminal, resolve
from windlass.errors import SessionUnknown, StaleAnswer
from windlass.records import InboxTaken
from windlass.stores import MemoryStore
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FakeClock, ScriptedModel, calls, says


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: Any, tmp_path: Any) -> Any:
    if request.param == "memory":
        yield None
    else:
        made = SQLiteStore(tmp_path / "s.db")
        yield made
        await made.close()


def make(store: Any, *replies: Any, **options: Any) -> tuple[Agent, list[int]]:
    paid: list[int] = []

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return f"paid {euros}"

    agent = Agent(ScriptedModel(*replies), tools=[pay], store=store, **options)
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("Pay?"))
    return agent, paid


async def test_an_answer_given_elsewhere_counts_at_the_next_resume(store):
    """Behaviour 110: it waits in the inbox, and who gave it is recorded."""
    agent, paid = make(store, calls("pay", euros=5), says("done"))
    result = await agent.run("go", session="s")
    await resolve(agent.store, "s", result.waiting_for[0].id, Approve(by="ann"))
    assert paid == []
    result = await agent.resume("s")
    assert (result.text, paid) == ("done", [5])
    log = await agent.store.read("s")
    assert [r.by for r in log if isinstance(r, Answered)] == ["ann"]
    assert [r.entry for r in log if isinstance(r, InboxTaken)] == ["answer"]
    assert list(await agent.store.approvals()) == []


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Edit({"euros": 3}), ([3], "paid 3")),
        (Reject("too much"), ([], "Denied: too much")),
        (Respond("was paid"), ([], "was paid")),
    ],
)
async def test_every_kind_of_answer_can_come_from_elsewhere(store, answer, outcome):
    agent, paid = make(store, calls("pay", euros=5), says("done"))
    result = await agent.run("go", session="s")
    await agent.resolve("s", result.waiting_for[0].id, answer)
    result = await agent.resume("s")
    assert (paid, result.messages[2].parts[0].text) == outcome


async def test_several_questions_are_answered_one_by_one_in_any_order(store):
    agent, paid = make(store, calls([("pay", {"euros": n}) for n in (1, 2, 3)]), says("done"))
    waiting = (await agent.run("go", session="s")).waiting_for
    await agent.resolve("s", waiting[2].id, Approve())
    result = await agent.resume("s")
    assert [asked.id for asked in result.waiting_for] == [waiting[0].id, waiting[1].id]
    await agent.resolve("s", waiting[0].id, Reject("no"))
    await agent.resolve("s", waiting[1].id, Approve())
    result = await agent.resume("s")
    assert result.text == "done"
    assert paid == [3, 2]
    assert [part.text for part in result.messages[2].parts] == ["Denied: no", "paid 2", "paid 3"]


async def test_a_question_is_answered_once(store):
    """Behaviour 101: wherever the answers come from, the second is stale and nothing runs."""
    agent, paid = make(store, calls("pay", euros=5), says("done"))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await agent.resolve("s", asked.id, Reject("no"))
    with pytest.raises(StaleAnswer, match="answered already"):
        await agent.resolve("s", asked.id, Approve())
    with pytest.raises(StaleAnswer, match="answered already"):
        await agent.resume("s", answers={asked.id: Approve()})
    result = await agent.resume("s")
    assert (result.text, paid) == ("done", [])
    with pytest.raises(StaleAnswer, match="none is open"):
        await agent.resolve("s", asked.id, Approve())


async def test_what_does_not_fit_is_refused_and_changes_nothing(store):
    """Behaviours 50, 101: unknown, disallowed, by the wrong person or too late."""
    clock = FakeClock()
    agent, _ = make(store, calls("pay", euros=5), says("done"), clock=clock)
    agent.gate(ToolCalling, name="careful")(
        lambda event: Ask("Sure?", allow=("approve", "reject"), approvers=("ann",), expires=60)
    )
    (asked,) = (await agent.run("go", session="s")).waiting_for
    with pytest.raises(SessionUnknown):
        await agent.resolve("nobody", asked.id, Approve())
    with pytest.raises(StaleAnswer, match="no such question"):
        await agent.resolve("s", "s/9/9", Approve())
    with pytest.raises(StaleAnswer, match="cannot be answered by 'edit'"):
        await agent.resolve("s", asked.id, Edit({"euros": 1}, by="ann"))
    with pytest.raises(StaleAnswer, match="may not answer"):
        await agent.resolve("s", asked.id, Approve(by="bob"))
    await clock.advance(61)
    with pytest.raises(StaleAnswer, match="expired"):
        await agent.resolve("s", asked.id, Approve(by="ann"))
    assert list(await agent.store.take("s", ())) == []


async def test_an_answer_that_came_in_time_and_is_read_too_late_is_no_answer(store):
    """Behaviour 101: what counts is when the turn would go on."""
    clock = FakeClock()
    agent, paid = make(store, calls("pay", euros=5), says("done"), clock=clock)
    agent.gate(ToolCalling, name="soon")(lambda event: Ask("Sure?", expires=60))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await agent.resolve("s", asked.id, Approve())
    await clock.advance(61)
    result = await agent.resume("s")
    assert paid == []
    assert "expired" in result.messages[2].parts[0].text


@pytest.mark.parametrize(
    ("answer", "outcome"), [(Reject("no"), []), (Respond("was paid"), []), (Edit({"euros": 1}), [1]), (Approve(), [5])]
)
async def test_an_answer_given_in_time_stands_where_the_default_would_approve(store, answer, outcome):
    clock = FakeClock()
    agent, paid = make(store, calls("pay", euros=5), says("done"), clock=clock)
    agent.gate(ToolCalling, name="soon")(lambda event: Ask("Sure?", expires=60, default="approve"))
    agent.registered.hooks.pop(0)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await agent.resolve("s", asked.id, answer)
    await clock.advance(61)
    await agent.resume("s")
    assert paid == outcome


async def test_an_answer_that_arrives_while_siblings_work_takes_effect_at_once(store):
    """Behaviour 110: nothing conflicts, and the turn does not even suspend."""
    agent, paid = make(store, calls([("pay", {"euros": 5}), ("wait", {})]), says("done"))

    @agent.tool
    async def wait() -> str:
        """Meanwhile, elsewhere, somebody answers."""
        for session, asked in await agent.store.approvals():
            await resolve(agent.store, session, asked.id, Approve())
        return "waited"

    agent.registered.hooks[0].matches = lambda call: call.name == "pay"
    result = await agent.run("go", session="s")
    assert (result.text, paid) == ("done", [5])
    assert [part.text for part in result.messages[2].parts] == ["paid 5", "waited"]


async def test_a_question_of_a_child_is_answered_through_its_parent(store):
    child, paid = make(store, calls("pay", euros=5), says("child done"), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    (asked,) = (await parent.run("go", session="s")).waiting_for
    await parent.resolve("s", asked.id, Approve())
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [5])


@pytest.mark.parametrize("first", ["s", "s/1/1"])
@pytest.mark.parametrize("second", ["s", "s/1/1"])
async def test_a_question_of_a_child_is_answered_once_by_whichever_session(store, first, second):
    child, paid = make(store, calls("pay", euros=5), says("child done"), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    (asked,) = (await parent.run("go", session="s")).waiting_for
    await parent.resolve(first, asked.id, Reject("no"))
    with pytest.raises(StaleAnswer, match="answered already"):
        await parent.resolve(second, asked.id, Approve())
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [])
    assert [by for s in ("s", "s/1/1") for by, _, _ in await parent.store.take(s, ())] == []


async def test_a_question_of_a_grandchild_is_answered_by_any_of_the_three_sessions(store):
    for session in ("s", "s/1/1", "s/1/1/1/1"):
        made = store or MemoryStore()
        child, paid = make(made, calls("pay", euros=5), says("child done"), name="child")
        middle = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], name="middle")
        top = Agent(ScriptedModel(calls("middle", task="t"), says("done")), tools=[middle.as_tool()], store=made)
        name = f"{len(session)}"
        (asked,) = (await top.run("go", session=name)).waiting_for
        await top.resolve(session.replace("s", name, 1), asked.id, Approve())
        result = await top.resume(name)
        assert (result.text, paid) == ("done", [5])


async def test_an_answer_that_only_the_inbox_of_the_child_has_is_heard(store):
    child, paid = make(store, calls("pay", euros=5), says("child done"), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    (asked,) = (await parent.run("go", session="s")).waiting_for
    answer = {"id": asked.id, "digest": asked.digest, "answer": {"answer": "Approve"}, "at": 0.0}
    await parent.store.put("s/1/1", f"answer/{asked.id}/1", "answer", answer)
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [5])


async def test_a_child_that_waits_can_be_cancelled_alone(store):
    child, paid = make(store, calls("pay", euros=5), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    await parent.run("go", session="s")
    other = Agent(ScriptedModel(), store=parent.store)
    assert await other.cancel("s/1/1", "enough")
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [])
    assert (await parent.state("s/1/1")).outcome == Cancelled("enough")


# ---------------------------------------------------------------- answerers in the process


@pytest.mark.parametrize("way", ["run", "stream", "iterate"])
async def test_an_approver_answers_at_once_and_the_turn_goes_on(store, way):
    agent, paid = make(store, calls("pay", euros=5), calls("pay", euros=50), says("done"))

    @agent.approver
    async def small_sums(asked: Any) -> Any:
        await asyncio.sleep(0)
        return Approve(by="rule") if asked.call.arguments["euros"] < 10 else None

    agent.approver(lambda asked: Reject("too much", by="boss"))
    if way == "run":
        state = (await agent.run("go", session="s")).state
    elif way == "stream":
        events = [event async for event in agent.stream("go", session="s")]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        state = await agent.state("s")
    else:
        state = [state async for state in agent.iterate("go", session="s")][-1]
    assert (state.text, paid) == ("done", [5])
    log = await agent.store.read("s")
    assert [r.by for r in log if isinstance(r, Answered)] == ["rule", "boss"]


async def test_what_no_approver_answers_stays_open(store):
    agent, _ = make(store, calls("pay", euros=5), says("done"), approvers=[lambda asked: None])
    result = await agent.run("go")
    assert len(result.waiting_for) == 1
    result = await agent.resume(result.session_id, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"


async def test_an_approver_cannot_approve_what_a_gate_denies(store):
    agent, paid = make(store, calls("pay", euros=5), says("done"), approvers=[lambda asked: Approve()])
    agent.gate(ToolCalling, name="never")(lambda event: Deny("never"))
    await agent.run("go")
    assert paid == []


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["a"], Approve(by="terminal")),
        (["reject not now"], Reject("not now", by="terminal")),
        (["what?", 'edit {"euros": 1}'], Edit({"euros": 1}, by="terminal")),
        (["resp paid by hand"], Respond("paid by hand", by="terminal")),
        ([""], None),
    ],
)
async def test_a_person_answers_at_the_terminal(monkeypatch, lines, answer):
    agent, _ = make(None, calls("pay", euros=5))
    (asked,) = (await agent.run("go")).waiting_for
    prompts: list[str] = []
    given = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: (prompts.append(prompt), next(given))[1])
    assert await at_the_terminal(asked) == answer
    assert 'pay {"euros":5}' in prompts[0]
