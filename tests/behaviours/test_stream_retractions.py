"""Words that do not count are taken back from the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.checks import visible

from windlass import (
    Agent,
    Deny,
    ErrorPolicy,
    Failed,
    Message,
    MessageAdding,
    ModelCall,
    ModelError,
    ModelReplied,
    ModelReplying,
    Regenerate,
    Retracted,
    Rewind,
    StepEnding,
    TextPart,
    TurnEnded,
    TurnEnding,
)
from windlass.messages import assistant
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, breaks, calls, says

from .streams import Upper, add, caching, deltas, editing, falling_back, hedging, of, replaying, texts, told

# ---------------------------------------------------------------- what is taken back


async def test_a_retried_attempt_is_retracted_before_the_new_text_error_policy():
    """Behaviour 83d: a broken stream that the error policy retries."""
    script = [breaks(chunks=["It is ", "f"], error=ModelError("gone", retryable=True)), says("It is 12.")]
    agent = Agent(ScriptedModel(*script), errors=ErrorPolicy.retrying(1, delay=0))
    seen = RecordingObserver(Retracted)
    events, result = await told(agent.with_capability(seen))
    assert texts(events) == ["It is ", "f", "<retracted>", "It is 12."]
    assert [type(fact) for fact in seen.facts] == [Retracted], "observers are told of it, too"
    assert visible(events) == result.text == "It is 12."


async def test_a_retried_attempt_is_retracted_before_the_new_text_wrap():
    """Behaviour 83d: a broken stream that a wrap repeats."""
    agent = Agent(ScriptedModel(breaks("It is f", pieces=1), says("It is 12.")))

    @agent.wrap(ModelCall)
    async def twice(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return await call_next(request)

    events, result = await told(agent)
    assert texts(events) == ["It is f", "<retracted>", "It is 12."]
    attempts = [(delta.attempt, delta.text) for delta in deltas(events)]
    assert attempts == [(1, "It is f"), (2, "It is 12.")]
    assert of(events, ModelReplied)[0].attempt == 2
    assert visible(events) == result.text


async def test_a_broken_stream_that_nobody_repeats_is_retracted_before_the_turn_ends():
    agent = Agent(ScriptedModel(breaks("It is f")))
    events, result = await told(agent)
    assert isinstance(result.outcome, Failed)
    assert texts(events) == ["It is f", "<retracted>"]
    kinds = [type(event) for event in events]
    assert kinds.index(Retracted) < kinds.index(TurnEnded)
    assert visible(events) == result.partial_text == ""


def hedging_the_other(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def hedge(request: Any, call_next: Any) -> Any:
        return (await asyncio.gather(call_next(request), call_next(request)))[1]


def racing(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def race(request: Any, call_next: Any) -> Any:
        tasks = [asyncio.ensure_future(call_next(request)) for _ in range(2)]
        await tasks[1]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return tasks[1].result()


@pytest.mark.parametrize(
    ("wrapping", "shown"),
    [
        (caching, ["FROM THE CACHE"]),
        (editing, ["ONE", "ONE (EDITED)"]),
        (falling_back, ["ONE", "OTHER"]),
        (replaying, ["ONE", "TWO", "ONE"]),
        (hedging, ["ONE", "ONE"]),
        (hedging_the_other, ["ONE", "TWO"]),
        (racing, ["O", "TWO"]),
    ],
)
async def test_what_leaves_the_outermost_wrap_is_what_counts(wrapping, shown):
    async def speak(text: str) -> AsyncIterator[Any]:
        for letter in text:
            yield letter
            await asyncio.sleep(0)
            if slow and text == "one":
                await asyncio.Event().wait()
        yield assistant(text)

    slow = wrapping is racing

    def make() -> Agent:
        replies = iter(["one", "two"])
        model = FunctionModel(lambda request: speak(next(replies)))
        agent = Agent(model, models=[FunctionModel(lambda request: speak("other"), name="other")])
        agent.transform(Upper)
        wrapping(agent)
        return agent

    events, result = await told(make())
    ran = await make().run("go")
    assert visible(events) == result.text == ran.text
    assert "".join(texts(events)).split("<retracted>") == shown
    last = max((delta.round, delta.attempt) for delta in deltas(events))
    assert (of(events, ModelReplied)[0].round, of(events, ModelReplied)[0].attempt) == last


async def test_a_regenerated_reply_under_a_live_gate_is_retracted():
    """Behaviour 107: a live gate lets the text flow, and a retraction precedes any other text."""
    agent = Agent(ScriptedModel(says(chunks=["ru", "de"]), says("kind")))
    agent.gate(ModelReplying, live=True)(lambda event: Regenerate("no") if event.reply.text == "rude" else None)
    events, result = await told(agent)
    assert texts(events) == ["ru", "de", "<retracted>", "kind"]
    assert [delta.round for delta in deltas(events)] == [1, 1, 2]
    assert visible(events) == result.text == "kind"


async def test_a_live_rewrite_is_followed_by_a_retraction_and_the_new_text():
    """Behaviour 107: the same for a live rewrite, of the reply and of the answer."""
    agent = Agent(ScriptedModel(says(chunks=["he", "llo"])))
    agent.rewrite(ModelReplying, live=True)(lambda event: "HELLO")
    agent.rewrite(TurnEnding, live=True)(lambda event: event.text + "!")
    events, result = await told(agent)
    assert texts(events) == ["he", "llo", "<retracted>", "HELLO", "<retracted>", "HELLO!"]
    assert visible(events) == result.text == "HELLO!"


# ---------------------------------------------------------------- what changes after the reply stood


def shows(agent: Agent, held: bool) -> Agent:
    if held:
        agent.gate(TurnEnding)(lambda event: None)
    return agent


@pytest.mark.parametrize(("held", "shown"), [(False, ["a secret", "<retracted>", "hidden"]), (True, ["hidden"])])
async def test_a_reply_that_enters_the_transcript_as_another_one_is_taken_back(held, shown):
    agent = shows(Agent(ScriptedModel(says("a secret"))), held)

    @agent.rewrite(MessageAdding)
    def hide(event: MessageAdding) -> Message | None:
        return event.message.replace(parts=(TextPart("hidden"),)) if event.message.role == "assistant" else None

    events, result = await told(agent)
    assert texts(events) == shown
    assert visible(events) == result.text == "hidden"


@pytest.mark.parametrize(("held", "shown"), [(False, ["a secret", "<retracted>"]), (True, [])])
async def test_a_reply_that_is_not_let_into_the_transcript_is_taken_back(held, shown):
    agent = shows(Agent(ScriptedModel(says("a secret"))), held)
    agent.gate(MessageAdding)(lambda event: Deny("no") if event.message.role == "assistant" else None)
    events, result = await told(agent)
    assert texts(events) == shown
    assert visible(events) == result.text == ""


async def test_what_is_rewound_is_taken_back():
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2, _text="Adding."), says("I say 4."), says("It is 3.")), tools=[add]
    )
    agent.gate(StepEnding)(lambda event: Rewind(1, "start again") if event.step.number == 2 else None)
    events, result = await told(agent)
    assert texts(events) == ["Adding.", "I say 4.", "<retracted>", "<retracted>", "It is 3."]
    assert [event.step for event in events if isinstance(event, Retracted)] == [1, 2]
    assert visible(events) == result.text == "It is 3."
