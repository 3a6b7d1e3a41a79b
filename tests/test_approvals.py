"""Answers from elsewhere, and answerers in the process: the same path as `resume(answers=…)`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Answered, Approve, Ask, Cancelled, Deny, Edit, Failed, Reject, Respond, ToolCalling, tool
from windlass.approvals import at_the_terminal, open_questions, resolve, terminal_approver
from windlass.errors import SessionUnknown, StaleAnswer, StoreError
from windlass.records import InboxTaken
from windlass.stores import MemoryStore, open_store
from windlass.stores.postgres import PostgresStore
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


def make(store: Any, *replies: Any, ask: Any = None, **options: Any) -> tuple[Agent, list[int]]:
    paid: list[int] = []

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return f"paid {euros}"

    agent = Agent(ScriptedModel(*replies), tools=[pay], store=store, **options)
    agent.gate(ToolCalling, name="ask")(lambda event: Ask("Pay?", **(ask or {})))
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
        (
            Edit({"euros": 3}, by="ann"),
            ([3], '[Before this call ran, ann changed its arguments to {"euros":3}]\npaid 3'),
        ),
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
    with pytest.raises(StaleAnswer, match="no question is open"):
        await agent.resolve("s", asked.id, Approve())


async def test_what_does_not_fit_is_refused_and_changes_nothing(store):
    """Behaviours 50, 101: unknown, disallowed, by the wrong person or too late."""
    clock = FakeClock()
    agent, _ = make(store, calls("pay", euros=5), says("done"), clock=clock)
    agent._registered.hooks.pop(0)
    agent.gate(ToolCalling, name="careful")(
        lambda event: Ask("Sure?", allow=("approve", "reject"), approvers=("ann",), expires=60)
    )
    (asked,) = (await agent.run("go", session="s")).waiting_for
    with pytest.raises(SessionUnknown):
        await agent.resolve("nobody", asked.id, Approve())
    with pytest.raises(StaleAnswer, match="no such question"):
        await agent.resolve("s", "s/9/9", Approve())
    with pytest.raises(StaleAnswer, match="cannot be answered with 'edit'"):
        await agent.resolve("s", asked.id, Edit({"euros": 1}, by="ann"))
    with pytest.raises(StaleAnswer, match="may not answer"):
        await agent.resolve("s", asked.id, Approve(by="bob"))
    await clock.advance(61)
    with pytest.raises(StaleAnswer, match="expired"):
        await agent.resolve("s", asked.id, Approve(by="ann"))
    assert list(await agent.store.inbox("s", ())) == []


def expiring(store: Any, clock: FakeClock, default: Any) -> tuple[Agent, list[int]]:
    agent, paid = make(store, calls("pay", euros=5), says("done"), clock=clock)
    agent._registered.hooks.pop(0)
    agent.gate(ToolCalling, name="soon")(lambda event: Ask("Sure?", expires=60, default=default))
    return agent, paid


async def answers_of(agent: Agent, session: str = "s") -> list[Any]:
    return [record.answer for record in await agent.store.read(session) if isinstance(record, Answered)]


@pytest.mark.parametrize("default", ["approve", "reject"])
@pytest.mark.parametrize(
    ("answer", "outcome"), [(Reject("no"), []), (Respond("was paid"), []), (Edit({"euros": 1}), [1]), (Approve(), [5])]
)
async def test_an_answer_given_in_time_stands_however_late_it_is_read(store, default, answer, outcome):
    """Behaviour 101: stale is what is answered after the question has expired, not what is read after that."""
    clock = FakeClock()
    agent, paid = expiring(store, clock, default)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await clock.advance(59)
    await agent.resolve("s", asked.id, answer)
    await clock.advance(3600)
    result = await agent.resume("s")
    assert (result.text, paid) == ("done", outcome)
    assert await answers_of(agent) == [answer]


@pytest.mark.parametrize(("default", "outcome"), [("approve", [5]), ("reject", [])])
async def test_an_answer_after_the_default_was_recorded_is_refused(store, default, outcome):
    clock = FakeClock()
    agent, paid = expiring(store, clock, default)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    answer = {"id": asked.id, "digest": asked.digest, "at": clock.now(), "answer": {"answer": "Respond", "text": "x"}}
    await clock.advance(60)
    await agent.resume("s")
    with pytest.raises(StaleAnswer, match="no such question is open"):
        await agent.resolve("s", asked.id, Respond("x"))
    await agent.store.put("s", "late", "answer", answer)
    assert paid == outcome
    (given,) = await answers_of(agent)
    assert isinstance(given, Approve if outcome else Reject)


@pytest.mark.parametrize("at", [None, 60.0, 1e12, "0", float("inf")])
@pytest.mark.parametrize("default", ["approve", "reject"])
@pytest.mark.parametrize("read", [59, 60])
async def test_when_an_answer_was_given_is_not_believed_if_it_says_nothing_or_too_late(store, at, default, read):
    """What is read in time was given in time, whatever the clock of whoever gave it says."""
    clock = FakeClock(start=0.0)
    agent, paid = expiring(store, clock, default)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    answer = {"id": asked.id, "digest": asked.digest, "answer": {"answer": "Edit", "arguments": {"euros": 1}}}
    await agent.store.put("s", f"answer/{asked.id}/1", "answer", answer if at is None else answer | {"at": at})
    await clock.advance(read)
    await agent.resume("s")
    assert paid == ([1] if read < 60 else [5] if default == "approve" else [])


@pytest.mark.parametrize(
    "wrong",
    [
        "yes",
        None,
        [],
        {},
        {"answer": {"answer": "Approve"}},
        {"id": "ID", "digest": "DIGEST"},
        {"id": "ID", "digest": "DIGEST", "answer": {"answer": "Yes"}},
    ],
)
async def test_what_is_no_answer_does_not_stand_in_the_way_of_one(store, wrong):
    agent, paid = make(store, calls("pay", euros=5), says("done"))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    if isinstance(wrong, dict) and "id" in wrong:
        wrong = {**wrong, "id": asked.id, "digest": asked.digest}
    await agent.store.put("s", "wrong", "answer", wrong)
    assert (await agent.resume("s")).waiting_for == (asked,)
    await agent.resolve("s", asked.id, Approve())
    assert ((await agent.resume("s")).text, paid) == ("done", [5])


@pytest.mark.parametrize("default", ["approve", "reject"])
async def test_an_answer_that_arrives_while_the_session_is_opened_beats_the_default(store, default):
    """Whoever sees that a question has expired looks once more whether it was answered before."""
    clock = FakeClock()
    agent, paid = expiring(store, clock, default)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await clock.advance(59)
    given = clock.now()
    await clock.advance(1)
    inbox, looked = agent.store.inbox, []

    async def look_and_answer(session: str, taken: Any) -> Any:
        found = await inbox(session, taken)
        looked.append(session)
        if len(looked) == 1:
            await resolve(agent.store, "s", asked.id, Reject("no"), now=given)
        return found

    agent.store.inbox = look_and_answer  # type: ignore[method-assign]
    await agent.resume("s")
    assert paid == []
    assert await answers_of(agent) == [Reject("no")]


async def test_a_child_hears_an_answer_in_time_that_its_parent_reads_late(store):
    clock = FakeClock()
    child, paid = expiring(store, clock, "reject")
    child.name = "child"
    parent = Agent(
        ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store, clock=clock
    )
    (asked,) = (await parent.run("go", session="s")).waiting_for
    await parent.resolve("s//1/1", asked.id, Approve())
    await clock.advance(61)
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [5])


async def test_an_answer_that_arrives_while_siblings_work_takes_effect_at_once(store):
    """Behaviour 110: nothing conflicts, and the turn does not even suspend."""
    agent, paid = make(store, calls([("pay", {"euros": 5}), ("wait", {})]), says("done"))

    @agent.tool
    async def wait() -> str:
        """Meanwhile, elsewhere, somebody answers."""
        for session, asked in await agent.store.approvals():
            await resolve(agent.store, session, asked.id, Approve())
        return "waited"

    agent._registered.hooks[0].matches = lambda event: event.call.name == "pay"
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


@pytest.mark.parametrize("first", ["s", "s//1/1"])
@pytest.mark.parametrize("second", ["s", "s//1/1"])
async def test_a_question_of_a_child_is_answered_once_by_whichever_session(store, first, second):
    child, paid = make(store, calls("pay", euros=5), says("child done"), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    (asked,) = (await parent.run("go", session="s")).waiting_for
    await parent.resolve(first, asked.id, Reject("no"))
    with pytest.raises(StaleAnswer, match="answered already"):
        await parent.resolve(second, asked.id, Approve())
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [])
    assert [by for s in ("s", "s//1/1") for by, _, _ in await parent.store.inbox(s, ())] == []


async def test_a_question_of_a_grandchild_is_answered_by_any_of_the_three_sessions(store):
    for session in ("s", "s//1/1", "s//1/1//1/1"):
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
    await parent.store.put("s//1/1", f"answer/{asked.id}/1", "answer", answer)
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [5])


def nested(store: Any, clock: FakeClock | None = None, **ask: Any) -> tuple[Agent, list[int]]:
    """An agent over an agent over an agent that asks before it pays, twice at once."""
    twice = calls([("pay", {"euros": 5}), ("pay", {"euros": 7})])
    lowest, paid = make(store, twice, says("lowest done"), name="lowest")
    lowest._registered.hooks.pop(0)
    lowest.gate(ToolCalling, name="ask")(lambda event: Ask("Pay?", **ask))
    middle = Agent(ScriptedModel(calls("lowest", task="t"), says("ok")), tools=[lowest.as_tool()], name="middle")
    script = ScriptedModel(calls("middle", task="t"), says("done"))
    return Agent(script, tools=[middle.as_tool()], store=store, clock=clock), paid


LEVELS = ["s", "s//1/1", "s//1/1//1/1"]

ANSWER = """
import asyncio, sys
from windlass.approvals import resolve
from windlass.decisions import Approve, Reject
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore

async def main(file, how, session, *answers):
    store = SQLiteStore(file)
    for answer in answers:
        ask_id, _, kind = answer.partition("=")
        if how == "resolve":
            await resolve(store, session, ask_id, Approve() if kind == "Approve" else Reject("no"))
        else:
            asked = {ask.id: ask for _, ask in await store.approvals()}[ask_id]
            data = {"id": ask_id, "digest": asked.digest, "answer": {"answer": kind}, "at": 0.0}
            assert await store.put(session, f"answer/{ask_id}/1", "answer", data)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def elsewhere(file: Path, *arguments: str) -> None:
    """Let another process answer."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ANSWER, str(file), *arguments, env=environment)
    assert await process.wait() == 0


@pytest.mark.parametrize("session", LEVELS)
@pytest.mark.parametrize("how", ["resolve", "put"])
async def test_an_answer_in_any_inbox_of_three_levels_is_heard_from_another_process(tmp_path, how, session):
    """Behaviour 110: by the id of the call; whichever of the sessions has it, the root hears it."""
    file = tmp_path / "s.db"
    store = SQLiteStore(file)
    root, paid = nested(store)
    first, second = (await root.run("go", session="s")).waiting_for
    await elsewhere(file, how, session, f"{second.id}=Approve")
    result = await root.resume("s")
    assert ([asked.id for asked in result.waiting_for], paid) == ([first.id], [7])
    await elsewhere(file, how, session, f"{first.id}=Reject")
    result = await root.resume("s")
    assert (result.text, paid) == ("done", [7])
    assert [list(await store.inbox(level, ())) for level in LEVELS] == [[], [], []]
    for level in LEVELS:
        given = [r.id for r in await store.read(level) if isinstance(r, Answered)]
        assert given == [second.id, first.id]
        await store.verify(level)
    await store.close()


async def test_a_rejection_that_only_the_lowest_inbox_has_beats_a_default_that_approves(store):
    clock = FakeClock()
    root, paid = nested(store, clock, expires=60, default="approve")
    first, _ = (await root.run("go", session="s")).waiting_for
    answer = {"id": first.id, "digest": first.digest, "answer": {"answer": "Reject"}, "at": clock.now()}
    await root.store.put(LEVELS[2], f"answer/{first.id}/1", "answer", answer)
    await clock.advance(61)
    result = await root.resume("s")
    assert (result.text, paid) == ("done", [7])


async def test_an_answer_is_that_of_the_lowest_inbox_if_they_differ(store):
    root, paid = nested(store)
    first, second = (await root.run("go", session="s")).waiting_for
    for level, kind in zip(LEVELS, ["Approve", "Approve", "Reject"], strict=True):
        for asked in (first, second):
            answer = {"id": asked.id, "digest": asked.digest, "answer": {"answer": kind}, "at": 0.0}
            await root.store.put(level, f"answer/{asked.id}/1", "answer", answer)
    result = await root.resume("s")
    assert (result.text, paid) == ("done", [])


@pytest.mark.parametrize("level", LEVELS[1:])
async def test_an_agent_two_levels_below_that_waits_can_be_cancelled_alone(store, level):
    root, paid = nested(store)
    await root.run("go", session="s")
    assert await root.cancel(level, "not needed")
    result = await root.resume("s")
    assert (result.text, paid) == ("done", [])
    assert (await root.state(level)).outcome == Cancelled("not needed")


async def test_a_child_that_waits_can_be_cancelled_alone(store):
    child, paid = make(store, calls("pay", euros=5), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("done")), tools=[child.as_tool()], store=store)
    await parent.run("go", session="s")
    other = Agent(ScriptedModel(), store=parent.store)
    assert await other.cancel("s//1/1", "enough")
    result = await parent.resume("s")
    assert (result.text, paid) == ("done", [])
    assert (await parent.state("s//1/1")).outcome == Cancelled("enough")


# ---------------------------------------------------------------- answers at the same moment


class Between:
    """A store that does something right before certain calls: what other processes do just then."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._first: dict[tuple[str, str], list[Any]] = {}

    def first(self, method: str, session: str, do: Any) -> None:
        """Do this before the next call of a method about a session."""
        self._first.setdefault((method, session), []).append(do)

    def __getattr__(self, method: str) -> Any:
        async def call(session: str, *rest: Any) -> Any:
            if self._first.get((method, session)):
                await self._first[method, session].pop(0)()
            return await getattr(self._store, method)(session, *rest)

        return call


async def test_an_answer_that_is_taken_between_reading_the_log_and_the_inbox_is_given_once(store):
    root, paid = nested(store)
    asked, other = (await root.run("go", session="s")).waiting_for
    late = Between(root.store)

    async def answer() -> None:
        await root.resolve("s", asked.id, Approve())

    async def resume() -> None:
        await root.resume("s")

    late.first("put", LEVELS[-1], answer)
    late.first("inbox", LEVELS[-1], lambda: asyncio.sleep(0))
    late.first("inbox", LEVELS[-1], resume)
    with pytest.raises(StaleAnswer, match="open: .*" + other.id):
        await resolve(late, "s", asked.id, Reject("no"))
    assert paid == [5]
    assert [list(await root.store.inbox(level, ())) for level in LEVELS] == [[], [], []]


async def test_an_answer_that_was_passed_on_before_all_inboxes_have_it_is_given_once(store):
    """Its giver was stopped after the inbox of the agent that asks, and another process went on meanwhile."""
    root, paid = nested(store)
    asked, _ = (await root.run("go", session="s")).waiting_for
    slow, late = Between(root.store), Between(root.store)
    accepted = []

    async def give() -> None:
        await resolve(slow, "s", asked.id, Approve())
        accepted.append("slow")

    async def others() -> None:
        with pytest.raises(StaleAnswer):
            await resolve(late, "s", asked.id, Reject("no"))

    async def resume() -> None:
        await root.resume("s")

    slow.first("put", LEVELS[1], others)
    late.first("read", LEVELS[-1], resume)
    await give()
    assert (paid, accepted) == ([5], ["slow"])


async def test_a_question_that_is_answered_above_is_not_open_below(tmp_path):
    """The process ended when it had written the answer into the log of the parent, before it told the child."""

    class Failing(SQLiteStore):
        fails = False

        async def append(self, session: str, *rest: Any) -> bool:
            if self.fails and session == LEVELS[-1]:
                raise StoreError("the disk is full")
            return await super().append(session, *rest)

    store = Failing(tmp_path / "s.db")
    root, paid = nested(store)
    asked, other = (await root.run("go", session="s")).waiting_for
    store.fails = True
    assert isinstance((await root.resume("s", answers={asked.id: Approve()})).outcome, Failed)
    store.fails = False
    for level in LEVELS:
        with pytest.raises(StaleAnswer):
            await resolve(store, level, asked.id, Reject("no"))
        assert [one.id for _, one in await open_questions(store, level)] == [other.id]
    result = await root.resume("s", answers={other.id: Approve()})
    assert (result.text, sorted(paid)) == ("done", [5, 7])
    await store.close()


async def test_the_question_of_an_agent_that_was_erased_is_not_open(store):
    root, paid = nested(store)
    asked, _ = (await root.run("go", session="s")).waiting_for
    await root.store.erase(LEVELS[-1])
    for level in LEVELS[:-1]:
        assert await open_questions(root.store, level) == []
        with pytest.raises(StaleAnswer, match="the agent that asked it has ended"):
            await resolve(root.store, level, asked.id, Approve())
    assert await open_questions(root.store) == []
    assert paid == []


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
        (["edit nonsense", "edit [1]", "a"], Approve(by="terminal")),
        (["always pay(euros=?)"], Approve(by="terminal", remember="pay(euros=?)")),
        (["always", "always (", "reject"], Reject("", by="terminal")),
        ([], None),
    ],
)
async def test_a_person_answers_at_the_terminal(monkeypatch, lines, answer):
    agent, _ = make(None, calls("pay", euros=5))
    (asked,) = (await agent.run("go")).waiting_for
    prompts: list[str] = []
    monkeypatch.setattr("builtins.input", typed(lines, prompts))
    assert await at_the_terminal(asked) == answer
    assert 'pay {"euros":5}' in prompts[0]


def typed(lines: list[str], prompts: list[str]) -> Any:
    """A person who types these lines; then the input ends."""
    given = iter(lines)

    def type_line(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    return type_line


async def test_a_person_at_the_terminal_answers_in_their_own_name(monkeypatch):
    prompts: list[str] = []
    monkeypatch.setattr("builtins.input", typed(["a"], prompts))
    agent, _ = make(None, calls("pay", euros=5), says("done"), approvers=[terminal_approver("ann")])
    agent._registered.hooks.clear()
    agent.gate(ToolCalling, name="other")(lambda event: Ask("Really?", approvers=("bob",)))
    await agent.run("go")
    assert prompts == []
    agent, _ = make(None, calls("pay", euros=5), says("done"), approvers=[terminal_approver("ann")])
    agent.gate(ToolCalling, name="other")(lambda event: Ask("Really?", approvers=("ann", "bob"), quorum=2))
    [asked] = (await agent.run("go")).waiting_for
    assert "other: 0 of 2, needs ann or bob" in prompts[0]
    assert [answered.by for answered in asked.answers] == ["ann"]


# ---------------------------------------------------------------- two answers at the same time


class Interrupted:
    """Lets somebody else act just after the n-th call that a pass makes to its store."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.act: Any = None
        for name in ("read", "inbox", "put", "append"):
            monkeypatch.setattr(store, name, self._watch(getattr(store, name)))

    def _watch(self, method: Any) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            returned = await method(*args, **named)
            if self.act is not None:
                self.left -= 1
                if self.left == 0:
                    act, self.act = self.act, None
                    await act()
            return returned

        return call


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def kept(request: Any, tmp_path: Any) -> Any:
    if request.param == "memory":
        yield MemoryStore()
        return
    where = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("database")
    made = SQLiteStore(where) if request.param == "sqlite" else PostgresStore(where)
    yield made
    await made.close()


@pytest.mark.parametrize("below", [False, True])
async def test_of_two_answers_at_the_same_time_the_one_that_is_accepted_takes_effect(kept, below, monkeypatch):
    """Behaviour 101: whenever `resolve` comes while `resume` brings an answer, too."""
    interrupted = Interrupted(kept, monkeypatch)
    winners: list[str] = []
    for n in range(1, 40):
        agent, paid = make(kept, calls("pay", euros=5), says("done"))
        if below:
            payer = agent.as_tool("payer", "Pays.")
            agent = Agent(ScriptedModel(calls("payer", task="t"), says("done")), tools=[payer], store=kept)
        (asked,) = (await agent.run("go", session=f"s{n}")).waiting_for
        refused: list[str] = []

        async def reject(session: str = f"s{n}", asked: Any = asked, refused: list[str] = refused) -> None:
            try:
                await resolve(kept, session, asked.id, Reject("no"))
            except StaleAnswer:
                refused.append("reject")

        interrupted.left, interrupted.act = n, reject
        try:
            await agent.resume(f"s{n}", answers={asked.id: Approve()})
        except StaleAnswer:
            refused.append("approve")
            await agent.resume(f"s{n}")
        if interrupted.act is not None:  # the pass was over before its n-th call
            interrupted.act = None
            break
        assert (len(refused), paid) == (1, [5] if refused == ["reject"] else []), n
        assert list(await kept.inbox(f"s{n}", ())) == []
        winners += refused
    assert set(winners) == {"approve", "reject"}


ANSWERS = """
import asyncio, sys
from windlass.approvals import resolve
from windlass.decisions import Approve
from windlass.errors import StaleAnswer
from windlass.stores import open_store

async def main(address):
    store = open_store(address)
    for line in sys.stdin:
        session, ask_id, now = line.split()
        try:
            await resolve(store, session, ask_id, Approve(by="ann"), now=float(now))
            print("accepted", flush=True)
        except StaleAnswer:
            print("refused", flush=True)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


class Person:
    """Answers from another process, whose clock says that there is still time."""

    def __init__(self, address: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ANSWERS, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip

    async def approve(self, session: str, ask_id: str, now: float) -> str:
        return await asyncio.to_thread(self._approve, f"{session} {ask_id} {now}\n")

    def _approve(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: Any, tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.mark.parametrize("terms", [{"expires": 60.0}, {"expires": 60.0, "approvers": ("ann", "bob"), "quorum": 2}])
@pytest.mark.parametrize("below", [False, True])
async def test_of_a_default_and_an_answer_at_the_same_time_the_one_that_is_accepted_takes_effect(
    address, below, terms, monkeypatch
):
    """Behaviour 101: a person's process may read its clock just before the question expires, and answer just after."""
    store, clock = open_store(address), FakeClock()
    interrupted = Interrupted(store, monkeypatch)
    person = Person(address)
    told: list[str] = []
    with person.process:
        for n in range(1, 60):
            agent, paid = make(store, calls("pay", euros=5), says("done"), clock=clock, ask=terms)
            if below:
                payer = agent.as_tool("payer", "Pays.")
                agent = Agent(
                    ScriptedModel(calls("payer", task="t"), says("done")), tools=[payer], store=store, clock=clock
                )
            session = f"s{n}"
            (asked,) = (await agent.run("go", session=session)).waiting_for
            in_time = clock.now() + 59
            await clock.advance(61)
            said: list[str] = []

            async def approve(
                session: str = session, ask_id: str = asked.id, now: float = in_time, said: list[str] = said
            ) -> None:
                said.append(await person.approve(session, ask_id, now))

            interrupted.left, interrupted.act = n, approve
            await agent.resume(session)
            if interrupted.act is not None:  # the pass was over before its n-th call
                interrupted.act = None
                break
            log = await store.read(session)
            answers = [record for record in log if isinstance(record, Answered)]
            approved = [record for record in answers if record.by == "ann"]
            assert (said, bool(approved)) in ((["accepted"], True), (["refused"], False)), n
            counted = [record for record in answers if not record.partial]
            assert len(counted) == 1, n
            assert counted[0].expired == (said == ["refused"] or "quorum" in terms), n
            assert paid == ([5] if said == ["accepted"] and "quorum" not in terms else []), n
            assert list(await store.inbox(session, ())) == []
            told += said
        person.process.stdin.close()
    await store.close()
    assert set(told) == {"accepted", "refused"}


async def test_a_default_whose_process_dies_before_it_is_recorded_stands(tmp_path, monkeypatch):
    """Behaviour 101: it has taken the place of an answer, so an answer that comes later is refused."""
    store, clock = SQLiteStore(tmp_path / "s.db"), FakeClock()
    agent, paid = make(store, calls("pay", euros=5), says("done"), clock=clock, ask={"expires": 60.0})
    (asked,) = (await agent.run("go", session="s")).waiting_for
    in_time = clock.now() + 59
    await clock.advance(61)
    put = store.put

    async def put_and_fail(*entry: Any) -> bool:
        await put(*entry)
        raise StoreError("gone")

    monkeypatch.setattr(store, "put", put_and_fail)
    with suppress(StoreError):
        await agent.resume("s")
    monkeypatch.undo()
    with pytest.raises(StaleAnswer, match="it has been answered already"):
        await resolve(store, "s", asked.id, Approve(), now=in_time)
    assert (await agent.resume("s")).text == "done"
    assert paid == []
    assert [record.expired for record in await store.read("s") if isinstance(record, Answered)] == [True]
    await store.close()
