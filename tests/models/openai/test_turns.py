"""Whole turns of an agent with both adapters: a tool is called, a broken answer is taken back and asked for again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from windlass import Agent, Completed, ErrorPolicy, Retracted, TextDelta
from windlass.models.openai import OpenAIChat, OpenAIResponses

from .serving import Pieces, Server, events

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


FUNCTION = {"name": "double", "arguments": '{"a":'}
CHAT_CALLS = events(
    chat(reasoning_content="Hm"),
    chat(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": FUNCTION}]),
    chat(tool_calls=[{"index": 0, "function": {"arguments": "6}"}}]),
    chat("tool_calls"),
)
CHAT_SAYS = events(chat(content="It is "), chat(content="12."), chat("stop"))
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "double", "arguments": '{"a":6}'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SAID = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "It is 12."}]}


def whole(*output: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": list(output)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}


RESPONSE_CALLS = events(
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
    {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
    {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a":6}'},
    whole(THOUGHT, CALL),
    done=False,
)
RESPONSE_SAYS = events(said("It is "), said("12."), whole(SAID), done=False)
ADAPTERS = [
    pytest.param(OpenAIChat, CHAT_CALLS, CHAT_SAYS, id="chat"),
    pytest.param(OpenAIResponses, RESPONSE_CALLS, RESPONSE_SAYS, id="responses"),
]


def double(a: int) -> int:
    """Twice as much."""
    return 2 * a


@dataclass
class Friend:
    name: str


@dataclass
class Person:
    name: str
    friends: list[Friend]


@pytest.mark.parametrize(("adapter", "calls", "says"), ADAPTERS)
async def test_a_turn_calls_a_tool_and_takes_back_what_broke_off(adapter: Any, calls: bytes, says: bytes) -> None:
    broken = says[: says.index(b"12.") - 20]
    lost = httpx2.RemoteProtocolError("peer closed")
    server = Server(calls, Pieces([broken], lost), says)
    model = adapter("gpt-5", client=server.client)
    stream = Agent(model, tools=[double], errors=ErrorPolicy.retrying(1)).stream("What is twice six?")
    shown = [event async for event in stream if isinstance(event, TextDelta | Retracted)]
    assert [getattr(event, "text", "<retracted>") for event in shown] == ["It is ", "<retracted>", "It is ", "12."]
    assert stream.result is not None
    assert isinstance(stream.result.outcome, Completed)
    assert stream.result.text == "It is 12."
    first, broke, again = server.asked
    assert broke == again
    tool = first["tools"][0].get("function", first["tools"][0])
    assert (tool["parameters"], tool["strict"]) == (SCHEMA, True)


async def test_a_result_meets_its_call_by_the_id_of_the_vendor() -> None:
    server = Server(CHAT_CALLS, CHAT_SAYS)
    stream = Agent(OpenAIChat("gpt-5", client=server.client), tools=[double]).stream("What is twice six?")
    _ = [event async for event in stream]
    _, call, result = server.asked[1]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
    assert result["content"] == "12"


async def test_reasoning_goes_back_in_front_of_the_call_it_led_to() -> None:
    server = Server(RESPONSE_CALLS, RESPONSE_SAYS)
    stream = Agent(OpenAIResponses("gpt-5", client=server.client), tools=[double]).stream("What is twice six?")
    _ = [event async for event in stream]
    assert server.asked[1]["input"][1:] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "call_id": "call_1", "name": "double", "arguments": '{"a":6}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "12"},
    ]


async def test_the_type_of_an_output_is_kept_to_strictly() -> None:
    server = Server(CHAT_SAYS.replace(b"It is ", b'{\\"name\\":\\"Ada\\",\\"friends\\":[]}').replace(b"12.", b""))
    stream = Agent(OpenAIChat("gpt-5", client=server.client), output=Person).stream("Who?")
    assert [event async for event in stream]
    told = server.asked[0]["response_format"]["json_schema"]
    assert told["strict"] is True
    assert told["schema"]["$defs"]["Friend"]["additionalProperties"] is False
