"""Recorded traffic of Converse, replayed at HTTP level: what comes out is what an independent reader found in it."""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from tests.models.recordings import asked_of, expected, interactions, is_converse, recordings, served

from windlass.errors import ModelError
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
from windlass.models.bedrock.decode import FINISHES

from .serving import Server, answer, asked, converse_accepts, streamed, text


class Case(NamedTuple):
    """A request, its answer, and what is known of that."""

    name: str
    pair: dict[str, Any]
    facts: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        return dict(asked_of(self.pair["request"]))

    @property
    def model(self) -> str:
        return unquote(urlsplit(self.pair["request"]["uri"]).path.split("/")[2])


def recorded() -> list[Any]:
    """One case for each pair of Converse, whichever file it is in."""
    return [
        pytest.param(Case(f"{path.parent.name}/{path.name}", pair, facts), id=f"{path.stem}-{at}")
        for path in recordings("other")
        for at, (pair, facts) in enumerate(zip(interactions(path), expected(path), strict=True), 1)
        if is_converse(pair)
    ] or [pytest.param(None, marks=pytest.mark.skip(reason="no recordings beside the repository"))]


async def replayed(case: Case, seed: int = 0) -> ModelReply:
    server = Server(served(case.pair["response"], seed))
    return await asked(server.model(case.model), request_of(case.body), streaming=case.facts["stream"])


@pytest.mark.parametrize("case", recorded())
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_recording_decodes_to_what_is_expected_of_it(case: Case, seed: int) -> None:
    facts = case.facts
    if facts.get("error"):
        with pytest.raises(ModelError) as caught:
            await replayed(case, seed)
        assert facts["error"]["message"] in str(caught.value)
        assert caught.value.status == facts["status"]
        return
    reply = await replayed(case, seed)
    thoughts = [part for part in reply.message.parts if type(part) is ThinkingPart]
    tools = [tool for tool in facts.get("tools", []) if not tool[0].startswith("[server]")]
    assert reply.text == facts.get("text", "")
    assert [[call.name, json.loads(call.json)] for call in reply.tool_calls] == [
        [name, json.loads(told)] for name, told in tools
    ]
    assert "".join(thought.text for thought in thoughts) == facts.get("thinking", "")
    assert any(thought.signature for thought in thoughts) or not facts.get("signature")
    assert reply.raw_finish == facts["finish"]
    assert reply.finish == ("tool_calls" if tools else FINISHES.get(facts["finish"], reply.finish))
    assert_usage(reply, facts["usage"])


def assert_usage(reply: ModelReply, told: dict[str, Any]) -> None:
    usage = reply.usage
    cached, written = told.get("cacheReadInputTokens") or 0, told.get("cacheWriteInputTokens") or 0
    assert (usage.cached, usage.cache_written, usage.output) == (cached, written, told["outputTokens"])
    assert usage.input == told["inputTokens"] + cached + written
    assert usage.total == told["totalTokens"]
    assert usage.requests == 1


INFERENCE = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens", "stopSequences": "stop"}


def request_of(body: dict[str, Any]) -> ModelRequest:
    """A recorded request as ours. What we have no word for is in `extra`, as a user would have it."""
    known = ("messages", "system", "toolConfig", "inferenceConfig")
    extra = {name: value for name, value in body.items() if name not in known}
    inferred = body.get("inferenceConfig") or {}
    settings = {INFERENCE[name]: value for name, value in inferred.items() if name in INFERENCE}
    config = body.get("toolConfig") or {}
    for choice, told in (config.get("toolChoice") or {}).items():
        settings["tool_choice"] = {"auto": "auto", "any": "required"}.get(choice) or told["name"]
    specs = [tool["toolSpec"] for tool in config.get("tools") or () if "toolSpec" in tool]
    if own := [tool for tool in config.get("tools") or () if tool.keys() & {"systemTool"}]:
        extra["toolConfig"] = {"tools": own}
    tools = tuple(ToolSpec(spec["name"], spec.get("description", ""), spec["inputSchema"]["json"]) for spec in specs)
    system = "\n\n".join(block["text"] for block in body.get("system") or () if "text" in block)
    messages = Messages([message_of(message) for message in body["messages"]])
    return ModelRequest(system, messages, tools, settings={**settings, "extra": extra})


def message_of(message: dict[str, Any]) -> Message:
    return Message(message["role"], tuple(part_of(block) for block in message["content"]))


def part_of(block: dict[str, Any]) -> Any:
    match block:
        case {"text": said}:
            return TextPart(said)
        case {"reasoningContent": {"reasoningText": thought}}:
            return ThinkingPart(thought["text"], thought.get("signature"), vendor="bedrock")
        case {"reasoningContent": {"redactedContent": hidden}}:
            return ThinkingPart("", hidden, redacted=True, vendor="bedrock")
        case {"image": {"format": kind, "source": {"bytes": data}}}:
            return ImagePart(b64decode(data), media_type=f"image/{kind}")
        case {"toolUse": use} if "type" not in use:
            return ToolCallPart(use["name"], json.dumps(use["input"]), vendor_id=use["toolUseId"])
        case {"toolResult": result} if "type" not in result:
            content: list[Part] = [part_of(item) for item in result["content"]]
            status: Any = "error" if result.get("status") == "error" else "ok"
            return ToolResultPart(result["toolUseId"], "", tuple(content), status)  # type: ignore[arg-type]
        case _:
            return OpaquePart("bedrock", block)


def essence(body: dict[str, Any]) -> dict[str, Any]:
    """A body without the ways in which the same may be written, and without what is unsigned or blank."""
    plain = {name: value for name, value in body.items() if value not in ({}, [], None)}
    plain["messages"] = [(message["role"], [b for b in message["content"] if said(b)]) for message in body["messages"]]
    plain["system"] = "\n\n".join(block["text"] for block in body.get("system") or () if "text" in block)
    if "toolConfig" in plain:
        tools = [tool for tool in plain["toolConfig"]["tools"] if "cachePoint" not in tool]
        plain["toolConfig"] = {**plain["toolConfig"], "tools": tools}
    return plain


def said(block: dict[str, Any]) -> bool:
    thought = block.get("reasoningContent", {}).get("reasoningText", {"signature": "not needed"})
    return "signature" in thought and bool(block.get("text", "-").strip())


@pytest.mark.parametrize("case", recorded())
async def test_a_request_says_what_the_recorded_one_said(case: Case) -> None:
    server = Server(streamed(text(0, "ok")) if case.facts["stream"] else answer("ok"))
    await asked(server.model(case.model, cache=False), request_of(case.body), streaming=case.facts["stream"])
    assert essence(server.asked[0]) == essence(case.body)
    assert converse_accepts(server.asked[0]) == ""
    assert server.requests[0].url.raw_path.decode() == urlsplit(case.pair["request"]["uri"]).path


def conversations() -> list[Any]:
    """Two pairs of one file, of which the second goes on where the first ended."""
    cases = [param.values[0] for param in recorded() if param.values[0]]
    going_on = [
        pytest.param(one, other, id=one.name)
        for one, other in pairwise(cases)
        if one.name == other.name and one.body["messages"] == other.body["messages"][: len(one.body["messages"])]
    ]
    return going_on or [pytest.param(None, None, marks=pytest.mark.skip(reason="no recordings beside the repository"))]


@pytest.mark.parametrize(("before", "after"), conversations())
async def test_a_reply_goes_back_as_it_went_back_then(before: Case, after: Case) -> None:
    sent = after.body["messages"]
    at = len(before.body["messages"])
    reply, server = await replayed(before), Server(answer("ok"))
    history = Messages([*map(message_of, sent[:at]), reply.message])
    await server.model(before.model, cache=False).reply(ModelRequest("", history))
    assert essence(server.asked[0])["messages"][at] == essence({"messages": sent})["messages"][at]
