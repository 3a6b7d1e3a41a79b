"""A conversation begun with one vendor goes on with another: what the second is sent is valid there, and all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, ToolError, tool
from windlass.messages import ModelReply, OpaquePart, TextPart, ThinkingPart
from windlass.stores.memory import MemoryStore
from windlass.testing import Cassette, Exchange
from windlass.testing.scenes import said, weather

from .bedrock.serving import converse_accepts
from .wires import ANTHROPIC, BEDROCK, CHAT, GOOGLE, RESPONSES, VENDORS, Json, Vendor

IDS = {
    CHAT.name: "call_" + "a" * 24 + "{}",
    RESPONSES.name: "call_" + "b" * 50 + "{}",
    ANTHROPIC.name: "01" + "c" * 22 + "{}",
    GOOGLE.name: "a uuid|with/signs that nobody else takes {}",
    BEDROCK.name: "tooluse_" + "d" * 30 + "{}",
}
"""Ids as these vendors make them, or worse."""
ONE_ID = dict.fromkeys(IDS, "call_1")
"""Ids of servers that count the calls of each reply anew, or do not count."""

PAIRS = [(one, other) for one in VENDORS for other in VENDORS]


@tool(name="weather", effect="pure", inline=True)
def weather_tool(city: str) -> str:
    """The weather in a city."""
    if city == "Rome":
        raise ToolError("no such city")
    return f"18 degrees in {city}"


def turn(vendor: Vendor, number: int, ids: dict[str, str]) -> list[ModelReply]:
    """What a vendor says in a turn: it thinks, says something only it understands, calls two tools, and answers."""
    name = vendor.name
    one, other = [weather(city).replace(vendor_id=ids[name].format(f"{number}{city}")) for city in ("Paris", "Rome")]
    thought = ThinkingPart(f"a thought of {name}", f"signature-of-{name}")
    asked = (thought, OpaquePart(name, f"a secret of {name}"), TextPart(f"{name} looks."))
    return [
        said(*asked, one, other, finish="tool_calls"),
        said(TextPart(f"{name} says it is warm in Paris.")),
    ]


async def converse(*vendors: Vendor, ids: dict[str, str] = IDS) -> list[list[Json]]:
    """One session in which each vendor has its turn; what each was sent."""
    store = MemoryStore()
    sent: list[list[Json]] = []
    for number, vendor in enumerate(vendors):
        exchanges = [Exchange.of(vendor.path(False), vendor.whole(reply)) for reply in turn(vendor, number, ids)]
        with Cassette(exchanges) as cassette:
            agent = Agent(vendor.model(cassette.client()), tools=[weather_tool], store=store, system="Be kind.")
            result = await agent.run(f"A question for {vendor.name}?", session="s")
            assert result.text == f"{vendor.name} says it is warm in Paris.", result.error
        sent.append([request.body.json for request in cassette.requests])
    return sent


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda vendor: vendor.name)
async def test_another_vendor_takes_over(first: Vendor, second: Vendor):
    _, (begin, end) = await converse(first, second)
    for body in (begin, end):
        VALID[second.name](body)
        told = json.dumps(body)
        assert told.count("18 degrees in Paris") == (1 if body is begin else 2)
        assert told.count(f"{first.name} looks.") == 1 + (first is second and body is end)
        if first is not second:
            for foreign in ("a thought of", "signature-of", "a secret of"):
                assert f"{foreign}-{first.name}" not in told
                assert f"{foreign} {first.name}" not in told


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda vendor: vendor.name)
async def test_the_first_vendor_gets_its_own_back_when_it_returns(first: Vendor, second: Vendor):
    sent = await converse(first, second, first)
    for body in sent[-1]:
        VALID[first.name](body)
    told = json.dumps(sent[-1][0])
    assert f"a secret of {first.name}" in told
    assert f"a thought of {first.name}" in told
    if first is not CHAT:
        assert f"signature-of-{first.name}" in told
    if first is not second:
        assert f"a secret of {second.name}" not in told


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_calls_are_told_apart_though_the_vendor_gives_them_one_id(vendor: Vendor):
    _, bodies = await converse(vendor, vendor, ids=ONE_ID)
    for body in bodies:
        VALID[vendor.name](body)
    assert json.dumps(bodies[1]).count('call_1"') == 2, "the first call and its result keep the vendor's id"


# ---------------------------------------------------------------- what a vendor accepts


def chat_valid(body: Json) -> None:
    messages = body["messages"]
    assert messages[0] == {"role": "system", "content": "Be kind."}
    open_calls: list[str] = []
    for message in messages[1:]:
        assert message["role"] in ("user", "assistant", "tool")
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            continue
        assert open_calls == []
        for call in message.get("tool_calls", ()):
            assert re.fullmatch(r"[\w.:-]{1,40}", call["id"])
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            open_calls.append(call["id"])
        assert message.get("content") or message.get("tool_calls")
    _all_once(call["id"] for message in messages for call in message.get("tool_calls", ()))
    assert open_calls == []


def responses_valid(body: Json) -> None:
    assert body["instructions"] == "Be kind."
    assert body["store"] is False
    calls: list[str] = []
    answered: list[str] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message":
            assert item["role"] in ("user", "assistant")
        elif kind == "function_call":
            assert re.fullmatch(r"[\w.:-]{1,64}", item["call_id"])
            assert isinstance(json.loads(item["arguments"]), dict)
            calls.append(item["call_id"])
        elif kind == "function_call_output":
            assert item["call_id"] in calls
            answered.append(item["call_id"])
        elif kind == "reasoning":
            assert item["encrypted_content"]
        else:
            assert kind == "telepathy"
    _all_once(calls)
    assert sorted(answered) == sorted(calls)


def anthropic_valid(body: Json) -> None:
    messages = body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    ids: list[str] = []
    for message, following in zip(messages, [*messages[1:], {"content": []}], strict=True):
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        results = [block.get("tool_use_id") for block in following["content"] if block["type"] == "tool_result"]
        assert calls == results
        assert [block.get("tool_use_id") for block in following["content"][: len(calls)]] == results
        ids += calls
        for block in message["content"]:
            assert block["type"] != "text" or block["text"].strip()
            assert block["type"] != "thinking" or block["signature"]
            assert block["type"] != "tool_use" or isinstance(block["input"], dict)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    _all_once(ids)


def google_valid(body: Json) -> None:
    contents = body["contents"]
    roles = [content["role"] for content in contents]
    assert roles[0] == "user"
    assert set(roles) == {"user", "model"}
    ids: list[str] = []
    for content, following in zip(contents, [*contents[1:], {"parts": []}], strict=True):
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in following["parts"] if "functionResponse" in part]
        assert [(call["name"], call.get("id")) for call in calls] == [(r["name"], r.get("id")) for r in results]
        assert all(isinstance(call["args"], dict) for call in calls)
        ids += [call["id"] for call in calls]
        assert not calls or content["role"] == "model"
        signed = [("thoughtSignature" in part) for part in content["parts"] if "functionCall" in part]
        assert signed == [True] + [False] * (len(calls) - 1) if calls else not signed
    _all_once(ids)


def bedrock_valid(body: Json) -> None:
    messages = body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    ids: list[str] = []
    for message, following in zip(messages, [*messages[1:], {"content": []}], strict=True):
        calls = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        results = [block["toolResult"] for block in following["content"] if "toolResult" in block]
        assert [call["toolUseId"] for call in calls] == [result["toolUseId"] for result in results]
        assert following["content"][: len(results)] == [{"toolResult": result} for result in results]
        ids += [call["toolUseId"] for call in calls]
        known = [block for block in message["content"] if "telepathy" not in block]
        assert converse_accepts({"messages": [{"role": message["role"], "content": known}]}) == ""
    assert converse_accepts({**body, "messages": []}) == ""
    assert sum("cachePoint" in block for message in messages for block in message["content"]) == min(2, len(messages))
    _all_once(ids)


def _all_once(ids: Any) -> None:
    found = list(ids)
    assert len(set(found)) == len(found), "two calls have one id"


VALID: dict[str, Callable[[Json], None]] = {
    CHAT.name: chat_valid,
    RESPONSES.name: responses_valid,
    ANTHROPIC.name: anthropic_valid,
    GOOGLE.name: google_valid,
    BEDROCK.name: bedrock_valid,
}
