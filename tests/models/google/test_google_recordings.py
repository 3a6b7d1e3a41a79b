"""Recorded traffic, replayed at HTTP level: what comes out equals what an independent reader found in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.recordings import WIRE, interactions, pairs, served

from windlass.errors import ModelError
from windlass.messages import (
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

from .serving import Server, asked, heard

OTHER_DEALINGS = ("/cachedContents", "oauth2.googleapis.com")
FINISHES = {"STOP": "stop", "MAX_TOKENS": "length"}


def recorded() -> list[Any]:
    """The cases in which a model is asked. One that is neither that nor known is an error."""
    cases = [case for case in pairs("google") if not any(place in uri_of(case) for place in OTHER_DEALINGS)]
    for case in cases:
        uri = uri_of(case)
        assert not uri or "enerateContent" in uri, f"{case.id} holds {uri}, of which this test knows nothing"
    return cases


def uri_of(case: Any) -> str:
    pair = case.values[2]
    return str(pair["request"]["uri"]) if pair else ""


def model_of(pair: dict[str, Any]) -> str:
    return str(pair["request"]["uri"].split("/models/")[1].split(":")[0])


async def replayed(server: Server, pair: dict[str, Any], stream: bool) -> ModelReply:
    request = request_of(pair["request"]["parsed_body"])
    model = server.model(model_of(pair))
    return await asked(model, request, streaming=stream)


@pytest.mark.parametrize(("path", "place", "pair", "facts"), recorded())
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_recording_decodes_to_what_is_expected_of_it(
    path: Path, place: int, pair: Any, facts: Any, seed: int
) -> None:
    server = Server(served(pair["response"], seed))
    if facts.get("error"):
        with pytest.raises(ModelError) as caught:
            await replayed(server, pair, facts["stream"])
        assert (caught.value.status, str(caught.value)) == (facts["status"], facts["error"]["message"])
        return
    reply = await replayed(server, pair, facts["stream"])
    thinking = [part for part in reply.message.parts if type(part) is ThinkingPart]
    assert reply.text == facts.get("text", "")
    assert "".join(part.text for part in thinking) == facts.get("thinking", "")
    assert any(part.signature for part in thinking) == facts.get("signature", False)
    calls = [[call.name, json.loads(call.json)] for call in reply.tool_calls]
    assert calls == [[name, json.loads(arguments)] for name, arguments in facts.get("tools", [])]
    assert (reply.raw_finish, reply.model) == (facts["finish"], facts["model"])
    assert reply.finish == ("tool_calls" if calls else FINISHES[facts["finish"]])
    assert_usage(reply, facts["usage"])


def assert_usage(reply: ModelReply, told: dict[str, Any]) -> None:
    usage = reply.usage
    assert usage.input == told["promptTokenCount"] + told.get("toolUsePromptTokenCount", 0)
    assert usage.output == told.get("candidatesTokenCount", 0) + told.get("thoughtsTokenCount", 0)
    assert usage.cached == told.get("cachedContentTokenCount", 0)
    assert usage.reasoning == told.get("thoughtsTokenCount", 0)
    assert (usage.total, usage.requests) == (told["totalTokenCount"], 1)


# ------------------------------------------------------------ what was asked

SETTINGS = {
    "temperature": "temperature",
    "topP": "top_p",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "thinkingConfig": "reasoning",
}
OURS = ("contents", "systemInstruction", "tools", "generationConfig", "toolConfig")


def request_of(body: dict[str, Any]) -> ModelRequest:
    """A recorded request as ours. What our settings have no name for is passed through."""
    system = "".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", ()))
    config = dict(body.get("generationConfig", {}))
    output = config.pop("responseJsonSchema", None)
    if output:
        assert config.pop("responseMimeType") == "application/json"
    settings: dict[str, Any] = {SETTINGS[name]: config.pop(name) for name in list(config) if name in SETTINGS}
    extra = {name: value for name, value in body.items() if name not in OURS}
    extra |= {"generationConfig": config} if config else {}
    specs: list[ToolSpec] = []
    for tool in body.get("tools", ()):
        if "functionDeclarations" in tool:
            specs += [spec_of(declared) for declared in tool["functionDeclarations"]]
        else:
            extra.setdefault("tools", []).append(tool)
    if chosen := body.get("toolConfig", {}).get("functionCallingConfig"):
        words = {"AUTO": "auto", "ANY": "required", "NONE": "none"}
        settings["tool_choice"] = chosen.get("allowedFunctionNames") or words[chosen["mode"]]
    messages = Messages([message_of(content) for content in body["contents"]])
    return ModelRequest(system, messages, tuple(specs), "", settings | {"extra": extra}, output)


def spec_of(declared: dict[str, Any]) -> ToolSpec:
    schema = declared.get("parameters_json_schema") or declared.get("parameters") or {}
    return ToolSpec(declared["name"], declared.get("description", ""), schema)


def message_of(content: dict[str, Any]) -> Message:
    parts: list[Part] = []
    for part in content["parts"]:
        if "functionCall" in part:
            call = part["functionCall"]
            if "thoughtSignature" in part:
                parts.append(ThinkingPart("", part["thoughtSignature"], vendor="google"))
            parts.append(ToolCallPart(call["name"], json.dumps(call["args"]), vendor_id=call["id"]))
        elif "functionResponse" in part:
            said = part["functionResponse"]
            parts.append(ToolResultPart(said["id"], said["name"], (TextPart(said["response"]["return_value"]),)))
        else:
            parts.append(TextPart(part["text"]) if set(part) == {"text"} else OpaquePart("google", part))
    tool = any(type(part) is ToolResultPart for part in parts)
    return Message("tool" if tool else "assistant" if content["role"] == "model" else "user", tuple(parts))


def essence(body: dict[str, Any]) -> dict[str, Any]:
    """What matters of a request: not the ways in which the same may be written."""
    told = json.loads(json.dumps(body))
    for content in told["contents"]:
        for part in content["parts"]:
            if "functionResponse" in part:
                part["functionResponse"]["response"] = list(part["functionResponse"]["response"].values())
    for tool in told.get("tools", ()):
        for declared in tool.get("functionDeclarations", ()):
            kinds = ("parametersJsonSchema", "parameters_json_schema", "parameters")
            schema = next((declared.pop(kind) for kind in kinds if kind in declared), {})
            declared["parameters"] = json.loads(json.dumps(schema).lower())
    return dict(told)


@pytest.mark.parametrize(("path", "place", "pair", "facts"), recorded())
async def test_a_request_says_what_the_recorded_one_said(path: Path, place: int, pair: Any, facts: Any) -> None:
    server = Server(served(pair["response"], 0))
    if facts.get("error"):
        with pytest.raises(ModelError):
            await replayed(server, pair, facts["stream"])
    else:
        await replayed(server, pair, facts["stream"])
    assert str(server.requests[0].url) == pair["request"]["uri"]
    assert essence(server.asked[0]) == essence(pair["request"]["parsed_body"])


async def test_a_turn_is_continued_as_the_recorded_one_was() -> None:
    """What the model said in one pair is sent back as the next pair has it: with its ids, and signed."""
    path = WIRE / "google" / "test_native_output_with_function_tools_stream.yaml"
    if not path.is_file():
        pytest.skip("no recordings beside the repository")
    first, second = interactions(path)
    said = await replayed(Server(served(first["response"], 0)), first, stream=True)
    theirs = second["request"]["parsed_body"]["contents"]
    answered = message_of(theirs[2])
    request = ModelRequest("", Messages([message_of(theirs[0]), said.message, answered]))
    server = Server(served(second["response"], 0))
    await heard(server.model(model_of(second)), request)
    ours = server.asked[0]["contents"]
    # They write the signature in the other of the two alphabets of base64.
    signed = ours[1]["parts"][0]
    signed["thoughtSignature"] = signed["thoughtSignature"].replace("+", "-").replace("/", "_")
    assert essence(server.asked[0])["contents"] == essence({"contents": theirs})["contents"]
