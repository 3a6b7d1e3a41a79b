"""Recorded traffic, replayed at HTTP level: what comes out equals what an independent reader found in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from tests.models.recordings import expected, interactions, is_converse, recordings, served

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
from windlass.models.openai import OpenAIChat, OpenAIResponses
from windlass.models.openai.dialects import chat_dialect

from .serving import Server, asked


class Case(NamedTuple):
    """A request, its answer, what was asked afterwards about an answer in the making, and what is known of the last."""

    name: str
    asked: dict[str, Any]
    answers: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        return dict(self.asked["parsed_body"])

    @property
    def path(self) -> str:
        return urlsplit(self.asked["uri"]).path

    @property
    def vendor(self) -> str:
        if self.path.endswith("/responses"):
            return "openai-responses"
        return chat_dialect(self.asked["uri"], "").vendor

    def model(self, server: Server) -> Any:
        if self.path.endswith("/responses"):
            return OpenAIResponses(self.body["model"], client=server.client, poll_every=0)
        dialect = chat_dialect(self.asked["uri"], self.body["model"])
        return OpenAIChat(self.body["model"], client=server.client, dialect=dialect)


def recorded() -> list[Any]:
    """One case for each request and all that answers it. A file that nobody knows how to treat is an error.

    Those of Converse are replayed in tests/models/bedrock.
    """
    files = [path for folder in ("openai_chat", "openai_responses", "other") for path in recordings(folder)]
    return [
        pytest.param(case, id=f"{case.name.removesuffix('.yaml')}-{at}")
        for path in files
        for at, case in enumerate(cases_of(path), 1)
    ] or [pytest.param(None, marks=pytest.mark.skip(reason="no recordings beside the repository"))]


def cases_of(path: Path) -> list[Case]:
    name = f"{path.parent.name}/{path.name}"
    cases: list[Case] = []
    for pair, facts in zip(interactions(path), expected(path), strict=True):
        request, place = pair["request"], urlsplit(pair["request"]["uri"])
        if is_converse(pair):
            continue
        asks = request["method"], place.path.rpartition("/")[0].rpartition("/")[2]
        if request["method"] == "POST" and place.path.endswith(("/chat/completions", "/responses")):
            cases.append(Case(name, request, [pair["response"]], facts))
        elif asks == ("GET", "responses") and cases:
            last = cases.pop()
            cases.append(last._replace(answers=[*last.answers, pair["response"]], facts={**last.facts, **facts}))
        else:
            raise AssertionError(f"{name}: nobody knows how to treat {request['method']} {request['uri']}")
    return cases


FINISHES = {"stop": "stop", "completed": "stop", "tool_calls": "tool_calls", "length": "length"}
PARTS = {"reasoning": ThinkingPart, "message": TextPart, "function_call": ToolCallPart}


@pytest.mark.parametrize("case", recorded())
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_recording_decodes_to_what_is_expected_of_it(case: Case, seed: int) -> None:
    facts = case.facts
    server = Server(*[served(answer, seed) for answer in case.answers])
    model, request = case.model(server), request_of(case)
    if facts.get("error"):
        with pytest.raises(ModelError) as caught:
            await asked(model, request, streaming=facts["stream"])
        assert_error(caught.value, facts, case.answers[-1]["headers"])
        return
    reply = await asked(model, request, streaming=facts["stream"])
    assert not server.answers
    tools = [tool for tool in facts.get("tools", []) if not tool[0].startswith("[server]")]
    assert reply.text == facts.get("text", "")
    assert [[call.name, call.json] for call in reply.tool_calls] == tools
    thinking = "".join(part.text for part in reply.message.parts if type(part) is ThinkingPart)
    untold = case.name.startswith("other/") and not facts["stream"]
    assert thinking == facts.get("thinking", thinking if untold else "")
    assert reply.raw_finish == facts["finish"]
    assert reply.finish == ("tool_calls" if tools else FINISHES.get(facts["finish"], reply.finish))
    assert reply.model == facts["model"]
    if not facts["stream"]:
        assert reply.response_id == case.answers[-1]["parsed_body"]["id"]
    assert_usage(reply, facts["usage"])
    assert_items(reply, facts.get("items") or [])


def assert_error(error: ModelError, facts: dict[str, Any], headers: dict[str, list[str]]) -> None:
    assert str(error).startswith(facts["error"]["message"])
    assert error.status == (facts["error"].get("status_code") or facts["status"])
    assert error.request_id == next((headers[name][0] for name in ("x-request-id", "cf-ray") if name in headers), None)
    assert error.retryable or error.status not in (429, 500, 502, 503)


def assert_items(reply: ModelReply, kinds: list[str]) -> None:
    """Each item of the output is there, in its place; what the vendor did itself is marked as such."""
    parts = [part for part in reply.message.parts if type(part) is not OpaquePart or "type" in part.data]
    for part, kind in zip(parts, kinds, strict=True) if kinds else ():
        assert type(part) is PARTS.get(kind, OpaquePart)
        if type(part) is OpaquePart:
            assert (part.data["type"], part.mediated) == (kind, "_call" not in kind)


def assert_usage(reply: ModelReply, told: dict[str, Any]) -> None:
    def first(*names: str) -> int:
        return next((told[name] or 0 for name in names if name in told), 0)

    def detail(names: tuple[str, str], field: str) -> int:
        return next(((told[name] or {}).get(field) or 0 for name in names if name in told), 0)

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


OURS = ("temperature", "top_p", "stop", "seed", "parallel_tool_calls", "prompt_cache_key", "reasoning")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
NOT_SETTINGS = ("model", "messages", "input", "instructions", "tools", "response_format", "text", "stream")


def request_of(case: Case) -> ModelRequest:
    """A recorded request as ours. What is no setting of ours goes as it is to the vendor."""
    body = case.body
    system, messages = [body["instructions"]] if body.get("instructions") else [], []
    for item in items_of(body):
        if item.get("role") in ("system", "developer"):
            system.append(text_of(item["content"]))
        else:
            messages.append(message_of(item, case.vendor))
    tools = [tool.get("function", tool) for tool in body.get("tools") or [] if tool["type"] == "function"]
    specs = tuple(ToolSpec(t["name"], t.get("description") or "", t["parameters"]) for t in tools)
    settings, output = settings_of(body), output_of(body)
    return ModelRequest("\n\n".join(system), Messages(messages), specs, settings=settings, output=output)


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    items = body["messages"] if "messages" in body else body["input"]
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(piece["text"] for piece in content)


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    settings = {name: body[name] for name in OURS if name in body}
    if name := next((name for name in LIMITS if name in body), None):
        settings["max_tokens"] = body[name]
    if "reasoning_effort" in body:
        settings["reasoning"] = body["reasoning_effort"]
    if (choice := body.get("tool_choice")) is not None:
        named = isinstance(choice, dict) and choice.get("type") == "function"
        settings["tool_choice"] = choice.get("function", choice)["name"] if named else choice
    known = (*OURS, *LIMITS, *NOT_SETTINGS, "reasoning_effort", "tool_choice", "include", "stream_options")
    extra = {name: value for name, value in body.items() if name not in known}
    if vendor_tools := [tool for tool in body.get("tools") or [] if tool["type"] != "function"]:
        extra["tools"] = vendor_tools
    if output_of(body) is None:
        extra |= {name: body[name] for name in ("response_format", "text") if name in body}
    return {**settings, "extra": extra}


def output_of(body: dict[str, Any]) -> Any:
    told = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    return told.get("json_schema", told)["schema"] if told.get("type") == "json_schema" else None


def strictness_of(body: dict[str, Any]) -> bool:
    told = body.get("response_format") or body["text"]["format"]
    return bool(told.get("json_schema", told).get("strict"))


def message_of(item: dict[str, Any], vendor: str) -> Message:
    kind = item.get("type", item.get("role"))
    if kind in ("tool", "function_call_output"):
        call = item.get("tool_call_id") or item["call_id"]
        content: Any = tuple(pieces_of(item.get("content", item.get("output")), vendor))
        return Message("tool", (ToolResultPart(call, "", content),))
    if kind == "function_call":
        return Message("assistant", (ToolCallPart(item["name"], item["arguments"], vendor_id=item["call_id"]),))
    if kind == "reasoning":
        text = "\n\n".join(piece["text"] for piece in item["summary"])
        return Message("assistant", (ThinkingPart(text, item["encrypted_content"], vendor=vendor),))
    if "role" not in item:
        return Message("assistant", (OpaquePart(vendor, item),))
    parts = pieces_of(item.get("content"), vendor)
    if thinking := item.get("reasoning_content") or item.get("reasoning"):
        parts.insert(0, ThinkingPart(thinking, vendor=vendor))
    if item.get("phase"):
        parts.append(OpaquePart(vendor, {"phase": item["phase"]}))
    calls = [(call["function"], call["id"]) for call in item.get("tool_calls") or ()]
    parts += [ToolCallPart(called["name"], called["arguments"], vendor_id=id) for called, id in calls]
    return Message(item["role"], tuple(parts))


def pieces_of(content: Any, vendor: str) -> list[Part]:
    if content is None or isinstance(content, str):
        return [TextPart(content)] if content else []
    return [piece_of(piece, vendor) for piece in content]


def piece_of(piece: dict[str, Any], vendor: str) -> Part:
    if image := piece.get("image_url"):
        return ImagePart(url=image["url"] if isinstance(image, dict) else image)
    return TextPart(piece["text"]) if piece["type"].endswith("text") else OpaquePart(vendor, piece)


def essence(item: dict[str, Any]) -> Any:
    """What matters of one item that is sent: not the ways in which the same may be written."""
    content = item.get("content")
    if isinstance(content, list):
        content = [piece.get("text") or piece.get("image_url") or piece for piece in content]
        content = content[0] if len(content) == 1 else content
    unimportant = ("content", "role", "id", "status")
    rest = {name: value for name, value in item.items() if name not in unimportant and value}
    if rest.get("type") == "message":
        del rest["type"]
    return item.get("role"), content or None, rest


def said(body: dict[str, Any]) -> list[Any]:
    """What has been said so far. A message without content says nothing."""
    items = [essence(item) for item in items_of(body) if item.get("role") not in ("system", "developer")]
    return [item for item in items if item[1:] != (None, {})]


def asking(body: dict[str, Any]) -> dict[str, Any]:
    """How the model is asked, in words that do not depend on who writes them."""
    told = {name: value for name, value in body.items() if name not in ("messages", "input", "tools", "store")}
    for name in ("stream", "instructions"):
        if not told.get(name):
            told.pop(name, None)
    if output_of(body) is not None:
        told |= {"response_format": None, "text": None, "output": (output_of(body), strictness_of(body))}
    return told


@pytest.mark.parametrize("case", recorded())
async def test_a_request_says_what_the_recorded_one_said(case: Case) -> None:
    body, server = case.body, Server({"id": "x"})
    with pytest.raises(ModelError):
        await asked(case.model(server), request_of(case), streaming=bool(body.get("stream")))
    sent = server.asked[0]
    assert said(sent) == said(body)
    if case.name.startswith("other/"):
        # Asked of each of them by us; not by the client that made the recordings.
        sent.pop("stream_options", None)
    assert asking(sent) == asking(body)
    assert [tool_of(tool) for tool in sent.get("tools") or []] == [tool_of(tool) for tool in body.get("tools") or []]
    assert str(server.requests[0].url).endswith(case.path.removeprefix("/v1") if "openai" in case.vendor else "")


def tool_of(tool: dict[str, Any]) -> Any:
    function = tool.get("function", tool)
    if tool["type"] != "function":
        return tool
    return function["name"], function.get("description") or "", function["parameters"]
