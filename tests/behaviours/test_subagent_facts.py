"""A parent's observers and its stream hear the facts of its child."""

from __future__ import annotations

from typing import Any

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    Asked,
    ModelReplying,
    Regenerate,
    Retracted,
    Slot,
    StepStarted,
    TextDelta,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
)
from windlass.testing import ScriptedModel, calls, says

from .trees import CHILD, S1, Notes, Tree, asked_for, nested

# ---------------------------------------------------------------- what observers hear


async def test_the_parents_observers_hear_the_child_with_its_path():
    agent, _ = nested(3)
    heard: list[tuple[str, str]] = []
    agent.observe(TurnEnded, wait=True)(lambda fact: heard.append((fact.path, type(fact.outcome).__name__)))
    agent.observe(StepStarted, wait=True)(lambda fact: heard.append((fact.path, f"step {fact.step}")))
    await agent.run("go", session=S1)
    low, mid = "s1//1/1//1/1", "s1//1/1"
    assert heard == [
        ("", "step 1"),
        (mid, "step 1"),
        (low, "step 1"),
        (low, "step 2"),
        (low, "Completed"),
        (mid, "step 2"),
        (mid, "Completed"),
        ("", "step 2"),
        ("", "Completed"),
    ]


async def test_nobody_is_told_twice():
    tree = Tree()
    own: list[str] = []
    above: list[str] = []
    tree.child.observe(TurnEnded)(lambda fact: own.append(fact.path))
    tree.parent.observe(TurnEnded, inherit=True)(lambda fact: above.append(fact.path))
    await tree.run()
    assert own == [""]
    assert above == [CHILD, ""]


async def test_a_question_and_its_answer_are_told_once():
    tree = Tree()
    tree.child.gate(ToolCalling)(lambda event: Ask())
    heard: list[tuple[str, str]] = []
    tree.parent.observe(Asked)(lambda fact: heard.append((fact.path, "asked")))
    tree.parent.observe(Answered)(lambda fact: heard.append((fact.path, "answered")))
    result = await tree.run()
    await tree.parent.resume(S1, answers={result.waiting_for[0].id: Approve()})
    assert heard == [(CHILD, "asked"), ("", "answered")]


async def test_an_observer_sees_the_turn_in_which_the_fact_happened():
    tree = Tree()
    tree.parent.slot(Slot("notes", Notes))
    seen: list[Any] = []

    @tree.parent.observe(ToolReturned)
    def look(fact: ToolReturned, turn: Turn, notes: Notes) -> None:
        seen.append((turn.session_id, notes.lines))

    await tree.run()
    assert seen == [(CHILD, []), (S1, [])]


async def test_a_durable_observer_reads_the_childs_log_too():
    tree = Tree()
    heard: list[tuple[str, str]] = []
    tree.parent.observe(ToolReturned, durable=True)(lambda fact: heard.append((fact.path, fact.name)))
    await tree.run()
    assert sorted(heard) == [("", "child"), (CHILD, "work")]


async def test_an_observer_that_fails_on_a_childs_fact_hurts_nobody():
    tree = Tree()

    @tree.parent.observe(ToolReturned)
    def broken(fact: ToolReturned) -> None:
        raise ValueError("oh")

    result = await tree.run()
    assert result.text == "done"


# ---------------------------------------------------------------- a process that dies


def test_a_live_fact_has_a_path_as_well():
    assert Retracted(1, path=CHILD).path == CHILD


# ---------------------------------------------------------------- in the parent's stream


async def test_a_stream_tells_the_facts_of_a_child_with_its_path_and_none_of_its_words_as_the_answer():
    child = Agent(ScriptedModel(says("the child's words")), name="child")
    parent = Agent(ScriptedModel(calls("child", task="t"), says("the answer")), tools=[child.as_tool()])
    events = [event async for event in parent.stream("go", session="s")]
    below = [event for event in events if event.path]
    assert {event.path for event in below} == {"s//1/1"}
    assert {"SessionOpened", "TurnStarted", "ModelCalled", "ModelReplied", "TurnEnded"} <= {
        type(event).__name__ for event in below
    }
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "the answer"


async def test_a_stream_tells_the_facts_of_a_child_without_words_that_its_hooks_may_still_change():
    child = Agent(ScriptedModel(says("secret"), says("fine")), name="child")
    child.gate(ModelReplying)(lambda event: Regenerate("no") if event.reply.text == "secret" else None)
    parent = Agent(ScriptedModel(calls("child", task="t"), says("the answer")), tools=[child.as_tool()])
    events = [event async for event in parent.stream("go", session="s")]
    assert "secret" not in repr([event for event in events if event.path])


async def test_the_steps_of_a_child_are_in_the_stream_of_its_parent():
    agent = Agent(asked_for(task="go"), tools=[Agent(ScriptedModel(says("hm")), name="child").as_tool()])
    events = [event async for event in agent.stream("go", session=S1)]
    begun = [(event.path, event.step) for event in events if isinstance(event, StepStarted)]
    assert begun == [("", 1), ("s1//1/1", 1), ("", 2)]
