"""Recorded traffic, replayed at HTTP level: what comes out equals what an independent reader found in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from windlass.errors import BadReply, ModelError
from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from windlass.models.openai import OpenAIChat, OpenAIResponses
from windlass.models.openai.dialects import DIALECTS

from .serving import Pieces, Server, cut, heard

WIRE = Path(__file__).parents[4] / "shared" / "wire"
WIRE = WIRE if WIRE.is_dir() else Path(os.environ.get("WINDLASS_WIRE", WIRE))
OTHERS = {
    "other/test_tool_use_failed_error.yaml": "groq",
    "other/test_tool_use_failed_error_streaming.yaml": "groq",
    "other/test_openrouter_errors_raised.yaml": "openrouter",
    "other/test_mistral_model_thinking_part_iter.yaml": "mistral",
    "other/test_deepseek_deferred_capability_with_thinking.yaml": "deepseek",
}


def recorded() -> list[Any]:
    """One case for each pair of a request and its answer."""
    if not WIRE.is_dir():
        if os.environ.get("WINDLASS_REQUIRE_WIRE"):
            raise FileNotFoundError(f"the recordings are required and not at {WIRE}")
        return [pytest.param(None, marks=pytest.mark.skip(reason="no recordings beside the repository"))]
    expected = json.loads((WIRE / "EXPECTED.json").read_text())
    cases = []
    for name, about in expected.items():
        if not name.startswith("openai_") and name not in OTHERS:
            continue
        pairs = yaml.load((WIRE / name).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))[
            "interactions"
        ]
        assert len(pairs) == len(about["facts"])
        cases += [
            pytest.param((name, pair, facts), id=f"{name.removesuffix('.yaml')}-{at}")
            for at, (pair, facts) in enumerate(zip(pairs, about["facts"], strict=True), 1)
        ]
    return cases


def served(response: dict[str, Any], seed: int) -> httpx2.Response:
    """The recorded response, a stream cut at random offsets."""
    skipped = ("content-length", "content-encoding", "transfer-encoding")
    headers = [(k, v) for k, values in response["headers"].items() if k not in skipped for v in values]
    if "parsed_body" in response:
        body = json.dumps(response["parsed_body"]).encode()
    else:
        body = response["body"]["string"].encode()
    return httpx2.Response(response["status"]["code"], headers=headers, stream=Pieces(cut(body, seed)))


def model_for(name: str, server: Server, wanted: str) -> Any:
    if name.startswith("openai_responses"):
        return OpenAIResponses(wanted, client=server.client)
    return OpenAIChat(wanted, client=server.client, dialect=DIALECTS.get(OTHERS.get(name, "")))


async def replayed(model: Any, request: ModelRequest, stream: bool) -> ModelReply:
    return (await heard(model, request))[1] if stream else await model.reply(request)


@pytest.mark.parametrize("case", recorded())
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_recording_decodes_to_what_is_expected_of_it(case: Any, seed: int) -> None:
    name, pair, facts = case
    server = Server(served(pair["response"], seed))
    model = model_for(name, server, facts.get("model_requested") or "gpt-4o")
    request = request_of(pair["request"].get("parsed_body") or {})
    if facts.get("error"):
        with pytest.raises(ModelError) as caught:
            await replayed(model, request, facts["stream"])
        assert str(caught.value).startswith(facts["error"]["message"])
        assert caught.value.status == (facts["error"].get("status_code") or facts["status"])
        return
    if facts["finish"] in ("queued", "in_progress"):
        with pytest.raises(BadReply, match="background"):
            await replayed(model, request, facts["stream"])
        return
    reply = await replayed(model, request, facts["stream"])
    assert reply.text == facts.get("text", "")
    assert [[call.name, call.json] for call in reply.tool_calls] == facts.get("tools", [])
    thinking = "".join(part.text for part in reply.message.parts if type(part) is ThinkingPart)
    assert thinking == facts.get("thinking", thinking if name.startswith("other/") and not facts["stream"] else "")
    assert reply.raw_finish == facts["finish"]
    assert reply.finish == ("tool_calls" if facts.get("tools") else "stop")
    assert reply.model == facts["model"]
    assert_usage(reply, facts["usage"])


def assert_usage(reply: ModelReply, told: dict[str, Any]) -> None:
    def first(*names: str) -> int:
        return next((told[name] or 0 for name in names if name in told), 0)

    def detail(names: tuple[str, str], field: str) -> int:
        return next(((told[name] or {}).get(field, 0) for name in names if name in told), 0)

    inputs = ("prompt_tokens_details", "input_tokens_details")
    outputs = ("completion_tokens_details", "output_tokens_details")
    usage = reply.usage
    assert (usage.input, usage.output) == (
        first("prompt_tokens", "input_tokens"),
        first("completion_tokens", "output_tokens"),
    )
    assert usage.total == told["total_tokens"]
    assert usage.cached == detail(inputs, "cached_tokens")
    assert usage.cache_written == detail(inputs, "cache_write_tokens")
    assert usage.reasoning == detail(outputs, "reasoning_tokens")
    assert usage.requests == 1


def request_of(body: dict[str, Any]) -> ModelRequest:
    """A recorded request as ours, as far as it says the same."""
    system, messages = [body["instructions"]] if body.get("instructions") else [], []
    for item in body.get("messages") or body.get("input") or []:
        if item.get("role") in ("system", "developer"):
            system.append(item["content"])
        else:
            messages.append(message_of(item))
    tools = [tool.get("function", tool) for tool in body.get("tools") or [] if tool["type"] == "function"]
    specs = tuple(ToolSpec(t["name"], t.get("description") or "", t["parameters"]) for t in tools)
    return ModelRequest("\n\n".join(map(str, system)), Messages(messages), specs)


def message_of(item: dict[str, Any]) -> Message:
    kind = item.get("type", item.get("role"))
    if kind in ("tool", "function_call_output"):
        call = item.get("tool_call_id") or item["call_id"]
        return Message("tool", (ToolResultPart(call, "", (TextPart(item.get("content") or item.get("output")),)),))
    if kind == "function_call":
        return Message("assistant", (ToolCallPart(item["name"], item["arguments"], vendor_id=item["call_id"]),))
    if kind == "reasoning":
        text = "\n\n".join(piece["text"] for piece in item["summary"])
        return Message("assistant", (ThinkingPart(text, item["encrypted_content"], vendor="openai-responses"),))
    content = item.get("content")
    parts: list[Any] = [] if isinstance(content, list) or content is None else [TextPart(content)]
    if item.get("reasoning_content"):
        parts.insert(0, ThinkingPart(item["reasoning_content"], vendor="deepseek"))
    for piece in content if isinstance(content, list) else ():
        image = piece.get("image_url")
        parts.append(ImagePart(url=image["url"]) if image else TextPart(piece["text"]))
    calls = [(call["function"], call["id"]) for call in item.get("tool_calls") or ()]
    parts += [ToolCallPart(called["name"], called["arguments"], vendor_id=id) for called, id in calls]
    return Message(item["role"], tuple(parts))


def essence(item: dict[str, Any]) -> Any:
    """What matters of one item that is sent: not the ways in which the same may be written."""
    content = item.get("content")
    if isinstance(content, list):
        kept = ("text", "image_url")
        content = [piece[name] for piece in content for name in kept if name in piece]
        content = content[0] if len(content) == 1 else content
    names = (
        "tool_calls", "tool_call_id", "reasoning_content", "call_id", "name", "arguments", "output", "summary",
        "encrypted_content",
    )  # fmt: skip
    return item.get("role"), content or None, {name: item[name] for name in names if item.get(name)}


def asked(case: Any) -> bool:
    """Whether something was posted: what runs in the background is only looked at afterwards."""
    return "parsed_body" in case.values[0][1]["request"]


@pytest.mark.parametrize("case", [case for case in recorded() if case.values[0] is None or asked(case)])
async def test_a_request_says_what_the_recorded_one_said(case: Any) -> None:
    name, pair, facts = case
    body = pair["request"]["parsed_body"]
    server = Server({"id": "x"})
    with pytest.raises(BadReply):
        await model_for(name, server, body["model"]).reply(request_of(body))
    sent = server.asked[0]
    key = "messages" if "messages" in body else "input"
    theirs = [item for item in body[key] if item.get("role") not in ("system", "developer")]
    ours = [item for item in sent[key] if item.get("role") != "system"]
    assert [essence(item) for item in ours] == [essence(item) for item in theirs]
    assert sent["model"] == facts["model_requested"]
    assert sent.get("instructions") == (body.get("instructions") or None)
    functions = [tool.get("function", tool) for tool in body.get("tools") or [] if tool["type"] == "function"]
    told = [tool.get("function", tool) for tool in sent.get("tools") or []]
    assert [(t["name"], t["description"], t["parameters"]) for t in told] == [
        (t["name"], t.get("description") or "", t["parameters"]) for t in functions
    ]
