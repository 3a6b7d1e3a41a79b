"""A child that waits for a person, or whose process died, goes on exactly there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    Asked,
    Cancelled,
    Completed,
    Delegated,
    Delegating,
    Deny,
    Edit,
    Halt,
    Injected,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    Reject,
    SessionEnded,
    Stopped,
    StopReason,
    Suspended,
    ToolCall,
    ToolCalled,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    fold,
    tool,
)
from windlass.errors import StaleAnswer
from windlass.records import Record, decode, encode
from windlass.stores import MemoryStore
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .trees import CHILD, S1, Asking, Tree, asked_for, sound

# ---------------------------------------------------------------- a child that waits

ANN, BOB = "s1//1/1//1/1/1/1", "s1//1/3//1/1/1/1"


async def test_a_question_at_the_bottom_suspends_all_above_it():
    tree = Asking()
    result = await tree.root.run("go", session=S1)
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [ANN, BOB]
    assert [asked.question for asked in result.waiting_for] == ["Send to ann?", "Send to bob?"]
    assert tree.ran == ["look"], "a sibling runs to its end"
    for session in (S1, "s1//1/1", "s1//1/1//1/1", "s1//1/3", "s1//1/3//1/1"):
        assert isinstance((await tree.root.state(session)).outcome, Suspended)
    await sound(tree.root)


async def test_questions_are_answered_one_by_one_each_lets_its_own_child_go_on():
    tree = Asking()
    await tree.root.run("go", session=S1)
    before = [list(await tree.root.store.read(s)) for s in ("s1//1/1", "s1//1/1//1/1")]
    result = await tree.root.resume(S1, answers={BOB: Approve(by="eve")})
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [ANN]
    assert tree.ran == ["look", "bob"]
    assert [list(await tree.root.store.read(s)) for s in ("s1//1/1", "s1//1/1//1/1")] == before, "it was not entered"
    (answered,) = [r for r in await tree.root.store.read("s1//1/3//1/1") if isinstance(r, Answered)]
    assert (answered.id, answered.by) == (BOB, "eve")
    result = await tree.root.resume(S1, answers={ANN: Edit({"to": "amy"})})
    assert result.outcome == Completed()
    edited = '[Before this call ran, a person changed its arguments to {"to":"amy"}]\n'
    assert result.text == f"{edited}sent to amy; seen; sent to bob"
    assert tree.ran == ["look", "bob", "amy"]
    assert result.usage.requests == 2 + 4 * 2
    await sound(tree.root)


async def test_another_process_goes_on_exactly_there():
    first = Asking()
    await first.root.run("go", session=S1)
    second = Asking(first.root.store)
    result = await second.root.resume(S1, answers={ANN: Reject("no"), BOB: Approve()})
    assert result.text == "Denied: no; seen; sent to bob"
    assert second.ran == ["bob"]


async def test_an_answer_that_fits_nothing_is_refused_and_nothing_happens():
    tree = Asking()
    await tree.root.run("go", session=S1)
    await tree.root.resume(S1, answers={ANN: Approve()})
    for wrong in ({ANN: Approve()}, {"s1/1/9": Approve()}):
        before = list(await tree.root.store.read(S1))
        with pytest.raises(StaleAnswer):
            await tree.root.resume(S1, answers=wrong)
        assert list(await tree.root.store.read(S1)) == before
    assert tree.ran == ["look", "ann"]


async def test_a_question_of_a_child_that_expires_is_answered_by_its_default(clock: Any):
    tree = Asking(clock=clock, ask=Ask("?", expires=60))
    await tree.root.run("go", session=S1)
    await clock.advance(61)
    result = await tree.root.resume(S1)
    assert result.outcome == Completed()
    assert "expired" in result.text
    assert tree.ran == ["look"]


async def test_approvers_of_a_childs_question_are_checked_by_the_parent():
    tree = Asking(ask=Ask("?", approvers=("eve",)))
    await tree.root.run("go", session=S1)
    with pytest.raises(StaleAnswer, match="eve"):
        await tree.root.resume(S1, answers={ANN: Approve(by="mallory")})
    assert tree.ran == ["look"]


async def test_questions_of_a_child_that_ended_are_open_no_longer():
    two = calls([("work", {}), ("halt", {})])

    @tool
    def halt() -> str:
        """Halt."""
        return ""

    tree = Tree(child=FunctionModel(lambda r: two))
    tree.child.tool(halt)
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.child.gate(ToolReturning, tool="halt")(lambda event: Halt("that was it"))
    result = await tree.run()
    assert len(result.waiting_for) == 2
    result = await tree.parent.resume(S1, answers={f"{CHILD}/1/2": Approve()})
    assert result.outcome == Completed()
    assert result.waiting_for == ()
    assert "that was it" in (await tree.result()).text


@pytest.mark.parametrize("event", [TurnStarting, ModelCalling, ModelReplying, TurnEnding])
async def test_a_child_may_wait_anywhere(event: Any):
    tree = Tree()
    asked: list[int] = []

    @tree.child.gate(event, name="ask")
    def ask(event: Any) -> Ask | None:
        asked.append(1)
        return Ask() if len(asked) == 1 else None

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert tree.ran == ["work"]
    await sound(tree.parent)


async def test_wraps_around_a_call_do_not_see_its_child_wait():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    seen: list[str] = []

    @tree.parent.wrap(ToolCall, tool="child")
    async def insist(call: ToolCall, call_next: Any) -> Any:
        seen.append("in")
        try:
            result = await call_next(call)
        except Exception:
            seen.append("error")
            return await call_next(call)
        seen.append("out")
        return result

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    assert seen == ["in"]
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"
    assert seen == ["in", "in", "out"]
    assert list(await tree.parent.store.sessions()) == [S1, CHILD]


async def test_a_wrap_that_swallows_everything_cannot_answer_for_a_child_that_waits():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())

    @tree.parent.wrap(ToolCall, tool="child")
    async def greedy(call: ToolCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except BaseException:
            return "never mind"

    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    assert await tree.find(ToolReturned) == []


async def test_a_plain_wrap_does_not_see_it_either():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.parent.wrap(ToolCall, tool="child")(lambda call, call_next: call_next(call))
    result = await tree.run()
    assert isinstance(result.outcome, Suspended)
    result = await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert result.text == "done"


async def test_a_user_who_goes_on_ends_the_child_that_waits():
    tree = Asking()
    await tree.root.run("go", session=S1)
    ended: list[str] = []
    again = Asking(tree.root.store)
    again.root.gate(TurnEnding, band="guard")(lambda event: ended.append(event.turn.session_id))
    again.root.model = ScriptedModel(says("hello"))
    result = await again.root.run("forget it", session=S1)
    assert result.text == "hello"
    for session in ("s1//1/1", "s1//1/1//1/1", "s1//1/3", "s1//1/3//1/1"):
        assert isinstance((await again.root.state(session)).outcome, Cancelled)
    assert ended == ["s1//1/1//1/1", "s1//1/1", "s1//1/3//1/1", "s1//1/3", S1, S1]
    assert again.ran == []
    await sound(again.root)


async def test_a_halt_on_a_sibling_ends_the_child_that_waits():
    @tool
    def stop() -> str:
        """Stop."""
        return ""

    both = calls([("child", {"task": "x"}), ("stop", {})])
    tree = Tree(parent=ScriptedModel(both))
    tree.parent.tool(stop)
    tree.child.gate(ToolCalling)(lambda event: Ask())
    tree.parent.gate(ToolReturning, tool="stop")(lambda event: Halt("stop all"))
    result = await tree.run()
    assert result.outcome == Stopped(StopReason.HALTED, "stop all")
    assert isinstance((await tree.parent.state(CHILD)).outcome, Cancelled)


async def test_resume_asks_new_gates_about_a_task_that_has_not_started():
    tree = Tree()
    tree.parent.gate(Delegating, name="ask")(lambda event: Ask())
    result = await tree.run()
    again = Agent(asked_for(), name="parent", tools=tree.parent.tools.values(), store=tree.parent.store)
    again.gate(Delegating, name="ask")(lambda event: Ask())
    again.gate(Delegating, name="new")(lambda event: Deny("not any more"))
    await again.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert (await tree.result()).text == "Denied: not any more"


# ---------------------------------------------------------------- a process that dies


class Journal(MemoryStore):
    """A store that would outlive its process; it knows the order in which all its sessions were written."""

    durable = True

    def __init__(self, batches: Sequence[tuple[str, Sequence[Record]]] = ()) -> None:
        super().__init__()
        self.batches: list[tuple[str, list[Record]]] = []
        for session, records in batches:
            self.keep(session, records)

    def keep(self, session: str, records: Sequence[Record]) -> bool:
        self.batches.append((session, list(records)))
        return self.append_now(session, records, len(self._logs.get(session, [])))

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        self.batches.append((session, list(records)))
        return self.append_now(session, records, expected)


async def to_the_end(agent: Agent[Any, Any], session: str = S1) -> Any:
    """Go on until the turn is over, approving all that is asked, one after the other."""
    if not await agent.store.read(session):
        result = await agent.run("go", session=session)
    else:
        result = await agent.resume(session)
    for _ in range(50):
        if not isinstance(result.outcome, Suspended):
            break
        result = await agent.resume(session, answers={result.waiting_for[-1].id: Approve()})
    return result


def plainly(store: Journal) -> Asking:
    return Asking(store)


def with_wraps(store: Journal) -> Asking:
    """Wraps around all that a child lives in, and a guard's."""
    tree = Asking(store)

    async def around(value: Any, call_next: Any) -> Any:
        return await call_next(value)

    for agent in (tree.root, tree.middle, tree.leaf):
        for effect in (ToolCall, ModelCall, Turn):
            agent.wrap(effect)(around)
    tree.root.wrap(ToolCall, band="guard", name="guard")(around)
    return tree


def with_questions_about_tasks(store: Journal) -> Asking:
    """Each task has to be approved and brings something along."""
    tree = Asking(store)
    tree.root.gate(Delegating, inherit=True, name="task?")(lambda event: Ask(f"{event.task.agent}?"))
    tree.root.inject(Delegating, inherit=True, name="hint")(lambda event: "Mind the gap.")
    tree.root.inject(Delegating, inherit=True, name="secret")(lambda event: Injected("Psst.", record=False))

    @tree.leaf.gate(ModelCalling, name="hears")
    def hears(event: ModelCalling) -> Halt | None:
        text = event.request.messages[0].text
        return None if text.endswith("Mind the gap.Psst.") else Halt(f"it heard {text!r} only")

    return tree


def with_questions_at_the_ends(store: Journal) -> Asking:
    """The children ask before they start and before they end."""
    tree = Asking(store)
    for agent in (tree.middle, tree.leaf):
        agent.gate(TurnStarting, name="start?")(lambda event: Ask("start?"))
        agent.gate(TurnEnding, name="end?")(lambda event: Ask("end?"))
    return tree


@pytest.mark.parametrize(
    "made",
    [plainly, with_wraps, with_questions_about_tasks, with_questions_at_the_ends],
    ids=lambda made: made.__name__,
)
async def test_whatever_a_dead_process_has_written_another_goes_on_from_there(made: Callable[[Journal], Asking]):
    """Every prefix of what was written, over all sessions, can be resumed; nothing happens twice."""
    whole = Journal()
    expected = await to_the_end(made(whole).root)
    assert expected.text == "sent to ann; seen; sent to bob"
    assert len(whole.batches) > 20
    for cut in range(len(whole.batches)):
        store = Journal(whole.batches[:cut])
        told = {
            record.call
            for session in await store.sessions()
            for record in await store.read(session)
            if isinstance(record, ToolReturned)
        }
        started = {
            record.call
            for session in await store.sessions()
            for record in await store.read(session)
            if isinstance(record, ToolCalled) and record.name in ("send", "look") and record.call not in told
        }
        if S1 in await store.sessions() and fold(S1, await store.read(S1)).over:
            continue
        tree = made(store)
        result = await to_the_end(tree.root)
        assert result.outcome == Completed(), cut
        if started:
            assert "outcome unknown" in result.text
        else:
            assert result.text == expected.text, cut
            assert result.usage == expected.usage, cut
        assert len(tree.ran) == len(set(tree.ran))
        for session in await store.sessions():
            log = list(await store.read(session))
            assert fold(session, [decode(encode(record)) for record in log]) == fold(session, log)
            assert fold(session, log).over
            counted = [r.call for r in log if isinstance(r, ToolReturned)]
            assert len(counted) == len(set(counted))


def cut_after(journal: Journal, session: str, kind: type) -> Journal:
    """The journal as it was when the first record of a kind had been written to a session."""
    for index, (name, records) in enumerate(journal.batches):
        if name == session and any(isinstance(record, kind) for record in records):
            return Journal(journal.batches[: index + 1])
    raise AssertionError(f"no {kind.__name__} in {session}")


async def test_a_child_that_is_over_is_not_run_again():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, CHILD, SessionEnded)
    assert not [r for r in await store.read(S1) if isinstance(r, ToolReturned)]
    again = Tree(store=store, child=ScriptedModel())
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert (await again.result()).text == "worked"
    assert again.ran == []
    assert result.usage.requests == 4, "what it spent is charged"


async def test_a_child_that_was_interrupted_goes_on():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, CHILD, ModelReplied)
    model = ScriptedModel(says("worked again"))
    again = Tree(store=store, child=model)
    before = [r for r in await store.read(CHILD) if isinstance(r, ModelReplied)]
    assert len(before) == 1
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert len(model.requests) == 1
    assert (await again.result()).text == "worked again"


async def test_a_child_that_was_never_started_is_started():
    whole = Journal()
    await Tree(store=whole).run()
    store = cut_after(whole, S1, Delegated)
    assert CHILD not in await store.sessions()
    again = Tree(store=store)
    result = await again.parent.resume(S1)
    assert result.text == "done"
    assert again.ran == ["work"]
    assert len(await again.find(Delegated)) == 1


async def test_an_answer_that_had_not_reached_the_child_is_delivered():
    whole = Journal()
    await to_the_end(Asking(whole).root)
    at = next(
        i for i, (s, batch) in enumerate(whole.batches) if s == S1 and any(isinstance(r, Answered) for r in batch)
    )
    store = Journal(whole.batches[: at + 1])
    assert not any(isinstance(r, Answered) for r in await store.read("s1//1/3"))
    tree = Asking(store)
    result = await tree.root.resume(S1)
    assert [asked.id for asked in result.waiting_for] == [ANN]
    assert tree.ran == ["bob"]


async def test_an_answer_is_delivered_once_even_if_the_same_is_asked_again():
    """The child has used the answer and asks again; the parent, which died, has only the first answer."""

    def made(store: Any) -> Tree:
        tree = Tree(store=store)
        tree.child.gate(ToolCalling, name="ask", on_resume="rerun")(lambda event: Ask("first?"))
        tree.child.gate(ModelCalling, name="later")(
            lambda event: Ask("later?") if len(event.request.messages) > 1 else None
        )
        return tree

    whole = Journal()
    tree = made(whole)
    result = await tree.run()
    first = result.waiting_for[0].id
    result = await tree.parent.resume(S1, answers={first: Approve()})
    (asked,) = [r for r in await tree.log() if isinstance(r, Answered)]
    again = Asked(first, "ToolCalling", "first?", ("approve", "reject"), asked.digest, ("ask",))
    batches = [(s, b) for s, b in whole.batches if s == S1 or not any(isinstance(r, SessionEnded) for r in b)]
    at = max(i for i, (s, b) in enumerate(batches) if s == CHILD and any(isinstance(r, Answered) for r in b))
    store = Journal(batches[: at + 1])
    store.keep(CHILD, [again, Suspended((again,))])
    second = made(store)
    result = await second.parent.resume(S1)
    assert isinstance(result.outcome, Suspended)
    assert [asked.id for asked in result.waiting_for] == [first]
    assert second.ran == []
