"""One transformer per attempt over all its text, and secrets that reach neither stream, observer, error nor log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from windlass import (
    Agent,
    Ask,
    Failed,
    Message,
    ModelCall,
    ModelCalled,
    ModelReply,
    ModelReplying,
    Respond,
    Suspended,
    ToolCalling,
    TurnFailed,
    tool,
)
from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ModelError
from windlass.events import Retracted
from windlass.messages import TextPart, ThinkingPart, ToolCallPart
from windlass.testing import FunctionModel, ScriptedModel, calls, says, without_times

SECRET = "hunter2-prod"


class Redact:
    """Takes a card out, wherever the text is cut."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Any:
        self.held = (self.held + text).replace("4111-1111", "•")
        keep = next((n for n in range(8, 0, -1) if self.held.endswith("4111-1111"[:n])), 0)
        out, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        yield out

    def flush(self) -> Any:
        yield self.held


async def streamed(agent: Agent[Any, Any], message: str = "go") -> tuple[list[Any], Any]:
    async with agent.stream(message, session="s") as stream:
        events = [event async for event in stream]
    return events, stream.result


def text_in(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize(
    "parts",
    [
        (TextPart("card 4111"), TextPart("-1111 end")),
        (TextPart("card 41"), ThinkingPart("hm"), TextPart("11-1111"), TextPart(" end")),
        (TextPart("card 4111"), ToolCallPart("act", "{}"), TextPart("-1111")),
    ],
)
async def test_a_transformer_sees_all_text_parts_of_an_attempt(parts: Any, way: str):
    @tool(effect="pure", inline=True)
    def act() -> str:
        """Act."""
        return "ok"

    replies = iter([ModelReply(Message("assistant", parts)), says("end")])
    agent = Agent(FunctionModel(lambda request: next(replies)), tools=[act])
    agent.transform(Redact)
    if way == "run":
        result = await agent.run("go", session="s")
        events: list[Any] = []
    else:
        events, result = await streamed(agent)
    stored = [without_times(record) for record in await agent.store.read("s")]
    assert "4111" not in repr(result.messages) + repr(stored) + text_in(events)
    assert "•" in repr(result.messages)
    assert result.messages[1].role == "assistant"


class Escape:
    def feed(self, text: str) -> Any:
        yield text.replace("&", "&amp;")

    def flush(self) -> Any:
        return ()


@pytest.mark.parametrize("transforms", [True, False])
@pytest.mark.parametrize("by", ["wrap", "rewrite"])
async def test_a_hook_that_only_annotates_a_reply_changes_no_word(transforms: bool, by: str):
    def build() -> Agent[Any, Any]:
        agent = Agent(ScriptedModel(says("a & b", chunks=["a ", "& b"])))
        if transforms:
            agent.transform(Escape)

        if by == "wrap":

            @agent.wrap(ModelCall)
            async def price(request: Any, call_next: Any) -> Any:
                reply = await call_next(request)
                return reply.replace(usage=reply.usage.replace(cost=1.0))

        else:
            agent.rewrite(ModelReplying, live=True)(
                lambda event: event.reply.replace(usage=event.reply.usage.replace(cost=1.0))
            )
        return agent

    expected = "a &amp; b" if transforms else "a & b"
    assert (await build().run("go")).text == expected
    events, result = await streamed(build())
    assert text_in(events) == result.text == expected
    assert not [event for event in events if isinstance(event, Retracted)]


# ---------------------------------------------------------------- secrets


def chunked(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


async def test_secrets_are_masked_in_every_delta():
    @tool(effect="pure", inline=True)
    def act(key: str) -> str:
        """Act."""
        return key

    text = f"it is {SECRET}, yes"
    model = ScriptedModel(calls("act", key=SECRET), says(text, chunks=chunked(text), thinking=f"hm {SECRET}"))
    agent = Agent(model, tools=[act], secrets=[SECRET])
    events, result = await streamed(agent)
    said = [event for event in events if isinstance(event, TextDelta | ThinkingDelta | ArgumentsDelta)]
    assert said
    assert SECRET not in "".join(event.text for event in said)
    assert SECRET not in repr(events)
    assert text_in(events) == result.text == "it is •••, yes"


@pytest.mark.parametrize("cut", range(1, 14))
async def test_a_secret_is_masked_wherever_the_stream_cuts_it(cut: int):
    text = f"a{SECRET}b{SECRET[:4]}"
    agent = Agent(ScriptedModel(says(text, chunks=[text[:cut], text[cut:]])), secrets=[SECRET])
    events, result = await streamed(agent)
    assert text_in(events) == result.text == f"a•••b{SECRET[:4]}"


async def test_secrets_are_masked_in_what_a_hook_makes_of_the_answer():
    agent = Agent(ScriptedModel(says("hi")), secrets=[SECRET])
    agent.rewrite(ModelReplying)(lambda event: f"the key is {SECRET}")
    events, result = await streamed(agent)
    assert SECRET not in text_in(events)
    assert result.text == text_in(events)


async def test_secrets_are_masked_in_live_facts():
    seen: list[Any] = []
    agent = Agent(ScriptedModel(ModelError(f"no {SECRET}")), system=f"Use {SECRET}.", secrets=[SECRET])
    agent.observe(ModelCalled, wait=True)(seen.append)
    agent.observe(TurnFailed, wait=True)(seen.append)
    events, result = await streamed(agent, f"with {SECRET}")
    assert {type(fact) for fact in seen} == {ModelCalled, TurnFailed}
    assert SECRET not in repr(seen) + repr([event for event in events if hasattr(event, "request")])
    assert agent.model.requests[0].system == f"Use {SECRET}."  # the model gets what it needs
    assert isinstance(result.outcome, Failed)


async def test_secrets_are_masked_in_errors():
    agent = Agent(ScriptedModel(ModelError(f"no {SECRET}")), secrets=[SECRET])
    result = await agent.run("go")
    with pytest.raises(ModelError, match="no •••") as caught:
        result.raise_for_error()
    assert SECRET not in repr(caught.value)
    with pytest.raises(ModelError, match="no •••"):
        _ = result.text


async def test_an_error_without_secrets_is_the_very_same():
    error = ModelError("down")
    result = await Agent(ScriptedModel(error), secrets=[SECRET]).run("go")
    assert result.error is error


async def test_secrets_are_masked_in_python_logs(caplog: pytest.LogCaptureFixture):
    agent = Agent(ScriptedModel(says("hi")), secrets=[SECRET])

    @agent.observe(ModelCalled, wait=True)
    def failing(fact: Any) -> None:
        raise OSError(f"cannot log in with {SECRET}")

    with caplog.at_level(logging.WARNING, logger="windlass"):
        await agent.run("go", session="s")
    assert "cannot log in" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(await agent.store.read("s"))


async def test_a_childs_words_are_masked_by_its_parents_secrets():
    kid = Agent(ScriptedModel(says(f"it is {SECRET}")), name="kid", system=f"Key: {SECRET}")
    top = Agent(ScriptedModel(calls("kid", task="t"), says("end")), tools=[kid.as_tool()], secrets=[SECRET])
    top.gate(ToolCalling)(lambda event: None)
    events, _ = await streamed(top)
    assert SECRET not in repr(events)


def arguments_in(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, ArgumentsDelta))


class Pieces(ScriptedModel):
    """Streams the arguments of its calls in small pieces."""

    def __init__(self, *replies: Any, size: int) -> None:
        super().__init__(*replies)
        self.size = size

    async def stream(self, request: Any) -> Any:
        reply = await self.reply(request)
        for number, part in enumerate(reply.message.parts):
            text = part.json if isinstance(part, ToolCallPart) else part.text
            kind = ArgumentsDelta if isinstance(part, ToolCallPart) else TextDelta
            for at in range(0, len(text), self.size):
                yield kind(text[at : at + self.size], number)
        yield reply


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 40])
@pytest.mark.parametrize(
    "written",
    [
        f'{{"key": "{SECRET}"}}',
        f'{{"key": "a {SECRET} b", "more": "{SECRET}"}}',
        r'{"key": "hunter2\u002dprod"}',
        r'{"key": "\"hunter2-prod\""}',
        r'{"key": "hunter2 - prod"}',
    ],
    ids=["plain", "twice", "escaped", "quoted", "other"],
)
async def test_the_stream_of_arguments_is_what_was_recorded(size: int, written: str):
    given: list[str] = []

    @tool(effect="pure", inline=True)
    def act(key: str, more: str = "") -> str:
        """Act."""
        given.append(key)
        return "ok"

    agent = Agent(Pieces(calls([("act", written)]), says("end"), size=size), tools=[act], secrets=[SECRET])
    events, result = await streamed(agent)
    retracted = max((at for at, event in enumerate(events) if isinstance(event, Retracted)), default=-1)
    assert arguments_in(events[retracted + 1 :]) == result.messages[1].parts[0].json
    assert SECRET not in repr(events) + arguments_in(events)
    assert "hunter2" not in arguments_in(events).replace("hunter2 - prod", "")
    assert SECRET in given[0] or "hunter2 - prod" in given


async def test_a_number_that_is_a_secret_is_masked_in_the_stream_as_in_the_log():
    given: list[int] = []

    @tool(effect="pure", inline=True)
    def act(pin: int) -> str:
        """Act."""
        given.append(pin)
        return "ok"

    agent = Agent(Pieces(calls([("act", '{"pin": 123456}')]), says("end"), size=3), tools=[act], secrets=["123456"])
    events, result = await streamed(agent)
    retracted = max((at for at, event in enumerate(events) if isinstance(event, Retracted)), default=-1)
    assert arguments_in(events[retracted + 1 :]) == result.messages[1].parts[0].json == '{"pin":"•••"}'
    assert "123456" not in arguments_in(events)
    assert given == [123456]


async def test_a_childs_secrets_are_masked_in_what_its_parent_hears_and_is_told():
    """Both ways: the log of a parent quotes the questions of its child, and the answers to them."""

    @tool
    async def act(key: str) -> str:
        """Act."""
        return key

    kid = Agent(
        ScriptedModel(calls("act", key="x"), says(f"it is {SECRET}")), tools=[act], name="kid", secrets=[SECRET]
    )
    kid.gate(ToolCalling)(lambda event: Ask(f"May I, with {SECRET}?"))
    middle = Agent(ScriptedModel(calls("kid", task=SECRET), says("ok")), tools=[kid.as_tool()], name="middle")
    top = Agent(ScriptedModel(calls("middle", task=SECRET), says(SECRET)), tools=[middle.as_tool()])
    events, result = await streamed(top)
    [asked] = result.waiting_for
    assert isinstance(result.outcome, Suspended)
    async with top.stream(session="s", answers={asked.id: Respond(f"use {SECRET}")}) as stream:
        events += [event async for event in stream]
    assert stream.result.text == "•••"
    logs = [await top.store.read(session) for session in await top.store.sessions()]
    assert len(logs) == 3
    assert SECRET not in repr(events) + repr(logs) + text_in(events)


async def test_a_childs_secrets_are_masked_in_the_error_of_its_parent():
    kid = Agent(ScriptedModel(says("ok")), name="kid", secrets=[SECRET])
    agent = Agent(ScriptedModel(ModelError(f"no {SECRET}")), tools=[kid.as_tool()])
    with pytest.raises(ModelError, match="no •••"):
        (await agent.run("go")).raise_for_error()


@pytest.mark.parametrize("where", ["message", "repr", "traceback", "note"])
def test_secrets_are_masked_wherever_a_python_log_has_them(caplog: pytest.LogCaptureFixture, where: str):
    secret = 'quo"te\\d-prod'
    agent = Agent(ScriptedModel(), secrets=[secret])
    log = logging.getLogger("windlass")
    try:
        error = OSError("nothing" if where == "note" else f"no {secret}")
        if where == "note":
            error.add_note(f"with {secret}")
        raise error
    except OSError as raised:
        match where:
            case "message":
                log.warning("failed: %s", raised)
            case "repr":
                log.warning("failed: %r", raised)
            case _:
                log.warning("failed", exc_info=raised)
    assert "failed" in caplog.text
    assert "•••" in caplog.text
    assert "te\\d-prod" not in caplog.text.replace("\\\\", "\\")
    assert agent.name is not None
