"""Typed answers at every vendor, in every mode: what is sent, as the vendors document it, and what comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from windlass import Agent, TextDelta, tool
from windlass.capabilities import StructuredOutput
from windlass.messages import Message, Messages, ModelReply, ModelRequest, TextPart, ToolCallPart, ToolSpec, Usage, user
from windlass.models.anthropic import AnthropicMessages
from windlass.models.bedrock import BedrockConverse
from windlass.models.google import GoogleGemini
from windlass.models.openai import OpenAIChat
from windlass.models.openai.settings import strict_output
from windlass.models.outputs import TOOL, takes_output
from windlass.outputs import Output
from windlass.testing import Cassette, Exchange

from .wires import ANTHROPIC, BEDROCK, CHAT, GOOGLE, RESPONSES, VENDORS, Vendor


@dataclass
class Trip:
    city: str
    season: Literal["summer", "winter"]
    days: int = 1


@dataclass
class Refusal:
    reason: str


ANSWER = {"value": {"kind": "Trip", "value": {"city": "Oslo", "season": "winter", "days": 2}}}
TEXT = json.dumps(ANSWER)


def reply_in(mode: str) -> ModelReply:
    part = ToolCallPart(TOOL, TEXT, vendor_id="call_1") if mode == "tool" else TextPart(TEXT)
    return ModelReply(Message("assistant", (part,)), Usage(3, 4), "tool_calls" if mode == "tool" else "stop")


def agent_at(vendor: Vendor, mode: Any, *, streamed: bool = False, **options: Any) -> tuple[Agent[Any, Any], Cassette]:
    said = reply_in(mode)
    body = vendor.stream(*vendor.events(said)) if streamed else json.dumps(vendor.whole(said))
    headers = {} if streamed else {"content-type": "application/json"}
    cassette = Cassette([Exchange.of(vendor.path(streamed), body, headers=headers)])
    model = vendor.model(cassette.client())
    return Agent(model, output=Trip | Refusal, capabilities=[StructuredOutput(mode)], **options), cassette


def body_of(cassette: Cassette) -> Any:
    return cassette.requests[0].body.json


NATIVE: dict[str, Any] = {
    "chat": lambda body: (body["response_format"]["type"], body["response_format"]["json_schema"]["schema"]),
    "responses": lambda body: (body["text"]["format"]["type"], body["text"]["format"]["schema"]),
    "anthropic": lambda body: (body["output_config"]["format"]["type"], body["output_config"]["format"]["schema"]),
    "google": lambda body: ("json_schema", body["generationConfig"]["responseJsonSchema"]),
    "bedrock": lambda body: (
        body["outputConfig"]["textFormat"]["type"],
        json.loads(body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]),
    ),
}


@pytest.mark.parametrize("mode", ["auto", "native", "tool", "prompt"])
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_a_union_of_classes_is_obtained_in_every_mode(vendor: Vendor, mode: str) -> None:
    agent, cassette = agent_at(vendor, mode)
    assert (await agent.run("Where?")).output == Trip("Oslo", "winter", 2)
    body = body_of(cassette)
    if mode in ("auto", "native"):
        kind, schema = NATIVE[vendor.name](body)
        assert kind == "json_schema"
        assert schema["type"] == "object"
        assert "anyOf" not in schema
        assert len(json.dumps(schema["properties"]["value"]).split('"anyOf"')) == 2
        assert TOOL not in json.dumps(body)
    elif mode == "tool":
        assert json.dumps(body).count(TOOL) == 2  # the tool, and that it must be called
        assert not any(name in body for name in ("response_format", "text", "output_config", "outputConfig"))
    else:
        assert "Your final answer is JSON that fits this schema" in json.dumps(body)
        assert TOOL not in json.dumps(body)


@pytest.mark.parametrize("mode", ["native", "tool"])
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_partial_values_are_streamed_from_every_vendor(vendor: Vendor, mode: str) -> None:
    agent, _ = agent_at(vendor, mode, streamed=True)
    async with agent.stream("Where?") as stream:
        seen = [stream.partial async for event in stream if isinstance(event, TextDelta)]
    assert seen[-1] == ANSWER["value"]["value"]
    assert stream.result.output == Trip("Oslo", "winter", 2)


async def test_the_vendor_must_call_one_of_the_tools() -> None:
    choices = {
        "chat": lambda body: body["tool_choice"],
        "responses": lambda body: body["tool_choice"],
        "anthropic": lambda body: body["tool_choice"]["type"],
        "google": lambda body: body["toolConfig"]["functionCallingConfig"]["mode"],
        "bedrock": lambda body: next(iter(body["toolConfig"]["toolChoice"])),
    }
    wanted = {"chat": "required", "responses": "required", "anthropic": "any", "google": "ANY", "bedrock": "any"}

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "x"

    for vendor in VENDORS:
        agent, cassette = agent_at(vendor, "tool", tools=[look])
        assert (await agent.run("Where?")).output == Trip("Oslo", "winter", 2)
        assert choices[vendor.name](body_of(cassette)) == wanted[vendor.name]


# ---------------------------------------------------------------- the rules of OpenAI's strict schemas


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    names: list[str]


def assert_strict(schema: Any) -> None:
    """Every object is closed and requires all its fields, and every schema has a type, a reference or a choice."""
    if "properties" in schema:
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    assert schema.keys() & {"type", "$ref", "anyOf"}
    assert not schema.keys() & {"default", "discriminator", "oneOf"}
    for name in ("properties", "$defs"):
        for inner in schema.get(name, {}).values():
            assert_strict(inner)
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])):
        assert_strict(inner)


@pytest.mark.parametrize(
    "kind", [Trip, Trip | Refusal, Cat, Cat | Dog, Literal["yes", "no"], list[Trip], Trip | None, int], ids=str
)
def test_every_common_type_has_a_strict_schema(kind: Any) -> None:
    schema = strict_output(dict(Output(kind).schema or {}))
    assert schema is not None
    assert schema["type"] == "object"
    assert_strict(schema)


@pytest.mark.parametrize("kind", [dict[str, int], Any, {"type": "object"}], ids=str)
def test_a_schema_that_cannot_be_strict_is_sent_as_it_is(kind: Any) -> None:
    assert strict_output(dict(Output(kind).schema or {})) is None


@pytest.mark.parametrize("vendor", [CHAT, RESPONSES], ids=lambda vendor: vendor.name)
async def test_openai_is_told_that_the_schema_is_strict(vendor: Vendor) -> None:
    agent, cassette = agent_at(vendor, "native")
    await agent.run("Where?")
    body = body_of(cassette)
    given = body["response_format"]["json_schema"] if vendor is CHAT else body["text"]["format"]
    assert (given["name"], given["strict"]) == ("output", True)
    assert_strict(given["schema"])


async def test_a_choice_of_values_in_a_strict_tool_has_a_type() -> None:
    @tool(effect="pure")
    def pick(colour: Literal["blue", "red"]) -> str:
        """Pick."""
        return colour

    agent, cassette = agent_at(CHAT, "native", tools=[pick])
    await agent.run("Where?")
    function = body_of(cassette)["tools"][0]["function"]
    assert function["strict"] is True
    assert function["parameters"]["properties"]["colour"] == {"type": "string", "enum": ["blue", "red"]}


# ---------------------------------------------------------------- models that take no schema

LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
PLAIN = ModelRequest("", Messages([user("Hi")]), output={"type": "object"})


@pytest.mark.parametrize(
    ("make", "model", "plain", "with_tools"),
    [
        (AnthropicMessages, "claude-sonnet-4-5", True, True),
        (AnthropicMessages, "claude-opus-4-1-20250805", True, True),
        (AnthropicMessages, "claude-3-7-sonnet-latest", False, False),
        (AnthropicMessages, "claude-sonnet-4-20250514", False, False),
        (AnthropicMessages, "claude-opus-4-0", False, False),
        (GoogleGemini, "gemini-2.5-flash", True, False),
        (GoogleGemini, "gemini-3-pro", True, True),
        (OpenAIChat, "gpt-5", True, True),
    ],
)
def test_a_model_says_whether_it_takes_the_schema(make: Any, model: str, plain: bool, with_tools: bool) -> None:
    made = make(model, api_key="none")
    assert takes_output(made, PLAIN) is plain
    assert takes_output(made, PLAIN.replace(tools=(LOOK,))) is with_tools


@pytest.mark.parametrize(
    ("model", "takes"), [("us.amazon.nova-pro-v1:0", False), ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True)]
)
def test_bedrock_says_whether_its_model_takes_the_schema(model: str, takes: bool) -> None:
    made = BedrockConverse(model, region="us-east-1", api_key="none")
    assert takes_output(made, PLAIN) is takes


async def test_an_older_claude_reads_the_schema_without_the_capability() -> None:
    from anthropic import AsyncAnthropic

    exchange = Exchange.of(ANTHROPIC.path(False), json.dumps(ANTHROPIC.whole(reply_in("prompt"))),
                           headers={"content-type": "application/json"})  # fmt: skip
    cassette = Cassette([exchange])
    client = AsyncAnthropic(api_key="k", http_client=cassette.client())
    agent = Agent(AnthropicMessages("claude-3-5-haiku-latest", client=client), output=Trip | Refusal)
    assert (await agent.run("Where?")).output == Trip("Oslo", "winter", 2)
    assert "output_config" not in body_of(cassette)
    assert "Your final answer is JSON" in body_of(cassette)["system"][0]["text"]


def test_all_vendors_are_here() -> None:
    assert {vendor.name for vendor in (CHAT, RESPONSES, ANTHROPIC, GOOGLE, BEDROCK)} == set(NATIVE)
