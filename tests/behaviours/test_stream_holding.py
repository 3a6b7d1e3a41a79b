"""Words that a hook or a person can still change are held until then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.checks import numbers, until, visible

from windlass import (
    Agent,
    Answer,
    Approve,
    ArgumentsDelta,
    Ask,
    Completed,
    Deny,
    ErrorPolicy,
    Finish,
    Halt,
    ModelCall,
    ModelCalling,
    ModelReplied,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Slot,
    StepEnding,
    StepLimit,
    Stopping,
    Suspended,
    ToolCalling,
    ToolReturning,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Veto,
)
from windlass.testing import FunctionModel, ScriptedModel, calls, says

from .streams import SECRET, add, deltas, mentions, of, texts, told

# ---------------------------------------------------------------- what is held


class Curtain:
    """A hook that waits until it is let go, so that one can look at what the stream has told by then."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.entered = 0
        self.allowed = asyncio.Event()

    async def __call__(self, event: Any) -> Any:
        self.entered += 1
        await self.allowed.wait()
        return self.answer(event)


async def told_before_and_after(agent: Agent, curtain: Curtain, **options: Any) -> tuple[list[Any], list[Any], Any]:
    """The events before a hook has spoken, all of them, and the result."""
    stream = agent.stream("go", **options)
    events: list[Any] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 -- somebody looks at them meanwhile

    reading = asyncio.ensure_future(read())
    await until(lambda: curtain.entered)
    for _ in range(20):
        await asyncio.sleep(0)
    before = list(events)
    curtain.allowed.set()
    await reading
    assert numbers(events) == list(range(1, len(events) + 1))
    return before, events, stream.result


HOLDERS: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "gate on ModelReplying": ("gate", ModelReplying, lambda event: None),
    "costly gate on ModelReplying": ("costly", ModelReplying, lambda event: None),
    "rewrite on ModelReplying": ("rewrite", ModelReplying, lambda event: None),
    "hook on ModelReplying": ("hook", ModelReplying, lambda event: None),
    "gate on TurnEnding": ("gate", TurnEnding, lambda event: None),
    "rewrite on TurnEnding": ("rewrite", TurnEnding, lambda event: None),
}


def hold(agent: Agent, holder: str, fn: Any = None, **options: Any) -> Curtain:
    kind, event, answer = HOLDERS[holder]
    curtain = Curtain(fn or answer)
    if kind == "costly":
        agent.gate(event, name="holder", costly=True, **options)(curtain)
    else:
        getattr(agent, kind)(event, name="holder", **options)(curtain)
    return curtain


def busy_agent(*script: Any) -> Agent:
    """An agent in which much talks about a reply: wraps, rewrites, slots, side calls."""
    agent = Agent(ScriptedModel(*script), tools=[add], max_regenerations=5)
    agent.slot(NOTES)

    @agent.wrap(ModelCall)
    async def refine(request: Any, call_next: Any) -> Any:
        reply = await call_next(request)
        if reply.text.endswith("?"):
            return await call_next(request.replace(messages=[*request.messages, reply.message]))
        return reply

    @agent.gate(ModelReplying, live=True)
    def note(event: Any, turn: Any) -> None:
        turn.set(NOTES, [event.reply.text])

    @agent.rewrite(ModelReplying, live=True)
    def exclaim(event: Any) -> str:
        return event.reply.text + "!"

    @agent.gate(ModelReplying, live=True)
    async def critic(event: Any, turn: Any) -> None:
        await turn.ask(FunctionModel(lambda request: says(f"I read {event.reply.text}"), name="critic"), "?")

    @agent.rewrite(ModelCalling)
    def brief(event: Any) -> Any:
        return event.request.replace(system="Be brief.", messages=[*event.request.messages])

    return agent


NOTES = Slot("notes", list[str])


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("busy", [False, True])
async def test_no_word_reaches_the_stream_before_the_holder_has_spoken(holder, busy):
    """Behaviour 107: not in a delta, and not inside a fact either; once it has spoken the text is told."""
    script = [says(f"a {SECRET}?"), says(chunks=["two ", "marma", "lades"])] if busy else [says(f"{SECRET}s")]
    agent = busy_agent(*script) if busy else Agent(ScriptedModel(*script))
    curtain = hold(agent, holder, priority=9)
    before, events, result = await told_before_and_after(agent, curtain, session="s")
    assert not deltas(before)
    assert not [event for event in before if mentions(event, "marma")]
    assert "ModelCalled" in [type(event).__name__ for event in before]
    assert visible(events) == result.text == ("two marmalades!" if busy else f"{SECRET}s")
    assert texts(events) == [result.text]
    assert any(mentions(event, SECRET) for event in of(events, ModelReplied))


@pytest.mark.parametrize(
    ("holder", "answer"),
    [
        ("gate on ModelReplying", lambda event: Regenerate("no") if "marma" in event.reply.text else None),
        ("costly gate on ModelReplying", lambda event: Regenerate("no") if "marma" in event.reply.text else None),
        ("hook on ModelReplying", lambda event: Regenerate("no") if "marma" in event.reply.text else None),
        ("rewrite on ModelReplying", lambda event: "jam" if "marma" in event.reply.text else None),
        ("rewrite on TurnEnding", lambda event: "jam"),
        ("gate on TurnEnding", lambda event: Deny("no")),
        ("gate on ModelReplying", lambda event: Halt("no", reply="jam")),
        ("gate on ModelReplying", lambda event: Halt("no")),
        ("gate on ModelReplying", lambda event: 1 / 0),
        ("rewrite on ModelReplying", lambda event: 1 / 0),
        ("gate on TurnEnding", lambda event: 1 / 0),
        ("rewrite on TurnEnding", lambda event: 1 / 0),
    ],
)
@pytest.mark.parametrize("busy", [False, True])
async def test_the_words_of_a_reply_that_does_not_stand_are_never_told(holder, answer, busy):
    """Behaviour 107: nothing of a rejected or replaced reply is ever in the stream, the facts included."""
    script = [says(f"a {SECRET}?"), says(f"two {SECRET}s")] if busy else [says(SECRET)]
    script += [says("jam")] * 3
    agent = busy_agent(*script) if busy else Agent(ScriptedModel(*script))
    curtain = hold(agent, holder, answer, priority=-9)
    curtain.allowed.set()
    events, result = await told(agent, session="s")
    assert curtain.entered
    assert not [event for event in events if mentions(event, "marma")]
    assert visible(events) == result.partial_text


async def test_a_rewrite_that_fails_after_others_have_spoken_lets_nothing_out_when_the_step_is_repeated():
    script = [says(SECRET), says("jam")]
    agent = Agent(ScriptedModel(*script), errors=ErrorPolicy(otherwise="retry", retries=2, delay=0))
    agent.rewrite(ModelReplying)(lambda event: event.reply.text + "!")

    @agent.rewrite(ModelReplying)
    def strict(event: Any) -> None:
        if SECRET in event.reply.text:
            raise RuntimeError("no")

    events, result = await told(agent)
    assert not [event for event in events if mentions(event, SECRET)]
    assert visible(events) == result.partial_text


async def test_a_reply_that_was_vetoed_is_told_before_the_next_one():
    """The answer waits for those who judge the end of the turn; if it is not the end, it is told then."""
    agent = Agent(ScriptedModel(says("first"), says("second")))
    agent.gate(TurnEnding)(lambda event: None)
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("more"))
    events, result = await told(agent)
    assert [(delta.text, delta.step) for delta in deltas(events)] == [("first", 1), ("second", 2)]
    assert visible(events) == result.text == "second"


async def test_an_answered_request_after_a_vetoed_reply_does_not_swallow_it():
    agent = Agent(ScriptedModel(says("first")))
    agent.gate(TurnEnding)(lambda event: None)
    agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("more"))
    agent.gate(ModelCalling)(lambda event: Answer("second") if len(event.request.messages) > 1 else None)
    events, result = await told(agent)
    assert [(delta.text, delta.step, delta.attempt) for delta in deltas(events)] == [("first", 1, 1), ("second", 2, 0)]
    assert visible(events) == result.text == "second"


async def test_text_beside_a_call_does_not_wait_for_the_end_of_the_turn_and_is_told_once():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2, _text="Let me see.")), tools=[add], criteria=[StepLimit(1)])
    agent.gate(TurnEnding)(lambda event: None)
    events, result = await told(agent)
    assert texts(events) == ["Let me see."]
    assert [delta.text for delta in of(events, ArgumentsDelta)] == ['{"a":1,"b":2}']
    assert visible(events) == result.text == "Let me see."


# ---------------------------------------------------------------- what people are asked


@pytest.mark.parametrize("event", [ModelReplying, TurnEnding])
@pytest.mark.parametrize("live", [False, True])
async def test_a_reply_that_waits_for_a_person_is_told_by_the_stream_that_goes_on(event, live):
    agent = Agent(ScriptedModel(says(SECRET)))
    agent.gate(event, live=live)(lambda event: Ask("May I?"))
    events, result = await told(agent, session="s")
    assert isinstance(result.outcome, Suspended)
    assert live or not [event for event in events if mentions(event, SECRET)]
    assert type(events[-1]) is Suspended
    answers = {asked.id: Approve() for asked in result.waiting_for}
    events, result = await told(agent, None, session="s", answers=answers)
    assert texts(events) == [SECRET]
    assert {delta.step for delta in deltas(events)} == {1}
    assert visible(events) == result.text == SECRET
    assert isinstance(result.outcome, Completed)


@pytest.mark.parametrize(
    ("event", "answer", "shown"),
    [
        (ModelReplying, Reject("no"), "second"),
        (ModelReplying, Respond("mine"), "mine"),
        (TurnEnding, Reject("no"), ""),
        (TurnEnding, Respond("mine"), "mine"),
    ],
)
async def test_a_reply_that_a_person_does_not_approve_is_never_told(event, answer, shown):
    agent = Agent(ScriptedModel(says(SECRET), says("second")))
    asked_once: list[Any] = []

    @agent.gate(event)
    def ask_once(event: Any) -> Any:
        asked_once.append(event)
        return Ask("May I?") if len(asked_once) == 1 else None

    events, result = await told(agent, session="s")
    answers = {asked.id: answer for asked in result.waiting_for}
    more, result = await told(agent, None, session="s", answers=answers)
    assert not [event for event in [*events, *more] if mentions(event, SECRET)]
    assert visible(more) == result.text == shown


async def test_a_stream_that_goes_on_with_a_call_does_not_repeat_what_was_told():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2, _text="Let me see."), says("3")), tools=[add])
    agent.gate(ToolCalling)(lambda event: Ask("May I?"))
    events, result = await told(agent, session="s")
    assert texts(events) == ["Let me see."]
    answers = {asked.id: Approve() for asked in result.waiting_for}
    events, result = await told(agent, None, session="s", answers=answers)
    assert texts(events) == ["3"]
    assert visible(events) == result.text == "3"


# ---------------------------------------------------------------- what hooks say instead


def said_by(kind: str) -> Agent:
    """An agent in which a hook has the last word."""
    agent = Agent(ScriptedModel(calls("add", a=1, b=2, _text="Let me see."), says("3")), tools=[add])
    match kind:
        case "halt on TurnStarting":
            agent.gate(TurnStarting)(lambda event: Halt("no", reply="Sorry."))
        case "halt on ModelCalling":
            agent.gate(ModelCalling)(lambda event: Halt("no", reply="Sorry."))
        case "halt on ModelReplying":
            agent.gate(ModelReplying)(lambda event: Halt("no", reply="Sorry."))
        case "halt on ToolCalling":
            agent.gate(ToolCalling)(lambda event: Halt("no", reply="Sorry."))
        case "finish on ToolReturning":
            agent.gate(ToolReturning)(lambda event: Finish("Sorry."))
        case "halt on StepEnding":
            agent.gate(StepEnding)(lambda event: Halt("no", reply="Sorry."))
        case "halt on Stopping":
            agent.gate(Stopping)(lambda event: Halt("no", reply="Sorry."))
        case "answer on TurnStarting":
            agent.gate(TurnStarting)(lambda event: Answer("Sorry."))
        case "answer on ModelCalling":
            agent.gate(ModelCalling)(lambda event: Answer("Sorry."))
        case "rewrite on TurnEnding":
            agent.rewrite(TurnEnding)(lambda event: "Sorry.")
    return agent


SAYERS = [
    "halt on TurnStarting", "halt on ModelCalling", "halt on ModelReplying", "halt on ToolCalling",
    "finish on ToolReturning", "halt on StepEnding", "halt on Stopping", "answer on TurnStarting",
    "answer on ModelCalling", "rewrite on TurnEnding",
]  # fmt: skip


@pytest.mark.parametrize("kind", SAYERS)
@pytest.mark.parametrize("held", [False, True])
async def test_what_a_hook_says_in_place_of_the_model_is_told_as_text(kind, held):
    agent = said_by(kind)
    if held:
        agent.gate(TurnEnding)(lambda event: None)
    events, result = await told(agent)
    assert result.text == "Sorry."
    assert deltas(events)[-1].text == "Sorry."
    assert visible(events) == result.text
    assert (await said_by(kind).run("go")).text == "Sorry."


@pytest.mark.parametrize("kind", SAYERS[:-1])
async def test_what_a_hook_says_waits_for_those_who_judge_the_end_of_the_turn_too(kind):
    agent = said_by(kind)
    curtain = hold(agent, "rewrite on TurnEnding", lambda event: "Withheld.")
    before, events, result = await told_before_and_after(agent, curtain)
    assert not [event for event in before if mentions(event, "Sorry")]
    after = [event for event in events if not isinstance(event, TurnEnded)]  # its outcome has the value of a Finish
    assert not [event for event in after if mentions(event, "Sorry")]
    assert visible(events) == result.text == "Withheld."


async def test_a_value_that_is_no_text_is_told_as_the_text_of_the_result():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2)), tools=[add])
    agent.gate(ToolReturning)(lambda event: Finish({"sum": 3}))
    events, result = await told(agent)
    assert result.outcome == Completed({"sum": 3})
    assert visible(events) == result.text
