"""Observers: they look on, and whatever they do the turn does not notice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.logs import SESSION, log_of

from windlass import (
    Agent,
    Answer,
    Completed,
    HookFailed,
    ModelCalled,
    ModelCalling,
    ModelReplied,
    SessionOpened,
    Slot,
    StepEnded,
    StepEnding,
    StepStarted,
    ToolCalling,
    ToolReturned,
    Turn,
    TurnEnded,
    TurnStarted,
    tool,
)
from windlass.errors import RegistrationError
from windlass.messages import Message, ModelReply, OpaquePart, ToolCallPart
from windlass.records import Rewritten, SlotSet, ToolDecided
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def script() -> ScriptedModel:
    return ScriptedModel(calls("add", a=1, b=2), says("3"))


def adder(**options: Any) -> Agent[Any, Any]:
    return Agent(script(), tools=[add], **options)


async def failures(agent: Agent[Any, Any]) -> list[Any]:
    return [record for record in await log_of(agent) if isinstance(record, HookFailed)]


def told(agent: Agent[Any, Any], model: ScriptedModel | None = None) -> list[tuple[str, str]]:
    model = model or agent.model  # type: ignore[assignment]
    return [(m.role, m.text) for m in model.requests[-1].messages]


# ---------------------------------------------------------------- it raises


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_observer_that_raises_does_not_touch_the_turn_and_its_failure_is_a_fact(is_async: bool, wait: bool):
    """Behaviour 86: result and transcript are unchanged, the failure is in the log and names the observer."""
    plain = adder()
    expected = await plain.run("1 + 2?", session=SESSION)
    agent = adder()

    def fails(fact: Any) -> None:
        raise RuntimeError("boom")

    async def fails_later(fact: Any) -> None:
        raise RuntimeError("boom")

    agent.observe(ToolReturned, name="clumsy", wait=wait)(fails_later if is_async else fails)
    result = await agent.run("1 + 2?", session=SESSION)
    assert result.outcome == expected.outcome == Completed()
    assert result.text == expected.text
    assert result.messages == expected.messages
    assert result.error is None
    (failed,) = await failures(agent)
    assert (failed.hook, failed.event, failed.error.type) == ("clumsy", "ToolReturned", "RuntimeError")


async def test_the_failure_of_an_observer_can_be_observed():
    """Behaviour 86: a `HookFailed` is a fact like any other."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(ToolReturned)
    def clumsy(fact: Any) -> None:
        raise RuntimeError("boom")

    @agent.observe(HookFailed, wait=True)
    def notes(fact: Any) -> None:
        seen.append(fact.hook)

    await agent.run("1 + 2?")
    assert seen == ["clumsy"]


async def test_an_observer_of_failures_that_fails_does_not_go_round_in_circles():
    """Behaviour 86: the failure of an observer of failures is logged and is no fact again."""
    agent = adder()

    @agent.observe(ToolReturned)
    def clumsy(fact: Any) -> None:
        raise RuntimeError("boom")

    @agent.observe(HookFailed)
    def clumsier(fact: Any) -> None:
        raise RuntimeError("boom again")

    result = await agent.run("1 + 2?", session=SESSION)
    assert result.outcome == Completed()
    assert [failed.hook for failed in await failures(agent)] == ["clumsy"]


async def test_an_observer_that_raises_spares_the_others():
    """Behaviour 86: observers are isolated from each other."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(TurnEnded)
    def clumsy(fact: Any) -> None:
        raise RuntimeError("boom")

    @agent.observe(TurnEnded)
    def careful(fact: Any) -> None:
        seen.append("careful")

    await agent.run("1 + 2?")
    assert seen == ["careful"]


# ---------------------------------------------------------------- it blocks


async def test_a_plain_observer_that_blocks_for_seconds_does_not_slow_the_turn():
    """Behaviour 86: steps do not wait for it, the end waits only as long as the agent's patience."""
    release = threading.Event()
    agent = adder(observer_patience=0.02)
    freed: list[str] = []

    @agent.observe(ModelReplied)
    def sleepy(fact: Any) -> None:
        release.wait(50)
        freed.append("freed")

    try:
        result = await agent.run("1 + 2?")
        assert freed == []
    finally:
        release.set()
    assert result.text == "3"
    assert result.outcome == Completed()


async def test_a_plain_observer_that_blocks_does_not_stall_the_event_loop():
    """Behaviour 86: a plain observer runs beside the loop."""
    release = threading.Event()
    agent = adder(observer_patience=50)
    freed: list[str] = []

    @agent.observe(TurnStarted)
    def sleepy(fact: Any) -> None:
        release.wait(50)
        freed.append("freed")

    running = asyncio.ensure_future(agent.run("1 + 2?"))
    for _ in range(20):
        await asyncio.sleep(0)
    release.set()  # only a loop that is not blocked comes here
    result = await running
    assert freed == ["freed"]
    assert result.text == "3"


def test_a_plain_observer_that_is_done_just_when_its_loop_closes_is_told_of_the_next_turn(monkeypatch: Any):
    """Behaviour 86: whoever was given up on finds nobody whom to tell that it is done."""
    release, told_again = threading.Event(), threading.Event()
    agent = Agent(ScriptedModel(says("one"), says("two")), observer_patience=0.02)

    @agent.observe(TurnStarted)
    def sleepy(fact: Any) -> None:
        release.wait(50)
        if fact.message.text == "again":
            told_again.set()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(agent.run("go"))
    first.close()
    with monkeypatch.context() as patch:
        patch.setattr(first, "is_closed", lambda: False)  # it was not yet when one looked
        release.set()
        second.run_until_complete(agent.run("again"))
        assert told_again.wait(50)
    second.close()


async def test_an_async_observer_that_waits_for_seconds_does_not_slow_the_turn():
    """Behaviour 86: the same for an async one."""
    agent = adder(observer_patience=0.02)

    @agent.observe(ModelReplied)
    async def sleepy(fact: Any) -> None:
        await asyncio.Event().wait()

    result = await agent.run("1 + 2?")
    assert result.text == "3"
    assert result.outcome == Completed()


async def test_what_observers_were_told_is_dealt_with_when_the_run_is_over():
    """Behaviour 86: observers are drained at the end, so a quick one has seen everything, in order."""
    seen: list[str] = []
    agent = adder()
    for fact in (
        SessionOpened,
        TurnStarted,
        StepStarted,
        ModelCalled,
        ModelReplied,
        ToolReturned,
        StepEnded,
        TurnEnded,
    ):
        agent.observe(fact, wait=True, name=fact.__name__)(lambda fact: seen.append(type(fact).__name__))
    await agent.run("1 + 2?")
    step = ["StepStarted", "ModelCalled", "ModelReplied"]
    assert seen == ["SessionOpened", "TurnStarted", *step, "ToolReturned", "StepEnded", *step, "StepEnded", "TurnEnded"]


async def test_an_observer_is_told_its_facts_in_order():
    """Behaviour 86: off the hot path, but never out of turn."""
    seen: list[int] = []
    agent = Agent(ScriptedModel(*[calls("add", a=n, b=0) for n in range(30)], says("done")), tools=[add])

    @agent.observe(ToolReturned)
    def notes(fact: Any) -> None:
        seen.append(int(fact.result.text))

    await agent.run("count")
    assert seen == list(range(30))


# ---------------------------------------------------------------- it changes what it got


@pytest.mark.parametrize("wait", [False, True])
async def test_an_observer_that_sets_a_field_of_a_fact_fails_and_changes_nothing(wait: bool):
    """Behaviour 86: facts are values that cannot be changed; the attempt is a failure of the observer."""
    agent = adder()

    @agent.observe(ToolReturned, wait=wait)
    def meddler(fact: Any) -> None:
        fact.result = "forged"

    result = await agent.run("1 + 2?", session=SESSION)
    assert result.outcome == Completed()
    assert result.messages[2].parts[0].text == "3"
    (failed,) = await failures(agent)
    assert (failed.hook, failed.error.type) == ("meddler", "AttributeError")


async def test_an_observer_that_changes_the_value_of_a_slot_changes_its_copy_only():
    """Behaviour 86: what a slot holds does not change by what an observer does to the fact."""
    notes = Slot("notes", list[str])
    agent = adder()
    agent.slot(notes)
    seen: list[list[str]] = []

    @agent.gate(ToolCalling)
    def keep(event: Any, turn: Turn[Any]) -> None:
        turn.set(notes, ["kept"])

    @agent.observe(SlotSet, wait=True)
    def meddler(fact: Any) -> None:
        fact.value.append("forged")

    @agent.gate(StepEnding)
    def look(event: Any, turn: Turn[Any]) -> None:
        seen.append(turn.get(notes))

    result = await agent.run("1 + 2?", session=SESSION)
    assert seen == [["kept"], ["kept"]]
    assert result.slots == {"notes": ["kept"]}
    assert [record.value for record in await log_of(agent) if isinstance(record, SlotSet)] == [["kept"]]


async def test_an_observer_that_changes_what_a_rewrite_left_behind_changes_its_copy_only():
    """Behaviour 86: the log says who changed what, whatever an observer does to the fact."""
    agent = adder(system="You add.")
    agent.rewrite(ModelCalling, name="be_brief")(lambda event: event.request.replace(system="Be brief."))

    @agent.observe(Rewritten, wait=True)
    def meddler(fact: Any) -> None:
        fact.fields.clear()

    await agent.run("1 + 2?", session=SESSION)
    changed = [record.fields for record in await log_of(agent) if isinstance(record, Rewritten)]
    assert changed == [{"system": "Be brief."}] * 2


async def test_an_observer_that_changes_the_settings_of_a_request_changes_its_copy_only():
    """Behaviour 86: the model gets the settings of the agent, in every call."""
    model = script()
    agent = Agent(model, tools=[add], settings={"temperature": 0})

    @agent.observe(ModelCalled, wait=True)
    def meddler(fact: Any) -> None:
        fact.request.settings["temperature"] = 9

    await agent.run("1 + 2?")
    assert [dict(request.settings) for request in model.requests] == [{"temperature": 0}] * 2


@pytest.mark.parametrize("wait", [False, True])
async def test_an_observer_that_changes_what_only_a_vendor_understands_changes_nothing(wait: bool):
    """Behaviour 86: the next request sends back what the model said, and the log keeps it."""
    said = Message("assistant", (OpaquePart("acme", {"ids": ["a"]}), ToolCallPart("add", '{"a":1,"b":2}')))
    model = ScriptedModel(ModelReply(said), says("3"))
    agent = Agent(model, tools=[add])

    @agent.observe(ModelReplied, wait=wait)
    def meddler(fact: Any) -> None:
        if fact.step == 1:
            fact.reply.message.parts[0].data["ids"].append("forged")

    await agent.run("1 + 2?", session=SESSION)
    assert model.requests[-1].messages[1].parts[0] == OpaquePart("acme", {"ids": ["a"]})
    first = next(record for record in await log_of(agent) if isinstance(record, ModelReplied))
    assert first.reply.message.parts[0] == OpaquePart("acme", {"ids": ["a"]})
    assert [failed.hook for failed in await failures(agent)] == ["meddler"]


async def test_what_an_observer_or_the_gate_itself_does_to_an_answer_changes_nothing():
    """Behaviour 86: an answer is what it was when the gate gave it, in the transcript and in the log."""
    agent = adder()
    given = {"sum": [3]}

    @agent.gate(ToolCalling)
    def answers(event: Any) -> Any:
        return Answer(given)

    @agent.observe(ToolDecided, wait=True)
    def meddler(fact: Any) -> None:
        given["sum"].append(4)
        fact.verdict.value["sum"].append(5)

    result = await agent.run("1 + 2?", session=SESSION)
    assert result.messages[2].parts[0].text == '{"sum":[3]}'
    assert [r.verdict.value for r in await log_of(agent) if isinstance(r, ToolDecided)] == [{"sum": [3]}]
    assert [failed.hook for failed in await failures(agent)] == ["meddler"]


async def test_an_observer_cannot_write_to_the_turn():
    """Behaviour 86: the turn an observer gets is read-only, and it is that of the moment of the fact."""
    agent = adder()
    steps: list[int] = []

    @agent.observe(StepEnded)
    def writes(fact: Any, turn: Turn[Any]) -> None:
        steps.append(turn.steps)
        turn.add("I was here.")

    result = await agent.run("1 + 2?", session=SESSION)
    assert steps == [1, 2]
    assert result.outcome == Completed()
    assert "I was here." not in [message.text for message in result.messages]
    assert {failed.hook for failed in await failures(agent)} == {"writes"}


# ---------------------------------------------------------------- wait=True


async def test_an_awaited_observer_has_finished_before_the_next_model_call():
    """Behaviour 86: `wait=True` is awaited before the next point."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(StepEnded, wait=True)
    async def persist(fact: Any) -> None:
        await asyncio.sleep(0.002)
        seen.append("persisted")

    agent.gate(ModelCalling)(lambda event: seen.append("asks the model"))
    await agent.run("1 + 2?")
    assert seen == ["asks the model", "persisted", "asks the model", "persisted"]


async def test_an_awaited_observer_of_a_reply_has_finished_before_its_calls_are_judged():
    """Behaviour 86: the next point after a reply is the gate of its calls."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(ModelReplied, wait=True)
    async def persist(fact: Any) -> None:
        await asyncio.sleep(0.002)
        seen.append("persisted")

    agent.gate(ToolCalling)(lambda event: seen.append("judges"))
    await agent.run("1 + 2?")
    assert seen == ["persisted", "judges", "persisted"]


async def test_an_awaited_observer_of_a_result_has_finished_before_the_step_ends():
    """Behaviour 86: the next point after a result is the end of the step."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(ToolReturned, wait=True)
    async def persist(fact: Any) -> None:
        await asyncio.sleep(0.002)
        seen.append("persisted")

    agent.gate(StepEnding)(lambda event: seen.append("ends"))
    await agent.run("1 + 2?")
    assert seen == ["persisted", "ends", "ends"]


async def test_an_awaited_observer_that_hangs_is_given_up_after_its_timeout():
    """Behaviour 86: an awaited observer delays the turn by its time-out at most, and that is a fact."""
    agent = adder()

    @agent.observe(ToolReturned, wait=True, timeout=0.01)
    async def hangs(fact: Any) -> None:
        await asyncio.sleep(30)

    result = await agent.run("1 + 2?", session=SESSION)
    assert result.text == "3"
    (failed,) = await failures(agent)
    assert (failed.hook, failed.error.type) == ("hangs", "HookTimeout")


# ---------------------------------------------------------------- durable=True


async def test_a_durable_observer_reads_the_log_and_its_cursor_is_stored():
    """Behaviour 86: it is told of the records of its kind, and the store knows how far it has read."""
    seen: list[str] = []
    agent = adder()

    @agent.observe(ToolReturned, durable=True)
    async def bills(fact: Any) -> None:
        seen.append(fact.call)

    await agent.run("1 + 2?", session=SESSION)
    assert seen == ["s1/1/1"]
    assert await agent.store.cursor(SESSION, "bills") == len(await log_of(agent))


async def test_a_durable_observer_goes_on_behind_its_cursor_in_the_next_turn():
    """Behaviour 86: what it was told it is not told again."""
    seen: list[str] = []
    agent = Agent(ScriptedModel(*[calls("add", a=1, b=2), says("3")] * 2), tools=[add])

    @agent.observe(ToolReturned, durable=True)
    def bills(fact: Any) -> None:
        seen.append(fact.call)

    await agent.run("1 + 2?", session=SESSION)
    await agent.run("again", session=SESSION)
    assert seen == ["s1/1/1", "s1/3/1"]


async def test_a_slow_durable_observer_is_told_each_record_once_and_in_order():
    """Behaviour 86: told again after a failure or a crash, but not because the log grew while it was at work."""
    seen: list[int] = []
    agent = Agent(ScriptedModel(*[calls("add", a=n, b=0) for n in range(5)], says("done")), tools=[add])

    @agent.observe(ToolReturned, durable=True)
    async def bills(fact: Any) -> None:
        await asyncio.sleep(0.002)
        seen.append(int(fact.result.text))

    await agent.run("count", session=SESSION)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_durable_observer_that_failed_is_told_again():
    """Behaviour 86: at least once: the cursor does not pass what was not dealt with."""
    seen: list[str] = []
    clock = FakeClock()
    agent = Agent(
        ScriptedModel(*[calls("add", a=1, b=2), says("3")] * 2), tools=[add], clock=clock, observer_patience=0.01
    )
    broken = [True]

    @agent.observe(ToolReturned, durable=True)
    def bills(fact: Any) -> None:
        if broken[0]:
            raise RuntimeError("the billing service is down")
        seen.append(fact.call)

    first = await agent.run("1 + 2?", session=SESSION)
    assert first.outcome == Completed()
    log = await log_of(agent)
    assert await agent.store.cursor(SESSION, "bills") <= log.index(next(r for r in log if isinstance(r, ToolReturned)))
    broken[0] = False
    await clock.advance(1)
    await agent.run("again", session=SESSION)
    await agent.aclose()
    assert seen == ["s1/1/1", "s1/3/1"]
    assert await failures(agent) == []


async def test_a_durable_observer_is_told_by_another_process_what_the_first_one_left():
    """Behaviour 86: also after a crash: a log without a cursor is read from its beginning by who comes next."""
    dead = adder()
    await dead.run("1 + 2?", session=SESSION)
    log = list(await log_of(dead))
    store = MemoryStore()
    await store.append(SESSION, log, 0)

    seen: list[str] = []
    agent = Agent(ScriptedModel(says("hello")), tools=[add], store=store)

    @agent.observe(ToolReturned, durable=True)
    def bills(fact: Any) -> None:
        seen.append(fact.call)

    await agent.run("hello", session=SESSION)
    assert seen == ["s1/1/1"]


def test_a_durable_observer_of_what_is_not_in_the_log_is_refused():
    """Behaviours 86, 105: a fact that is only seen live cannot be read from a log; registration says so."""
    agent = adder()
    with pytest.raises(RegistrationError, match="StepStarted"):
        agent.observe(StepStarted, durable=True)(lambda fact: None)


# ---------------------------------------------------------------- overflow


async def test_an_observer_that_cannot_keep_up_loses_facts_and_that_is_a_fact():
    """Behaviour 86: the queue is bounded; overflow is reported once and the turn is none the worse."""
    release = threading.Event()
    started = threading.Event()
    many = [("add", {"a": n, "b": 0}) for n in range(100)]
    model = ScriptedModel(*[calls(many)] * 101, says("done"))
    agent = Agent(model, tools=[add], observer_patience=0.01, max_steps=None)
    seen: list[int] = []

    @agent.observe(ToolReturned)
    def stuck(fact: Any) -> None:
        started.set()
        release.wait(30)
        seen.append(1)

    try:
        result = await agent.run("go", session=SESSION)
    finally:
        release.set()
    assert started.is_set()
    assert result.text == "done"
    assert result.state.turn is not None
    assert result.state.turn.steps == 102
    (failed,) = await failures(agent)
    assert (failed.hook, failed.effect) == ("stuck", "overflow")


@pytest.mark.parametrize("options", [{}, {"wait": True}, {"durable": True}], ids=["beside", "wait", "durable"])
async def test_an_observer_gets_the_id_of_the_session_by_name(options):
    told: list[tuple[str, str]] = []
    child = Agent(ScriptedModel(says("mine")), name="child")
    agent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])

    @agent.observe(TurnEnded, inherit="durable" in options, **options)
    def note(fact: TurnEnded, session_id: str) -> None:
        told.append((session_id, fact.path))

    await agent.run("go", session="s")
    await agent.aclose()
    assert sorted(told) == [("s", ""), ("s//1/1", "s//1/1")]


async def test_an_observer_may_take_the_session_and_the_turn():
    told: list[tuple[str, str]] = []
    agent = Agent(ScriptedModel(says("done")))

    @agent.observe(TurnEnded)
    async def note(fact: TurnEnded, turn: Turn, session_id: str) -> None:
        told.append((session_id, turn.turn_ref))

    await agent.run("go", session="s")
    await agent.aclose()
    assert told == [("s", "s/t1")]


def test_only_observers_get_the_id_of_the_session_by_name():
    agent = Agent(ScriptedModel(says("done")))
    agent.gate(ToolCalling)(lambda event, session_id: None)
    with pytest.raises(RegistrationError, match="parameter 'session_id' that Windlass cannot supply"):
        agent.compile()
