"""Streaming: words and facts in one numbered stream, and what is shown at its end is the text of the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks import check_log, visible

from windlass import (
    Agent,
    Answer,
    Approve,
    ArgumentsDelta,
    Ask,
    Completed,
    Deny,
    ErrorPolicy,
    Failed,
    Finish,
    Halt,
    Message,
    MessageAdding,
    ModelCalling,
    ModelError,
    ModelReplied,
    ModelReply,
    ModelReplying,
    Regenerate,
    Rewind,
    StepEnding,
    StepLimit,
    Stopping,
    Suspended,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCalling,
    ToolCallPart,
    ToolReturning,
    TurnEnding,
    TurnStarting,
    Veto,
)
from windlass.messages import assistant
from windlass.records import Fact
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, breaks, calls, says

from .streams import Redactor, Upper, add, caching, deltas, editing, falling_back, hedging, of, replaying, texts, told

# ---------------------------------------------------------------- one stream, one numbering


async def test_words_and_facts_come_in_one_numbered_stream_in_the_order_in_which_they_happen():
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2, _text="Let me see."), says(chunks=["It ", "is ", "3."])), tools=[add]
    )
    events, result = await told(agent)
    assert [type(event).__name__ for event in events] == [
        "SessionOpened", "TurnStarted", "MessageAdded",
        "StepStarted", "ModelCalled", "TextDelta", *["ArgumentsDelta"] * 3, "ModelReplied",
        "ToolDecided", "ToolCalled", "ToolReturned", "StepEnded", "Evaluated",
        "StepStarted", "ModelCalled", *["TextDelta"] * 3, "ModelReplied", "StepEnded", "Evaluated",
        "Concluded", "TurnEnded", "SessionEnded",
    ]  # fmt: skip
    assert all(event.path == "" for event in events)
    assert visible(events) == result.text == "It is 3."


async def test_numbers_and_paths_are_told_but_never_written():
    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    events, result = await told(agent, session="s")
    log = await agent.store.read("s")
    assert {record.seq for record in log} == {0}
    written = [event.replace(seq=0) for event in events if isinstance(event, Fact) and type(event) in map(type, log)]
    assert [record for record in log if type(record).__name__ != "Evaluated"] == [
        fact for fact in written if type(fact).__name__ != "Evaluated"
    ]
    await check_log(agent, "s", result.state)


async def test_a_delta_says_of_which_part_step_round_attempt_and_call_it_is():
    reply = ModelReply(
        Message(
            "assistant",
            (
                ThinkingPart("Hm, hm."),
                TextPart("One moment."),
                ToolCallPart("add", '{"a":1,"b":2}'),
                ToolCallPart("add", '{"a":3,"b":4}'),
            ),
        ),
        finish="tool_calls",
    )
    agent = Agent(ScriptedModel(says("rude"), reply, says("done")), tools=[add])
    agent.gate(ModelReplying, live=True)(lambda event: Regenerate("no") if event.reply.text == "rude" else None)
    events, _ = await told(agent, session="s")
    made: dict[tuple[int, int, int], dict[int, str]] = {}
    for delta in deltas(events):
        parts = made.setdefault((delta.step, delta.round, delta.attempt), {})
        parts[delta.part] = parts.get(delta.part, "") + delta.text
    for replied in of(events, ModelReplied):
        said = made.pop((replied.step, replied.round, replied.attempt))
        parts = replied.reply.message.parts
        assert [said[at] for at in range(len(parts))] == [getattr(part, "json", None) or part.text for part in parts]
        for at, part in enumerate(parts):
            mine = [delta for delta in deltas(events) if (delta.step, delta.round, delta.part) == (1, 2, at)]
            if isinstance(part, ToolCallPart):
                assert {(delta.call, delta.name) for delta in of(mine, ArgumentsDelta)} == {(part.id, "add")}
    assert made == {}
    assert [type(delta) for delta in deltas(events) if delta.round == 2][:2] == [ThinkingDelta, TextDelta]


async def test_a_model_that_cannot_stream_is_told_part_by_part():
    class Plain:
        name = "plain"

        async def reply(self, request: Any) -> ModelReply:
            parts = (ThinkingPart("Hm."), TextPart("Hello."), ToolCallPart("add", '{"a":1,"b":2}'))
            if len(request.messages) > 1:
                return ModelReply(Message("assistant", (TextPart("Done."),)))
            return ModelReply(Message("assistant", parts), finish="tool_calls")

    events, result = await told(Agent(Plain(), tools=[add]), session="s")
    assert [(type(delta), delta.text, delta.part, delta.step) for delta in deltas(events)] == [
        (ThinkingDelta, "Hm.", 0, 1),
        (TextDelta, "Hello.", 1, 1),
        (ArgumentsDelta, '{"a":1,"b":2}', 2, 1),
        (TextDelta, "Done.", 0, 2),
    ]
    assert of(deltas(events), ArgumentsDelta)[0].call == "s/1/1"
    assert visible(events) == result.text


async def test_only_somebody_who_streams_makes_the_model_stream():
    model = ScriptedModel(says("a"), says("b"), says("c"), says("d"))
    agent = Agent(model)
    agent.with_capability(RecordingObserver())
    await agent.run("go")
    async for _ in agent.iterate("go"):
        pass
    assert model.streamed == 0
    await told(agent)
    assert model.streamed == 1


async def test_plain_pieces_are_text_of_the_part_that_is_being_said():
    async def speak(request: Any) -> AsyncIterator[Any]:
        yield ThinkingDelta("Hm.", 0)
        yield "Hel"
        yield "lo"
        yield Message("assistant", (ThinkingPart("Hm."), TextPart("Hello")))

    events, result = await told(Agent(FunctionModel(speak)))
    assert [(delta.text, delta.part) for delta in deltas(events)] == [("Hm.", 0), ("Hel", 1), ("lo", 1)]
    assert visible(events) == result.text == "Hello"


async def test_pieces_that_do_not_add_up_to_the_reply_are_taken_back():
    async def speak(request: Any) -> AsyncIterator[Any]:
        yield "Hell"
        yield "o"
        yield ModelReply(Message("assistant", (TextPart("Goodbye"),)))

    events, result = await told(Agent(FunctionModel(speak)))
    assert texts(events) == ["Hell", "o", "<retracted>", "Goodbye"]
    assert visible(events) == result.text == "Goodbye"


async def test_what_was_not_said_in_pieces_is_said_at_the_end():
    async def speak(request: Any) -> AsyncIterator[Any]:
        yield TextDelta("Hello", 1)
        yield ModelReply(Message("assistant", (ThinkingPart("Hm."), TextPart("Hello"), ToolCallPart("add", "{}"))))
        await asyncio.sleep(0)

    agent = Agent(FunctionModel(speak), tools=[add], criteria=[StepLimit(1)])
    events, result = await told(agent)
    assert [(type(delta), delta.text, delta.part) for delta in deltas(events)] == [
        (TextDelta, "Hello", 1),
        (ThinkingDelta, "Hm.", 0),
        (ArgumentsDelta, "{}", 2),
    ]
    assert visible(events) == result.text


async def test_a_stream_that_ends_without_the_whole_reply_is_an_error_that_names_the_model():
    class Mute:
        name = "mute"

        async def reply(self, request: Any) -> str:
            return "never asked"

        async def stream(self, request: Any) -> AsyncIterator[Any]:
            yield "Hel"

    events, result = await told(Agent(Mute(), errors=ErrorPolicy.never()))
    assert isinstance(result.outcome, Failed)
    assert "'mute' ended without the whole reply" in result.outcome.error.message
    assert texts(events) == ["Hel", "<retracted>"]
    assert visible(events) == result.partial_text == ""


# ---------------------------------------------------------------- what is shown at the end is the text

SCRIPTS = st.one_of(
    st.sampled_from(["one", "two words", "bad", "x@y z", ""]).map(says),
    st.sampled_from(["one", "bad one"]).map(lambda text: says(chunks=[*text], thinking="hm")),
    st.sampled_from(["", "let me", "bad"]).map(lambda text: calls("add", a=1, b=2, _text=text)),
    st.sampled_from(["let me", ""]).map(
        lambda text: calls([("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})], _text=text)
    ),
    st.sampled_from([1, 2, None]).map(lambda pieces: breaks(says(chunks=["bro", "ken"]), pieces=pieces)),
    st.just(ModelError("no")),
)


def _when_bad(answer: Any) -> Callable[[Any], Any]:
    return lambda event: answer if "bad" in event.reply.text else None


HOOKS: dict[str, Callable[[Agent, bool], Any]] = {
    "regenerate": lambda agent, live: agent.gate(ModelReplying, live=live)(_when_bad(Regenerate("again"))),
    "halt": lambda agent, live: agent.gate(ModelReplying, live=live)(_when_bad(Halt("no", reply="sorry"))),
    "silent halt": lambda agent, live: agent.gate(ModelReplying, live=live)(_when_bad(Halt("no"))),
    "rewrite": lambda agent, live: agent.rewrite(ModelReplying, live=live)(lambda event: event.reply.text + "!"),
    "ending": lambda agent, live: agent.rewrite(TurnEnding, live=live)(lambda event: event.text + "."),
    "withhold": lambda agent, live: agent.gate(TurnEnding, live=live)(
        lambda event: Deny("no") if "bad" in event.text else None
    ),
    "ask": lambda agent, live: agent.gate(ModelReplying, live=live)(_when_bad(Ask("?"))),
    "ask at the end": lambda agent, live: agent.gate(TurnEnding, live=live)(
        lambda event: Ask("?") if "bad" in event.text else None
    ),
    "finish": lambda agent, live: agent.gate(ToolReturning)(
        lambda event: Finish("all done") if event.call.arguments["a"] == 3 else None
    ),
    "ask about calls": lambda agent, live: agent.gate(ToolCalling)(
        lambda event: Ask("?") if event.call.arguments["a"] == 3 else None
    ),
    "rewind": lambda agent, live: agent.gate(StepEnding)(
        lambda event: Rewind(1, "back") if event.step.number == 2 else None
    ),
    "veto": lambda agent, live: agent.gate(Stopping)(lambda event: None if event.stop_active else Veto("more")),
    "answer": lambda agent, live: agent.gate(ModelCalling)(
        lambda event: Answer("known") if len(event.request.messages) > 3 else None
    ),
    "answer at once": lambda agent, live: agent.gate(TurnStarting)(lambda event: Answer("at once")),
    "door": lambda agent, live: agent.rewrite(MessageAdding)(
        lambda event: (
            event.message.replace(parts=(TextPart("changed"), *event.message.tool_calls))
            if event.message.role == "assistant" and "two" in event.message.text
            else None
        )
    ),
    "edit": lambda agent, live: editing(agent),
    "cache": lambda agent, live: caching(agent),
    "fallback": lambda agent, live: falling_back(agent),
    "replay": lambda agent, live: replaying(agent),
    "hedge": lambda agent, live: hedging(agent),
    "redact": lambda agent, live: agent.transform(Redactor),
    "shout": lambda agent, live: agent.transform(channels=("text", "thinking"))(Upper),
}


def drawn(script: list[Any], hooks: Iterable[tuple[str, bool]], retries: int, limit: int) -> Agent:
    agent = Agent(
        ScriptedModel(*script, *[says("the end")] * 9),
        models=[ScriptedModel(*[says("other")] * 9, name="other")],
        tools=[add],
        errors=ErrorPolicy.retrying(retries, delay=0),
        criteria=[StepLimit(limit)],
    )
    for name, live in hooks:
        HOOKS[name](agent, live)
    return agent


@given(
    st.lists(SCRIPTS, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(sorted(HOOKS)), st.booleans()), max_size=3, unique_by=lambda hook: hook[0]),
    st.integers(0, 2),
    st.integers(1, 4),
)
@settings(max_examples=300)
async def test_what_is_shown_at_the_end_is_the_text_of_the_result(script, hooks, retries, limit):
    agent = drawn(script, hooks, retries, limit)
    events, result = await told(agent, session="s")
    told_in_all = list(events)
    for _ in range(9):
        if not isinstance(result.outcome, Suspended):
            break
        answers = {asked.id: Approve() for asked in result.waiting_for}
        events, result = await told(agent, None, session="s", answers=answers)
        told_in_all += events
    assert visible(told_in_all) == result.partial_text
    await check_log(agent, "s", result.state)
    ran = drawn(script, hooks, retries, limit)
    result_of_run = await ran.run("go", session="s")
    for _ in range(9):
        if not isinstance(result_of_run.outcome, Suspended):
            break
        answers = {asked.id: Approve() for asked in result_of_run.waiting_for}
        result_of_run = await ran.resume("s", answers=answers)
    assert (result_of_run.partial_text, result_of_run.outcome) == (result.partial_text, result.outcome)
    assert list(result_of_run.messages) == list(result.messages)


# ---------------------------------------------------------------- models that are not quite right


class Iterated:
    """An async iterator that is no generator: nobody can close it."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = iter(pieces)

    def __aiter__(self) -> Iterated:
        return self

    async def __anext__(self) -> Any:
        for piece in self.pieces:
            return piece
        raise StopAsyncIteration


class Streaming(ScriptedModel):
    """A model whose stream is what it is given."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def stream(self, request: Any) -> Any:
        return self.made


async def test_a_models_stream_may_be_any_async_iterator():
    events, result = await told(Agent(Streaming(Iterated("he", "llo", assistant("hello")))))
    assert texts(events) == ["he", "llo"]
    assert result.outcome == Completed()


async def test_a_stream_that_is_none_is_named():
    _, result = await told(Agent(Streaming("hello")))
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.message == "the stream of model 'scripted' is a str, not an async generator"
