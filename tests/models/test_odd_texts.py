"""What a model or a tool has written, be it no JSON or half a character, keeps no later request from being sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass.messages import Message, Messages, ModelRequest, TextPart, ToolCallPart, ToolResultPart, user
from windlass.models.openai import OpenAIChat, OpenAIResponses
from windlass.testing import Cassette, Exchange
from windlass.testing.scenes import said

from .openai.serving import Server
from .wires import GOOGLE, VENDORS, Vendor

HALF, OTHER = "\ud83d", "\ude00"
ARGUMENTS = [
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": -Infinity}',
    r'{"a": "\ud83d"}',
    '{"a": "\ud83d"}',
    '{"a": ',
    "[1]",
    "",
]


def no_json(constant: str) -> None:
    raise ValueError(constant)


def conversation(arguments: str, result: str = "ok") -> ModelRequest:
    call = ToolCallPart("look", arguments, id="c1", vendor_id="c1")
    answer = ToolResultPart("c1", "look", (TextPart(result),))
    return ModelRequest(
        "Be kind.", Messages([user("Look!"), Message("assistant", (call,)), Message("tool", (answer,))])
    )


async def sent(vendor: Vendor, request: ModelRequest, *, streaming: bool = False) -> Any:
    reply = said(TextPart("Fine."))
    answer = vendor.stream(*vendor.events(reply)) if streaming else vendor.whole(reply)
    with Cassette([Exchange.of(vendor.path(streaming), answer)]) as cassette:
        model = vendor.model(cassette.client())
        if streaming:
            assert [piece async for piece in model.stream(request)][-1].text == "Fine."
        else:
            assert (await model.reply(request)).text == "Fine."
    return cassette.requests[0].body


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=ascii)
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_any_arguments_can_be_sent_back(vendor: Vendor, arguments: str):
    body = await sent(vendor, conversation(arguments))
    assert json.loads(body.content, parse_constant=no_json)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_halves_of_characters_are_joined_or_left_out(vendor: Vendor, streaming: bool):
    request = conversation("{}", f"{HALF}{OTHER} and {HALF}.").replace(system=f"Be {HALF} kind.")
    body = await sent(vendor, request, streaming=streaming)
    assert "Be \N{REPLACEMENT CHARACTER} kind." in body.content.decode()
    assert "\N{GRINNING FACE} and \N{REPLACEMENT CHARACTER}." in body.content.decode()


async def test_gemini_is_told_what_its_arguments_were():
    body = await sent(GOOGLE, conversation('{"a": '))
    assert body.json["contents"][1]["parts"][0]["functionCall"]["args"] == {"INVALID_JSON": '{"a": '}


@pytest.mark.parametrize("make", [OpenAIChat, OpenAIResponses])
@pytest.mark.parametrize(("base_url", "told"), [("https://api.openai.com/v1", '{"a": '), ("http://localhost/v1", None)])
async def test_arguments_that_are_no_json_go_back_as_they_were_to_openai_alone(make: Any, base_url: str, told: Any):
    server = Server({})
    model = make("m", client=server.client.with_options(base_url=base_url))
    with pytest.raises(Exception, match="the answer has no"):
        await model.reply(conversation('{"a": '))
    body = server.asked[0]
    call = body["input"][1] if "input" in body else body["messages"][2]["tool_calls"][0]["function"]
    assert call["arguments"] == (told or json.dumps({"INVALID_JSON": '{"a": '}))
