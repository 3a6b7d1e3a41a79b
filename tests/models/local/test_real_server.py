"""The adapters of OpenAI talk to a server that nobody here wrote: llama.cpp's, with a real model.

What is tested is the protocol. The model is small: what it says does not matter.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.models.serving import asked, asking, heard

from windlass import Agent, ModelCalling, tool
from windlass.deltas import ArgumentsDelta, TextDelta
from windlass.errors import BadRequest, ConnectionFailed, ContextOverflow, ModelError, ModelNotFound, ModelTimeout
from windlass.messages import (
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)
from windlass.models.openai import OpenAIChat, OpenAIResponses
from windlass.outcomes import Completed, Stopped
from windlass.records import ModelReplied, ToolReturned

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ADD = ToolSpec("add", "Add two numbers.", NUMBERS)
ENDLESS = {"max_tokens": 1_000_000, "extra": {"ignore_eos": True}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@pytest.fixture(params=[OpenAIChat, OpenAIResponses], ids=["chat", "responses"])
async def model(request: pytest.FixtureRequest, llama: str) -> AsyncIterator[Any]:
    made = request.param("smollm2", base_url=llama, api_key="none", settings={"temperature": 0, "max_tokens": 8})
    yield made
    await made.aclose()


async def test_it_replies(model):
    reply = await model.reply(asking("Say hello."))
    assert reply.text
    assert (reply.model, reply.finish in ("stop", "length"), bool(reply.response_id)) == ("smollm2", True, True)
    assert reply.usage.input > 0
    assert 0 < reply.usage.output <= 8


async def test_it_streams(model):
    deltas, reply = await heard(model, asking("Say hello."))
    assert len(deltas) > 1
    assert {type(delta) for delta in deltas} == {TextDelta}
    assert reply.usage.input > 0
    assert 0 < reply.usage.output <= 8
    assert reply.finish in ("stop", "length")


def extra(model: object) -> dict[str, Any]:
    """Behind Responses, llama.cpp overlooks `text.format`, but takes what Chat Completions call it."""
    schema = {"type": "json_schema", "json_schema": {"name": "output", "schema": PERSON}}
    return {"response_format": schema} if isinstance(model, OpenAIResponses) else {}


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_answer_fits_the_schema(model, streaming):
    request = asking("Who are you?", output=PERSON, settings={"max_tokens": 80, "extra": extra(model)})
    reply = await asked(model, request, streaming=streaming)
    answer = json.loads(reply.text)
    assert (type(answer["name"]), type(answer["old"])) == (str, bool)


async def test_a_conversation_goes_on(model):
    thought = ThinkingPart("Hm", "gAAA", vendor="openai-responses")
    said = Message(
        "assistant", (thought, TextPart("Hello."), OpaquePart("openai-responses", {"phase": "final_answer"}))
    )
    reply = await model.reply(asking().replace(messages=[user("Say hello."), said, user("Again!")]))
    again = await model.reply(asking().replace(messages=[user("Say hello."), reply.message, user("Again!")]))
    assert reply.text
    assert again.text


async def test_a_conversation_goes_on_after_arguments_that_are_no_json(model):
    call = Message("assistant", (ToolCallPart("add", '{"a": ', id="c1", vendor_id="c1"),))
    result = Message("tool", (ToolResultPart("c1", "add", (TextPart("no JSON"),), status="error"),))
    assert (await model.reply(asking().replace(messages=[user("Add 1 and 2."), call, result]))).text


async def test_a_call_is_streamed(model):
    deltas, reply = await heard(model, asking("Add 1 and 2.", tools=(ADD,), settings={"max_tokens": 60}))
    (call,) = reply.tool_calls
    assert (call.name, reply.finish, bool(call.vendor_id)) == ("add", "tool_calls", True)
    assert {type(value) for value in call.arguments.values()} == {int}
    assert {(type(delta), delta.name) for delta in deltas} == {(ArgumentsDelta, "add")}


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_whole_turn_with_a_tool(model, streaming):
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = Agent(model, tools=[add], settings={"max_tokens": 60})

    @agent.rewrite(ModelCalling)
    def answer_then(event):
        if event.request.messages[-1].role != "tool":
            return event.request
        return event.request.replace(tools=(), settings={"max_tokens": 4, "extra": {"ignore_eos": True}})

    if streaming:
        stream = agent.stream("Add 1 and 2.")
        facts = [event async for event in stream]
        result = stream.result
        assert {ModelReplied, ToolReturned} <= {type(fact) for fact in facts}
    else:
        result = await agent.run("Add 1 and 2.")
    assert type(result.outcome) in (Completed, Stopped), result.outcome
    roles = [message.role for message in result.state.messages]
    (call,) = result.state.messages[1].tool_calls
    (answer,) = result.state.messages[2].parts
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert answer.text == str(sum(call.arguments.values()))
    assert result.usage.requests == 2


async def test_who_stops_listening_stops_the_model(model):
    """It does one thing at a time and would talk for minutes: it answers the next one because it has stopped."""
    endless = asking("Tell a story.", settings=ENDLESS)
    async with aclosing(model.stream(endless)) as pieces:
        assert type(await anext(pieces)) is TextDelta
    assert (await model.reply(asking("Hi", settings={"max_tokens": 1}))).usage.output == 1


async def test_a_timeout_is_one(model):
    with pytest.raises(ModelTimeout) as caught:
        await model.reply(asking("Tell a story.", settings={"timeout": 0.5, **ENDLESS}))
    assert caught.value.retryable


async def test_what_is_too_long_for_the_window_is_said(model):
    with pytest.raises(ContextOverflow) as caught:
        await model.reply(asking("hello " * 3000))
    assert (caught.value.status, caught.value.retryable) == (400, False)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_bad_request_is_told_in_the_words_of_the_server(model, streaming):
    request = asking("Hi", settings={"temperature": "hot"})
    with pytest.raises(BadRequest, match="temperature") as caught:
        await asked(model, request, streaming=streaming)
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", [OpenAIChat, OpenAIResponses])
async def test_a_wrong_address_is_no_model(kind, llama):
    model = kind("smollm2", base_url=f"{llama}/nowhere", api_key="none")
    with pytest.raises(ModelNotFound) as caught:
        await model.reply(asking())
    assert caught.value.status == 404
    await model.aclose()


async def test_nobody_there_is_a_failed_connection():
    with socket.socket() as deaf:  # it has the port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        model = OpenAIChat("smollm2", base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}/v1", api_key="none")
        with pytest.raises(ConnectionFailed) as caught:
            await model.reply(asking())
    assert isinstance(caught.value, ModelError)
    assert caught.value.retryable
    await model.aclose()


async def test_a_plain_server_is_not_asked_twice_on_one_connection():
    """llama.cpp drops connections that it has called reusable: now and then the next step of a turn would fail."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = OpenAIChat("any", base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    for _ in range(2):
        with pytest.raises(BadRequest):
            await model.reply(asking())
    await model.aclose()
    server.close()
    assert [b"\r\nconnection: close\r\n" in head.lower() for head in heads] == [True, True]
