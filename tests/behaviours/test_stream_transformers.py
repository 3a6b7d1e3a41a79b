"""Transformers change the words of a stream on their way, and let out nothing too early."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks import visible

from windlass import (
    Agent,
    Answer,
    Ask,
    ErrorPolicy,
    Failed,
    Message,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelReplying,
    Respond,
    StepLimit,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCallPart,
    Turn,
    TurnStarting,
    tool,
)
from windlass.errors import HookError, RegistrationError
from windlass.messages import assistant
from windlass.testing import FunctionModel, RecordingObserver, ScriptedModel, breaks, calls, says

from .streams import SECRET, Redactor, Upper, add, deltas, mentions, texts, told


def chunked(text: str, *cuts: int) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


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


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_reply_without_a_part_on_its_channel_makes_no_transformer(streamed):
    made: list[str] = []

    class Counted(Upper):
        def __init__(self) -> None:
            made.append("one")

    agent = Agent(ScriptedModel(calls("add", a=1, b=2), says("three", thinking="hm")), tools=[add])
    agent.transform(Counted)
    result = (await told(agent))[1] if streamed else await agent.run("go")
    assert result.text == "THREE"
    assert made == ["one"]


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


# ---------------------------------------------------------------- when=


def shouting(model: Any, **options: Any) -> Agent:
    agent = Agent(model, **options)
    agent.transform(when=lambda request: request.model == "loud")(Upper)
    return agent


@pytest.mark.parametrize("streams", [True, False])
async def test_a_condition_limits_a_transformer_to_the_replies_to_some_requests(streams: bool):
    loud, quiet = ScriptedModel(says("hello"), name="loud"), ScriptedModel(says("hello"), name="quiet")
    agent = shouting(quiet, models=[loud])
    for model, text in [("loud", "HELLO"), ("quiet", "hello")]:
        if streams:
            async with agent.stream("hi", model=model) as stream:
                events = [event async for event in stream]
            assert "".join(delta.text for delta in events if isinstance(delta, TextDelta)) == text
            assert stream.result.text == text
        else:
            assert (await agent.run("hi", model=model)).text == text


async def test_each_attempt_is_changed_by_the_transformers_for_its_own_request():
    loud = FunctionModel(lambda request: says("hello"), name="loud")
    quiet = ScriptedModel(says("hello"), says("hello"), name="quiet")
    agent = shouting(quiet, models=[loud])

    @agent.wrap(ModelCall)
    async def both(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        second = await call_next(request.replace(model="loud"))
        texts.append((first.text, second.text))
        return first

    texts: list[tuple[str, str]] = []
    assert (await agent.run("hi")).text == "hello"
    events, result = await told(agent)
    assert texts == [("hello", "HELLO")] * 2
    assert visible(events) == result.text == "hello"


async def test_the_words_of_a_hook_or_person_are_changed_as_replies_to_the_request():
    loud = FunctionModel(lambda request: says("hello"), name="loud")
    agent = shouting(loud)
    agent.gate(ModelCalling)(lambda event: Answer("from a hook"))
    assert (await agent.run("hi")).text == "FROM A HOOK"

    asked = shouting(loud)
    asked.gate(ModelReplying, when=lambda event: event.round == 1)(lambda event: Ask("good?"))
    result = await asked.run("hi", session="s")
    again = shouting(loud, store=asked.store)
    again.gate(ModelReplying, when=lambda event: event.round == 1)(lambda event: Ask("good?"))
    resumed = await again.resume("s", answers={result.waiting_for[0].id: Respond("from a person")})
    assert resumed.text == "FROM A PERSON"


async def test_the_condition_of_a_guard_sees_side_calls():
    agent = Agent(ScriptedModel(says("main"), name="main"), models=[ScriptedModel(says("side"), name="side")])
    agent.transform(band="guard", when=lambda request: bool(request.side))(Upper)
    heard: list[str] = []

    @agent.gate(TurnStarting)
    async def ask(event: TurnStarting, turn: Turn) -> None:
        heard.append((await turn.ask("side", "hm?")).text)

    assert (await agent.run("hi")).text == "main"
    assert heard == ["SIDE"]


async def test_a_condition_is_inherited_with_its_transformer():
    child = Agent(ScriptedModel(says("below"), name="loud"), name="child")
    agent = Agent(ScriptedModel(calls("child", task="t"), says("above"), name="quiet"), tools=[child.as_tool()])
    agent.transform(when=lambda request: request.model == "loud", inherit=True)(Upper)
    result = await agent.run("hi")
    assert result.text == "above"
    assert result.messages[2].parts[0].content[0].text == "BELOW"


async def test_a_condition_that_raises_ends_the_attempt_in_the_name_of_its_transformer():
    agent = Agent(ScriptedModel(says("secret"), says("secret")))
    agent.transform(when=lambda request: 1 / 0, name="upper")(Upper)
    result = await agent.run("hi")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.hook == "upper"
    events, streamed = await told(agent)
    assert isinstance(streamed.outcome, Failed)
    assert not deltas(events)


async def test_a_condition_must_be_a_plain_function_and_explain_shows_it():
    agent = Agent(ScriptedModel(says("hi")))

    async def later(request: Any) -> bool:
        return True

    with pytest.raises(RegistrationError, match="async when="):
        agent.transform(when=later)(Upper)
    with pytest.raises(RegistrationError, match="when must be a function"):
        agent.transform(when=5)(Upper)  # type: ignore[call-overload]
    agent.transform(when=lambda request: False, name="upper")(Upper)
    assert "upper · " in str(agent.explain())
    assert "when <lambda> at" in " ".join(str(agent.explain()).split())
