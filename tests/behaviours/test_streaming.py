"""Streaming: words and facts in one numbered stream, transformed on their way, held where a hook can still change them,
taken back where they do not count, and never faster than the consumer."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks import check_log, nothing_unraised, numbers, only_this_task, until, visible

from windlass import (
    Agent,
    Answer,
    Approve,
    ArgumentsDelta,
    Ask,
    Cancelled,
    Completed,
    Deny,
    ErrorPolicy,
    Failed,
    Finish,
    Halt,
    Message,
    MessageAdding,
    ModelCall,
    ModelCalled,
    ModelCalling,
    ModelError,
    ModelReplied,
    ModelReply,
    ModelReplying,
    Regenerate,
    Reject,
    Respond,
    Retracted,
    Rewind,
    Slot,
    StepEnding,
    StepLimit,
    StepStarted,
    Stopped,
    Stopping,
    StopReason,
    Stream,
    Suspended,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCalling,
    ToolCallPart,
    ToolReturning,
    TurnEnded,
    TurnEnding,
    TurnStarting,
    Veto,
    tool,
)
from windlass.deltas import AnyDelta
from windlass.errors import ConfigError, HookError, SessionBusy, SessionUnknown
from windlass.messages import assistant
from windlass.records import Fact
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, breaks, calls, says

SECRET = "marmalade"


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Upper:
    """A transformer that shouts."""

    def feed(self, text: str) -> Iterable[str]:
        yield text.upper()

    def flush(self) -> Iterable[str]:
        return ()


class Redactor:
    """Replaces e-mail addresses; holds back the word that may still become one."""

    pattern = re.compile(r"\S+@\S+")

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Iterable[str]:
        self.held += text
        head, space, tail = self.held.rpartition(" ")
        if space:
            self.held = tail
            yield self.pattern.sub("[e-mail]", head) + space

    def flush(self) -> Iterable[str]:
        yield self.pattern.sub("[e-mail]", self.held)


async def told(agent: Agent, message: str | None = "go", **options: Any) -> tuple[list[Any], Any]:
    """All events of a stream, and the result. The numbering has no gaps, and what is shown at the end is the text."""
    stream = agent.stream(message, **options)
    events = [event async for event in stream]
    assert numbers(events) == list(range(1, len(events) + 1))
    assert await only_this_task()
    return events, stream.result


def texts(events: Iterable[Any]) -> list[str]:
    """What a stream showed and took back, in order."""
    return [
        "<retracted>" if isinstance(event, Retracted) else event.text
        for event in events
        if isinstance(event, TextDelta | Retracted)
    ]


def mentions(event: Any, word: str) -> bool:
    """Whether a word is anywhere in an event."""
    return word in repr(event) or word in repr(msgspec.to_builtins(event, enc_hook=repr))


def deltas(events: Iterable[Any]) -> list[AnyDelta]:
    return [event for event in events if isinstance(event, AnyDelta)]


def of(events: Iterable[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def chunked(text: str, *cuts: int) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


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


# ---------------------------------------------------------------- transformers


async def test_what_is_held_back_is_let_out_when_the_part_is_over():
    class Slowly:
        """Gives everything at the end."""

        def __init__(self) -> None:
            self.held: list[str] = []

        def feed(self, text: str) -> Iterable[str]:
            self.held.append(text)
            return ()

        def flush(self) -> Iterable[str]:
            return ["".join(self.held)]

    agent = Agent(ScriptedModel(says("Hello there", chunks=["Hel", "lo ", "there"], thinking="Hm, hm.")))
    agent.transform(channels=("text", "thinking"))(Slowly)
    events, result = await told(agent)
    assert [(type(delta), delta.text) for delta in deltas(events)] == [
        (ThinkingDelta, "Hm, hm."),
        (TextDelta, "Hello there"),
    ]
    assert visible(events) == result.text == "Hello there"


@pytest.mark.parametrize("streamed", [True, False])
async def test_transformers_see_the_channels_they_ask_for_and_a_chain_passes_on(streamed):
    class Twice:
        def feed(self, text: str) -> Iterable[str]:
            return [text, text]

        def flush(self) -> Iterable[str]:
            return ["!"]

    reply = ModelReply(
        Message("assistant", (ThinkingPart("hm"), TextPart("ab"), ToolCallPart("add", '{"a":1,"b":2}'))), finish="stop"
    )
    agent = Agent(ScriptedModel(reply), tools=[add], criteria=[StepLimit(1)])
    agent.transform(Twice)
    agent.transform(channels=("text", "thinking"))(Upper)
    result = (await told(agent))[1] if streamed else await agent.run("go")
    assert [getattr(part, "text", None) for part in result.messages[1].parts] == ["HM", "ABAB!", None]
    assert result.messages[2].parts[0].status == "ok"


@pytest.mark.parametrize("cut", range(1, len("ann@example.org")))
async def test_no_prefix_of_a_split_address_reaches_the_wire(cut):
    """Behaviour 70: an e-mail address that is split over chunks is redacted, wherever the cut is."""
    address = "ann@example.org"
    text = f"Write to {address} today."
    start = text.index(address)
    agent = Agent(ScriptedModel(says(text, chunks=chunked(text, start + cut)), says("Bye.")))
    agent.transform(Redactor)
    events, result = await told(agent, session="s")
    assert result.text == "Write to [e-mail] today."
    assert not any(mentions(event, "ann") for event in events)
    await told(agent, session="s")
    assert not any(mentions(record, "ann") for record in await agent.store.read("s"))
    assert not any("ann" in message.text for message in agent.model.requests[1].messages)  # type: ignore[attr-defined]


@given(st.data())
@settings(max_examples=60)
async def test_what_a_transformer_redacts_is_redacted_everywhere(data):
    """Behaviours 70, 102: wire, message, log, facts for observers and the next request hold redacted text only."""
    address = data.draw(st.from_regex(r"\A[xyz]{1,6}@[xyz]{1,4}\Z"))
    text = f"To {address} or {address}, that is all"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    thinking = f"I know {address} well"
    seen = RecordingObserver()
    script = [says(text, chunks=chunked(text, *cuts), thinking=thinking), says(f"{address}")]
    agent = Agent(ScriptedModel(*script)).with_capability(seen)
    agent.transform(channels=("text", "thinking"))(Redactor)
    for _ in script:
        events, result = await told(agent, session="s")
        assert visible(events) == result.text
        assert "[e-mail]" in result.text
        assert not any(mentions(event, "@") for event in events)
    assert not any(mentions(fact, "@") for fact in seen.facts)
    assert not any(mentions(record, "@") for record in await agent.store.read("s"))
    assert not any(mentions(message, "@") for request in agent.model.requests for message in request.messages)


async def test_the_buffers_of_interleaved_runs_do_not_mix():
    """Behaviour 73: each run has its own transformers; at the end of a message its buffer is dropped."""
    words = {"a": "alpha beta gamma", "b": "one two three", "c": "x@y z"}

    async def speak(request: Any) -> AsyncIterator[Any]:
        text = words[request.messages[-1].text]
        for letter in text:
            await asyncio.sleep(0)
            yield letter
        yield assistant(text)

    agent = Agent(FunctionModel(speak))
    agent.transform(Redactor)
    every = await asyncio.gather(*[collect(agent, name) for name in [*words] * 5])
    for name, (events, result) in zip([*words] * 5, every, strict=True):
        assert result.text == visible(events) == Redactor.pattern.sub("[e-mail]", words[name])


async def collect(agent: Agent, message: str) -> tuple[list[Any], Any]:
    stream = agent.stream(message)
    return [event async for event in stream], stream.result


@pytest.mark.parametrize("streams", [True, False])
async def test_what_a_hook_asks_a_model_is_not_in_the_answer(streams):
    """Behaviour 74: a side call is a fact of its own; none of its words are in the answer's deltas."""
    side = ScriptedModel(*[says(SECRET, chunks=["marma", "lade"])] * 4, name="side")
    if not streams:
        side.stream = None  # type: ignore[method-assign, assignment]

    @tool
    async def think(turn: Any) -> str:
        """Think."""
        return str(len((await turn.ask(side, "what?")).text))

    agent = Agent(ScriptedModel(calls("think"), says("done")), tools=[think])

    @agent.gate(ModelReplying, live=True)
    async def critic(event: Any, turn: Any) -> None:
        await turn.ask(side, "good?")

    @agent.rewrite(ModelCalling)
    async def plan(event: Any, turn: Any) -> None:
        if not side.requests:
            await turn.ask(side, "plan?")

    events, result = await told(agent)
    assert len(side.requests) == 4
    assert side.streamed == 0
    assert not any(mentions(delta, "marma") for delta in deltas(events))
    assert not any(mentions(message, SECRET) for message in result.messages)
    assert "SideReplied" in [type(event).__name__ for event in events]
    assert visible(events) == result.text == "done"


async def test_a_transformer_declared_twice_is_registered_once():
    """Behaviour 75: once, in the order of bands and priorities."""

    def marks(mark: str) -> Any:
        class Mark:
            def feed(self, text: str) -> Iterable[str]:
                return [f"{mark}{text}"]

            def flush(self) -> Iterable[str]:
                return ()

        return Mark

    last = marks("g")
    agent = Agent(ScriptedModel(says("-")))
    agent.transform(band="guard")(last)
    agent.transform(marks("n"))
    agent.transform(priority=5)(marks("p"))
    agent.transform(band="early")(marks("e"))
    agent.transform(last)
    agent.transform(priority=9)(last)
    events, result = await told(agent)
    assert visible(events) == result.text == "gnpe-"


async def test_one_instance_serves_one_part_of_one_attempt():
    made: list[Any] = []

    class Counting(Upper):
        def __init__(self) -> None:
            made.append(self)

    broken = breaks("lost")
    agent = Agent(ScriptedModel(broken, says("a", thinking="b")), errors=ErrorPolicy.retrying(1, delay=0))
    agent.transform(channels=("text", "thinking"))(Counting)
    events, result = await told(agent)
    assert texts(events) == ["LOST", "<retracted>", "A"]
    assert len(made) == 3
    assert visible(events) == result.text


class Fails:
    """A transformer that holds everything back and fails at some point."""

    where = ""

    def __init__(self) -> None:
        self.held: list[str] = []

    def feed(self, text: str) -> Any:
        self.held.append(text)
        if self.where == "feed" and len(self.held) > 1:
            raise RuntimeError("broken")
        return [7] if self.where == "odd" else None if self.where == "none" else []

    def flush(self) -> Any:
        if self.where == "flush":
            raise RuntimeError("broken")
        return self.held


@pytest.mark.parametrize("where", ["feed", "flush", "odd", "none", "init"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_transformer_that_fails_ends_the_attempt_and_lets_nothing_out(where, streamed):
    class Guard(Fails):
        def __init__(self) -> None:
            super().__init__()
            if where == "init":
                raise RuntimeError("broken")

    Guard.where = where
    agent = Agent(ScriptedModel(says(chunks=["marma", "lade"])))
    agent.transform(Guard)
    events: list[Any] = []
    if streamed:
        events, result = await told(agent, session="s")
    else:
        result = await agent.run("go", session="s")
    if not streamed and where == "feed":
        assert result.text == SECRET  # a whole reply is fed at once, and there it does not fail
        return
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "Guard"
    assert isinstance(result.error, HookError)
    assert not any(mentions(event, "marma") for event in [*events, *await agent.store.read("s")])


async def test_signed_reasoning_that_a_transformer_changes_is_dropped():
    agent = Agent(ScriptedModel(says("ok", thinking="hm", signature="signed"), says("OK", thinking="HM")))
    agent.transform(channels=("thinking",))(Upper)
    events, result = await told(agent)
    assert result.messages[-1].parts == (TextPart("ok"),)
    assert visible(events) == "ok"


async def test_signed_reasoning_that_is_not_changed_keeps_its_signature():
    agent = Agent(ScriptedModel(says("ok", thinking="HM", signature="signed")))
    agent.transform(channels=("thinking",))(Upper)
    _, result = await told(agent)
    assert result.messages[-1].parts[0] == ThinkingPart("HM", "signed")


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


def caching(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def cache(request: Any, call_next: Any) -> Any:
        return "from the cache"


def editing(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def edit(request: Any, call_next: Any) -> Any:
        reply = await call_next(request)
        return reply.replace(message=reply.message.replace(parts=(TextPart(reply.text + " (edited)"),)))


def falling_back(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def fall_back(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request.replace(model="other"))


def replaying(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def first_of_two(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        await call_next(request)
        return first


def hedging(agent: Agent) -> None:
    @agent.wrap(ModelCall)
    async def hedge(request: Any, call_next: Any) -> Any:
        return (await asyncio.gather(call_next(request), call_next(request)))[0]


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


# ---------------------------------------------------------------- the consumer


class Talker:
    """A model that says many words and counts how far it has got."""

    name = "talker"

    def __init__(self, words: int = 5_000) -> None:
        self.words = words
        self.said = 0
        self.closed = 0

    async def reply(self, request: Any) -> str:
        return "never asked"

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        try:
            for _ in range(self.words):
                self.said += 1
                yield "x"
            yield assistant("x" * self.words)
        finally:
            self.closed += 1


async def test_a_slow_consumer_slows_the_model_down():
    """Behaviour 112: what waits for the consumer is bounded, however much there is to say."""
    model = Talker()
    stream = Agent(model).stream("go")
    read = ahead = 0
    async for event in stream:
        if isinstance(event, TextDelta):
            read += 1
            if read % 97 == 0:
                for _ in range(5):
                    await asyncio.sleep(0)
            ahead = max(ahead, model.said - read)
    assert read == model.said == 5_000
    assert 0 < ahead <= 64
    assert stream.result.text == "x" * 5_000


async def test_a_consumer_that_does_not_come_back_stops_the_model():
    """Behaviour 112: the turn waits, for as long as it takes; then it goes on, or is closed."""
    model = Talker()
    agent = Agent(model)
    stream = agent.stream("go", session="s")
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    for _ in range(500):
        await asyncio.sleep(0)
    assert model.said <= 64
    await stream.aclose()
    assert model.closed == 1
    assert await only_this_task()
    state = await check_log(agent, "s")
    assert isinstance(state.outcome, Cancelled)
    assert state.messages[-1].partial
    assert set(state.messages[-1].text) == {"x"}


async def test_facts_alone_are_held_back_for_a_slow_consumer_too():
    started = 0

    @tool
    async def work(n: int) -> int:
        """Work."""
        nonlocal started
        started += 1
        await asyncio.sleep(0)
        return n

    agent = Agent(ScriptedModel(calls([("work", {"n": n}) for n in range(400)]), says("done")), tools=[work])
    stream = agent.stream("go")
    async for event in stream:
        if type(event).__name__ == "ToolCalled":
            break
    for _ in range(500):
        await asyncio.sleep(0)
    assert started < 100, "calls are started although nobody reads what came of the others"
    rest = [event async for event in stream]
    assert started == 400
    assert numbers(rest) == list(range(event.seq + 1, event.seq + 1 + len(rest)))
    assert stream.result.text == "done"


async def left_by_break(agent: Agent) -> None:
    async for event in agent.stream("go", session="s"):
        if isinstance(event, TextDelta):
            break
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def left_by_aclose(agent: Agent) -> None:
    stream = agent.stream("go", session="s")
    async for event in stream:
        if isinstance(event, TextDelta):
            await stream.aclose()
            break


async def left_by_the_block(agent: Agent) -> None:
    async with agent.stream("go", session="s") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break


async def left_by_an_error(agent: Agent) -> None:
    async def read() -> None:
        async with agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


async def left_by_being_forgotten(agent: Agent) -> None:
    stream = agent.stream("go", session="s")
    while not isinstance(await anext(stream), TextDelta):
        pass
    del stream
    gc.collect()
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def left_by_a_cancel(agent: Agent) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async with agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    reading.set()

    task = asyncio.ensure_future(read())
    await reading.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def left_by_a_time_out(agent: Agent) -> None:
    async def read() -> None:
        async with asyncio.timeout(None) as limit, agent.stream("go", session="s") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    limit.reschedule(0)

    with pytest.raises(TimeoutError):
        await read()


@pytest.mark.parametrize(
    "leave",
    [
        left_by_break, left_by_aclose, left_by_the_block, left_by_an_error, left_by_being_forgotten, left_by_a_cancel,
        left_by_a_time_out,
    ],
)  # fmt: skip
async def test_a_consumer_that_leaves_cancels_the_turn_and_closes_it(leave):
    """Behaviour 112: however it leaves: the model is closed, what was shown is kept, the session can be used."""
    closed: list[str] = []

    async def speak(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            yield assistant("hello again")
            return
        try:
            yield "half a "
            await asyncio.Event().wait()
        finally:
            closed.append("model")

    agent = Agent(FunctionModel(speak))
    agent.gate(StepEnding)(lambda event: closed.append("step"))
    agent.gate(TurnEnding, live=True)(lambda event: closed.append(type(event.outcome).__name__))
    with nothing_unraised():
        await leave(agent)
        assert await only_this_task()
    assert closed == ["model", "step", "Cancelled"]
    state = await check_log(agent, "s")
    assert isinstance(state.outcome, Cancelled)
    assert (state.messages[-1].text, state.messages[-1].partial) == ("half a ", True)
    assert (await agent.run("again", session="s")).text == "hello again"
    await check_log(agent, "s")


async def test_a_stream_that_nobody_reads_does_nothing():
    model = ScriptedModel(says("hi"))
    agent = Agent(model)
    stream = agent.stream("go", session="s")
    await asyncio.sleep(0)
    assert await only_this_task()
    assert model.requests == []
    await stream.aclose()
    assert await agent.store.read("s") == []
    assert (await agent.run("go", session="s")).text == "hi"


async def test_the_result_is_there_when_the_stream_has_been_read_to_its_end():
    stream = Agent(Talker(100)).stream("go")
    assert isinstance(stream, Stream)
    with pytest.raises(ConfigError, match="no result yet"):
        _ = stream.result
    await anext(stream)
    with pytest.raises(ConfigError, match="no result yet"):
        _ = stream.result
    async for _ in stream:
        pass
    assert stream.result.text == "x" * 100
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_busy_session_cannot_be_streamed():
    inside = asyncio.Event()
    leave = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        inside.set()
        await leave.wait()
        return "ok"

    agent = Agent(ScriptedModel(calls("wait"), says("done")), tools=[wait])
    running = asyncio.ensure_future(agent.run("go", session="s"))
    await inside.wait()
    with pytest.raises(SessionBusy):
        await anext(agent.stream("me too", session="s"))
    leave.set()
    assert (await running).text == "done"


async def test_a_streamed_session_is_busy():
    agent = Agent(Talker(100))
    async with agent.stream("go", session="s") as stream:
        await anext(stream)
        with pytest.raises(SessionBusy):
            await agent.run("me too", session="s")
    assert (await agent.run("now", session="s")).text == "never asked"


async def test_a_stream_needs_a_message_or_a_session():
    with pytest.raises(ConfigError):
        Agent(ScriptedModel()).stream()


async def test_an_error_of_the_turn_is_its_outcome_and_one_of_the_caller_is_raised():
    events, result = await told(Agent(ScriptedModel(ModelError("no"))))
    assert isinstance(result.outcome, Failed)
    assert "TurnFailed" in [type(event).__name__ for event in events]
    with pytest.raises(SessionUnknown):
        await anext(Agent(ScriptedModel()).stream(session="nowhere"))


variable: ContextVar[str] = ContextVar("variable", default="unset")


async def test_context_variables_leak_neither_way():
    """Behaviour 112: the turn sees the consumer's at the start, and neither sees what the other sets later."""
    seen: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append(variable.get())
        variable.set("tool")
        return "ok"

    agent = Agent(ScriptedModel(calls("look"), calls("look"), says("done")), tools=[look])

    @agent.rewrite(ModelCalling)
    async def hook(event: Any) -> None:
        seen.append(variable.get())
        variable.set("hook")

    token = variable.set("consumer")
    try:
        async with agent.stream("go") as stream:
            async for _ in stream:
                assert variable.get() in ("consumer", "changed")
                variable.set("changed")
        assert variable.get() == "changed"
    finally:
        variable.reset(token)
    assert seen == ["consumer", "hook", "tool", "hook", "tool"]


async def test_a_time_out_of_the_agent_never_fires_in_the_code_of_the_consumer():
    """Behaviour 112: a consumer that dawdles inside the loop is not hit by the time-out of a tool or hook."""

    @tool(timeout=0.001)
    async def slow() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(calls("slow"), says("done")), tools=[slow])

    @agent.inject(TurnStarting, timeout=0.001, optional=True)
    async def never(event: Any) -> None:
        await asyncio.Event().wait()

    interrupted = 0
    stream = agent.stream("go")
    async for _ in stream:
        try:
            await asyncio.sleep(0.003)
        except BaseException:
            interrupted += 1
            raise
    assert interrupted == 0
    assert stream.result.text == "done"
    assert stream.result.messages[2].parts[0].status == "interrupted"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_observer_does_not_change_what_the_stream_tells():
    def make() -> Agent:
        agent = Agent(ScriptedModel(calls("add", a=1, b=2), says(chunks=["a", "b"])), tools=[add])
        agent.transform(Upper)
        return agent

    plain, _ = await told(make())
    watched, _ = await told(make().with_capability(RecordingObserver()))
    assert [type(event) for event in plain] == [type(event) for event in watched]
    assert texts(plain) == texts(watched)
    assert of(plain, StepStarted)
    assert of(plain, ModelCalled)


async def test_what_a_hook_that_keeps_silent_costs_is_nothing_in_the_stream():
    plain, _ = await told(Agent(ScriptedModel(says("hi"))))
    agent = Agent(ScriptedModel(says("hi")))
    for event in (TurnStarting, ModelCalling, StepEnding, MessageAdding):
        agent.gate(event)(lambda event: None)
    hooked, _ = await told(agent)
    assert [type(event) for event in plain] == [type(event) for event in hooked]


async def test_a_reply_that_is_held_is_stopped_like_any_other():
    agent = Agent(ScriptedModel(says(chunks=["cut ", "off"], finish="length")))
    agent.gate(TurnEnding)(lambda event: None)
    events, result = await told(agent)
    assert isinstance(result.outcome, Stopped)
    assert result.stop_reason is StopReason.LENGTH
    assert visible(events) == result.text == "cut off"


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
