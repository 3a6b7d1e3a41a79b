"""Recorded traffic, replayed at HTTP level: what comes out equals what an independent reader found in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.recordings import expected, interactions, pairs, recordings, served

from windlass.errors import BadRequest, ModelError, ModelNotFound
from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)

from .serving import Server, answer, asked

KINDS: dict[type[Part], str] = {TextPart: "text", ToolCallPart: "tool_use", ThinkingPart: "thinking"}
FACTS = {
    "endpoint", "stream", "text", "thinking", "redacted", "signature", "tools", "finish", "usage", "model", "items",
    "chunks", "status", "error", "model_requested",
}  # fmt: skip
ERRORS = {"not_found_error": ModelNotFound, "invalid_request_error": BadRequest}


async def replayed(pair: dict[str, Any], facts: dict[str, Any], seed: int = 0) -> ModelReply:
    model = Server(served(pair["response"], seed)).model(facts["model_requested"], max_tokens=4096)
    request = request_of(pair["request"]["parsed_body"]).replace(settings={})
    return await asked(model, request, streaming=facts["stream"])


@pytest.mark.parametrize(("path", "place", "pair", "facts"), pairs("anthropic"))
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_recording_decodes_to_what_is_expected_of_it(
    path: Path, place: int, pair: Any, facts: dict[str, Any], seed: int
) -> None:
    assert set(facts) <= FACTS
    assert facts["endpoint"] == "POST api.anthropic.com/v1/messages"
    if "error" in facts:
        with pytest.raises(ModelError) as caught:
            await replayed(pair, facts, seed)
        assert type(caught.value) is ERRORS[facts["error"]["type"]]
        assert (str(caught.value), caught.value.status) == (facts["error"]["message"], facts["status"])
        assert caught.value.request_id == pair["response"]["parsed_body"]["request_id"]
        return
    reply = await replayed(pair, facts, seed)
    parts = reply.message.parts
    assert reply.text == facts.get("text", "")
    thoughts = [part for part in parts if type(part) is ThinkingPart]
    assert "".join(part.text for part in thoughts) == facts.get("thinking", "")
    assert sum(len(part.signature or "") for part in thoughts if part.redacted) == facts.get("redacted", 0)
    assert all(part.signature for part in thoughts)
    assert tools_of(parts) == [[name, json.loads(given)] for name, given in facts.get("tools", [])]
    assert [kind for part in parts if (kind := kind_of(part))] == facts["items"]
    assert (reply.raw_finish, reply.model) == (facts["finish"], facts["model"])
    assert reply.finish == {"end_turn": "stop", "tool_use": "tool_calls"}[facts["finish"]]
    usage = facts["usage"]
    cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    assert (reply.usage.cached, reply.usage.cache_written) == (cached, written)
    assert (reply.usage.input, reply.usage.output) == (usage["input_tokens"] + cached + written, usage["output_tokens"])
    assert reply.usage.requests == 1


def kind_of(part: Part) -> str | None:
    if type(part) is OpaquePart:
        return part.data.get("type")
    return "redacted_thinking" if type(part) is ThinkingPart and part.redacted else KINDS[type(part)]


def tools_of(parts: tuple[Part, ...]) -> list[Any]:
    """Calls of ours and of the vendor's, which are not mediated."""
    told: list[Any] = []
    for part in parts:
        if type(part) is ToolCallPart:
            told.append([part.name, json.loads(part.json)])
        elif type(part) is OpaquePart and part.data.get("type") == "server_tool_use":
            assert not part.mediated
            told.append([f"[server]{part.data['name']}", part.data["input"]])
    return told


def request_of(body: dict[str, Any]) -> ModelRequest:
    """A recorded request as ours. What we have no word for is in `extra`, as a user would have it."""
    known = {
        "model",
        "messages",
        "system",
        "tools",
        "max_tokens",
        "stream",
        "tool_choice",
        "thinking",
        "stop_sequences",
    }
    extra = {name: value for name, value in body.items() if name not in known}
    settings: dict[str, Any] = {"max_tokens": body["max_tokens"], "extra": extra}
    output = (extra.get("output_config") or {}).get("format")
    if output is not None:
        extra["output_config"] = {name: value for name, value in extra["output_config"].items() if name != "format"}
    if "thinking" in body:
        settings["reasoning"] = body["thinking"].get("budget_tokens") or body["thinking"]
    if "tool_choice" in body:
        choice = body["tool_choice"]
        settings["tool_choice"] = {"auto": "auto", "any": "required", "none": "none"}.get(
            choice["type"], choice.get("name")
        )
    settings["stop"] = body.get("stop_sequences")
    told = body.get("tools") or []
    extra["tools"] = [tool for tool in told if "type" in tool or tool.get("defer_loading")]
    tools = tuple(ToolSpec(t["name"], t["description"], t["input_schema"]) for t in told if t not in extra["tools"])
    messages = Messages([message_of(message) for message in body["messages"]])
    return ModelRequest(body.get("system") or "", messages, tools, "", settings, output and output["schema"])


def message_of(message: dict[str, Any]) -> Message:
    content = message["content"]
    return Message(message["role"], tuple(part_of(block) for block in blocks_of(content)))


def blocks_of(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def part_of(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "text" if set(block) == {"type", "text"}:
            return TextPart(block["text"])
        case "thinking":
            return ThinkingPart(block["thinking"], block["signature"], vendor="anthropic")
        case "redacted_thinking":
            return ThinkingPart("", block["data"], redacted=True, vendor="anthropic")
        case "image" if block["source"]["type"] == "url":
            return ImagePart(url=block["source"]["url"])
        case "tool_use":
            return ToolCallPart(block["name"], json.dumps(block["input"]), vendor_id=block["id"])
        case "tool_result":
            content = tuple(part_of(item) for item in blocks_of(block.get("content") or []))
            return ToolResultPart(block["tool_use_id"], "", content, "error" if block.get("is_error") else "ok")
        case _:
            return OpaquePart("anthropic", block, mediated=False)


def essence(body: dict[str, Any]) -> dict[str, Any]:
    """A body without the ways in which the same may be written."""
    plain = {name: value for name, value in body.items() if name != "stream" or value}
    plain["messages"] = [
        (message["role"], [bare(block) for block in blocks_of(message["content"])]) for message in plain["messages"]
    ]
    plain["system"] = "".join(block["text"] for block in blocks_of(body.get("system") or "")) or None
    plain["tools"] = [
        {name: value for name, value in tool.items() if name != "strict"} for tool in body.get("tools") or []
    ]
    return plain


def bare(block: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in block.items() if name != "is_error" or value}
    if block["type"] == "tool_result":
        kept["content"] = blocks_of(block.get("content") or [])
    return kept


@pytest.mark.parametrize(("path", "place", "pair", "facts"), pairs("anthropic"))
async def test_a_request_says_what_the_recorded_one_said(
    path: Path, place: int, pair: Any, facts: dict[str, Any]
) -> None:
    body = pair["request"]["parsed_body"]
    server = Server(pair_answer(facts))
    model = server.model(body["model"], cache=False)
    await asked(model, request_of(body), streaming=facts["stream"])
    assert essence(server.asked[0]) == essence(body)
    assert server.requests[0].url.path == "/v1/messages"


def pair_answer(facts: dict[str, Any]) -> Any:
    from .serving import streamed, text

    return streamed(text(0, "ok")) if facts["stream"] else answer("ok")


@pytest.mark.parametrize("path", recordings("anthropic"), ids=lambda path: path.stem)
async def test_a_reply_goes_back_as_it_went_back_then(path: Path) -> None:
    told = interactions(path)
    for before, after, facts in zip(told, told[1:], expected(path), strict=False):
        sent = after["request"]["parsed_body"]["messages"]
        at = len(before["request"]["parsed_body"]["messages"])
        reply = await replayed(before, facts)
        server = Server(answer("ok"))
        await server.model(cache=False).reply(ModelRequest("", Messages([*map(message_of, sent[:at]), reply.message])))
        assert essence(server.asked[0])["messages"][at] == essence({"messages": sent})["messages"][at]
