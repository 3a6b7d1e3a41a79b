"""Who is asked again on resume, and what of an old answer still holds."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Allow,
    Approve,
    Ask,
    Completed,
    Deny,
    Edit,
    Halt,
    ModelCalling,
    ModelReplying,
    Reject,
    Respond,
    Resuming,
    Slot,
    Stopped,
    Suspended,
    ToolCalling,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import RegistrationError
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, calls, says
from windlass.transfer import export_session, import_session


class World:
    def __init__(self) -> None:
        self.done: list[Any] = []
        self.store = MemoryStore()

        @tool
        async def act(x: int) -> str:
            """Act."""
            self.done.append(x)
            return f"acted {x}"

        self.act = act

    def agent(self, *replies: Any, **options: Any) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*replies), tools=[self.act], store=self.store, **options)


@pytest.fixture
def world() -> World:
    return World()


async def suspended(world: World, ask: Any = Ask) -> Any:
    agent = world.agent(calls("act", x=1))
    agent.gate(ToolCalling, name="asker")(lambda event: ask("?"))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    return asked


@pytest.mark.parametrize("old", [ModelCalling, ToolCalling, None])
async def test_a_gate_that_is_new_since_the_suspension_is_asked_whatever_its_name(world: World, old: Any):
    first = world.agent(calls("act", x=1))
    first.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
    if old is not None:
        first.gate(old, name="check")(lambda event: None)
    (asked,) = (await first.run("go", session="s")).waiting_for
    second = world.agent(says("end"))
    second.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
    second.gate(ToolCalling, name="check")(lambda event: Deny("new policy"))
    result = await second.resume("s", answers={asked.id: Approve()})
    assert world.done == []
    assert "new policy" in result.messages[2].parts[0].text


async def test_an_unnamed_gate_put_in_front_of_another_is_asked(world: World):
    first = world.agent(calls("act", x=1))
    first.gate(ToolCalling)(lambda event: Ask("?"))
    (asked,) = (await first.run("go", session="s")).waiting_for
    second = world.agent(says("end"))
    second.gate(ToolCalling)(lambda event: Deny("new"))
    second.gate(ToolCalling)(lambda event: Ask("?"))
    await second.resume("s", answers={asked.id: Approve()})
    assert world.done == []


async def test_a_new_gate_is_asked_in_a_store_that_does_not_know_the_old_agent(world: World):
    asked = await suspended(world)
    lines = await export_session(world.store, "s")
    world.store = MemoryStore()
    await import_session(world.store, lines)
    agent = world.agent(says("end"))
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
    agent.gate(ToolCalling, name="unique")(lambda event: Deny("no"))
    await agent.resume("s", answers={asked.id: Approve()})
    assert world.done == []


async def test_a_question_that_is_still_open_falls_to_a_refusal(world: World):
    await suspended(world)
    agent = world.agent(says("end"))
    agent.gate(ToolCalling, name="asker")(lambda event: Deny("not any more"))
    result = await agent.resume("s")
    assert result.outcome == Completed()
    assert result.waiting_for == ()
    assert world.done == []


async def test_other_approvers_have_to_answer_a_gate_that_names_them_now(world: World):
    agent = world.agent(calls("act", x=1))
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("?", approvers=("ann",)))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    agent = world.agent(says("end"))
    agent.gate(ToolCalling, name="asker")(lambda event: Ask("?", approvers=("bob",)))
    result = await agent.resume("s", answers={asked.id: Approve(by="ann")})
    (again,) = result.waiting_for
    assert again.approvers == ("bob",)
    assert world.done == []
    result = await agent.resume("s", answers={again.id: Approve(by="bob")})
    assert result.outcome == Completed()
    assert world.done == [1]


async def test_a_gate_that_asked_may_refuse_what_the_person_wrote(world: World):
    agent = world.agent(calls("act", x=1), says("end"))
    agent.gate(ToolCalling, name="asker")(
        lambda event: Deny("too much") if event.call.arguments["x"] > 10 else Ask("?")
    )
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: Edit({"x": 11})})
    assert world.done == []


async def test_a_gate_that_wrote_when_it_was_first_asked_is_not_asked_again(world: World):
    asked: list[str] = []

    def build(*replies: Any) -> Agent[Any, Any]:
        agent = world.agent(*replies)
        calls_seen = agent.slot(Slot("seen", int, default=int))

        @agent.gate(ToolCalling, name="counter")
        def counter(event: Any, turn: Any) -> Any:
            asked.append("counter")
            turn.set(calls_seen, turn.get(calls_seen) + 1)
            return None

        @agent.gate(ToolCalling, name="asker")
        def asker(event: Any) -> Any:
            asked.append("asker")
            return Ask("?")

        return agent

    (question,) = (await build(calls("act", x=1)).run("go", session="s")).waiting_for
    result = await build(says("end")).resume("s", answers={question.id: Approve()})
    assert asked == ["counter", "asker", "asker"]
    assert result.state.slots["seen"] == 1
    assert world.done == [1]


async def test_a_refusal_of_the_log_holds_whatever_the_gate_says_on_resume(world: World):
    reasons = iter([Deny("first"), Deny("second"), Allow()])
    for _ in range(2):
        agent = world.agent(calls([("act", {"x": 1}), ("act", {"x": 2})]), says("end"))
        agent.gate(ToolCalling, name="asker", tool=lambda call: call.arguments["x"] == 2)(lambda event: Ask("?"))
        agent.gate(ToolCalling, name="judge", tool=lambda call: call.arguments["x"] == 1)(lambda event: next(reasons))
        result = await agent.run("go", session="s") if _ == 0 else await agent.resume("s")
    assert result.state.open is not None
    assert "first" in result.state.open.calls[0].result.text
    assert world.done == []


@pytest.mark.parametrize("event", [ModelReplying, TurnEnding])
async def test_the_words_of_a_person_are_judged_by_the_other_gates(event: Any):
    agent = Agent(ScriptedModel(says("hm"), says("more"), says("more"), says("more")))
    agent.gate(event, name="asker")(lambda event: Ask("?"))

    @agent.gate(event, name="guard", band="guard")
    def guard(seen: Any) -> Any:
        text = seen.reply.text if event is ModelReplying else seen.text
        if "BAD" in text:
            return Halt("not these words") if event is ModelReplying else Deny("not these words")
        return None

    (asked,) = (await agent.run("go", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Respond("BAD words")})
    assert isinstance(result.outcome, Stopped)
    assert "BAD" not in repr(result.messages)
    assert "BAD" not in result.state.text


@pytest.mark.parametrize("event", [ModelReplying, TurnEnding])
async def test_good_words_of_a_person_stand_without_another_question(event: Any):
    agent = Agent(ScriptedModel(says("hm")))
    agent.gate(event, name="asker")(lambda event: Ask("?"))
    (asked,) = (await agent.run("go", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Respond("fine words")})
    assert result.outcome == Completed()
    assert result.text == "fine words"


async def test_an_answer_beside_a_question_about_going_on_is_kept(world: World):
    def build(*replies: Any) -> Agent[Any, Any]:
        agent = world.agent(*replies)
        agent.gate(ToolCalling, name="asker")(lambda event: Ask("?"))
        agent.gate(Resuming, name="drift")(lambda event: Ask("Go on?"))
        return agent

    (asked,) = (await build(calls("act", x=1)).run("go", session="s")).waiting_for
    waiting = await build().resume("s", answers={asked.id: Approve()})
    assert isinstance(waiting.outcome, Suspended)
    (drift,) = waiting.waiting_for
    result = await build(says("end")).resume("s", answers={drift.id: Approve()})
    assert result.outcome == Completed()
    assert world.done == [1]


async def test_a_gate_that_reuses_its_answer_needs_a_name(world: World):
    agent = world.agent(says("end"))
    with pytest.raises(RegistrationError, match="name="):
        agent.gate(ToolCalling, on_resume="reuse")(lambda event: None)


ASKABLE = [TurnStarting, ModelCalling, ModelReplying, TurnEnding, Resuming]


@pytest.mark.parametrize("event", ASKABLE, ids=lambda event: event.__name__)
@pytest.mark.parametrize("answer", [None, Reject("no")], ids=["no answer", "rejected"])
@pytest.mark.parametrize("way", ["resume", "stream"])
async def test_an_agent_without_the_hook_that_asked_keeps_to_the_question(
    event: Any, answer: Any, way: str, world: World
):
    """The log has the question; that nobody looks at the event any more answers nothing."""
    agent = world.agent(calls("act", x=1), says("end"))
    if event is Resuming:
        agent.gate(ToolCalling, name="first")(lambda event: Ask("?"))
    agent.gate(event, name="asker")(lambda event: Ask("?"))
    waiting = await agent.run("go", session="s")
    if event is Resuming:
        waiting = await agent.resume("s", answers={waiting.waiting_for[0].id: Approve()})
    ran = list(world.done)
    asked = waiting.waiting_for[-1]
    other = world.agent(says("more"), says("more"))
    answers = {} if answer is None else {asked.id: answer}
    if way == "stream":
        async with other.stream(session="s", answers=answers) as stream:
            shown = [event async for event in stream if type(event).__name__ == "TextDelta"]
        assert answer is not None or shown == []
        result = stream.result
    else:
        result = await other.resume("s", answers=answers)
    assert world.done == ran
    if answer is None:
        assert isinstance(result.outcome, Suspended)
        assert asked.id in [question.id for question in result.waiting_for]
    else:
        assert result.outcome != Completed() or event is ModelReplying
