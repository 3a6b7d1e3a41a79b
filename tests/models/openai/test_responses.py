"""Responses on the wire: what is sent, and what is made of what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed, ModelError, RateLimited, ServerError
from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
    user,
)
from windlass.models.openai import OpenAIResponses

from .serving import Pieces, Server, asking, events, heard

VENDOR = "openai-responses"
TOOL = ToolSpec("add", "Add.", {"type": "object"})
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "encrypted_content": "gAAA",
    "summary": [{"type": "summary_text", "text": "Hm"}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"a":1}'}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": said}],
        **more,
    }


def answer(*output: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "gpt-x-1", "status": status, "output": list(output), **more}


async def sent(request: ModelRequest, model: str = "gpt-4o", **settings: Any) -> dict[str, Any]:
    server = Server(answer(text("ok")))
    await OpenAIResponses(model, client=server.client, settings=settings).reply(request)
    body: dict[str, Any] = server.asked[0]
    return body


async def test_settings_have_the_names_of_the_vendor() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    request = ModelRequest("Be kind.", Messages([user("Hi")]), (TOOL,), output=schema)
    body = await sent(
        request, "gpt-5",
        temperature=0.5, max_tokens=9, reasoning="low", tool_choice="add", prompt_cache_key="k", extra={"user": "me"},
    )  # fmt: skip
    assert body == {
        "model": "gpt-5",
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": "Hi"}],
        "store": False,
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "text": {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True}},
        "temperature": 0.5,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "tool_choice": {"type": "function", "name": "add"},
        "prompt_cache_key": "k",
        "user": "me",
    }


@pytest.mark.parametrize(
    ("model", "thinks"), [("gpt-4o", False), ("o3", True), ("gpt-5.5", True), ("gpt-5-chat-latest", False)]
)
async def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, thinks: bool) -> None:
    assert ("include" in await sent(asking(), model)) is thinks


async def test_all_that_a_reply_has_goes_back_unharmed() -> None:
    server = Server(answer(REASONING, SEARCH, text("So", phase="commentary"), CALL), answer(text("ok")))
    model = OpenAIResponses("gpt-5", client=server.client)
    reply = await model.reply(asking())
    assert reply.message.parts == (
        ThinkingPart("Hm", "gAAA", vendor=VENDOR),
        OpaquePart(VENDOR, SEARCH, mediated=False),
        TextPart("So"),
        OpaquePart(VENDOR, {"phase": "commentary"}),
        ToolCallPart("add", '{"a":1}', vendor_id="call_1"),
    )
    assert (reply.finish, reply.response_id, reply.model) == ("tool_calls", "resp_1", "gpt-x-1")
    parts = (*reply.message.parts[:-1], ToolCallPart("add", '{"a":1}', "s/1/0", "call_1"))
    results = Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("2"),)),))
    await model.reply(ModelRequest("", Messages([user("Hi"), Message("assistant", parts), results])))
    assert server.asked[1]["input"] == [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": REASONING["summary"], "encrypted_content": "gAAA"},
        SEARCH,
        {"role": "assistant", "content": "So", "phase": "commentary"},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    ]


async def test_what_came_from_others_is_left_out() -> None:
    parts = (ThinkingPart("Hm", "sig", vendor="anthropic"), OpaquePart("google", {"x": 1}), TextPart("Yes"))
    body = await sent(ModelRequest("", Messages([Message("assistant", parts)])))
    assert body["input"] == [{"role": "assistant", "content": "Yes"}]


async def test_images_go_to_the_model_from_users_and_from_tools() -> None:
    image = ImagePart(url="http://x/i.png")
    messages = [
        Message("user", (TextPart("Look"), image)),
        Message("assistant", (ToolCallPart("see", "{}", "s/1/0", "call_1"),)),
        Message("tool", (ToolResultPart("s/1/0", "see", (TextPart("Here"), image)),)),
    ]
    look, _, seen = (await sent(ModelRequest("", Messages(messages))))["input"]
    picture = {"type": "input_image", "image_url": "http://x/i.png", "detail": "auto"}
    assert look == {"role": "user", "content": [{"type": "input_text", "text": "Look"}, picture]}
    assert seen["output"] == [{"type": "input_text", "text": "Here"}, picture]


async def test_a_reply_says_what_was_spent() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    reply = await OpenAIResponses("m", client=Server(answer(text("Hi"), usage=usage)).client).reply(asking())
    assert reply.usage == Usage(10, 5, 4, 2, 3)


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("new", "other")]
)
async def test_an_incomplete_reply_says_why(reason: str, finish: str) -> None:
    whole = answer(text("Hi"), status="incomplete", incomplete_details={"reason": reason})
    server = Server(whole, events({"type": "response.incomplete", "response": whole}))
    model = OpenAIResponses("m", client=server.client)
    assert (await model.reply(asking())).finish == finish
    *_, reply = [piece async for piece in model.stream(asking())]
    assert (reply.finish, reply.raw_finish) == (finish, "incomplete")


async def test_a_refusal_is_text_with_a_finish_of_its_own() -> None:
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    reply = await OpenAIResponses("m", client=Server(answer(item)).client).reply(asking())
    assert (reply.text, reply.finish) == ("No.", "refusal")


def streamed() -> list[dict[str, Any]]:
    thought = {**REASONING, "summary": [{"type": "summary_text", "text": "Hm"}, {"type": "summary_text", "text": "Oh"}]}
    said = text("Söme", phase="commentary")
    said["content"].append({"type": "output_text", "text": "!"})
    output = [thought, SEARCH, said, CALL]

    def item(at: int, kind: str) -> dict[str, Any]:
        bare = {key: value for key, value in output[at].items() if key not in ("content", "arguments", "phase")}
        return {
            "type": f"response.output_item.{kind}",
            "output_index": at,
            "item": output[at] if kind == "done" else bare,
        }

    def delta(kind: str, at: int, text: str, **more: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "output_index": at, "delta": text, **more}

    return [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        item(0, "added"),
        delta("reasoning_summary_text", 0, "Hm", summary_index=0),
        delta("reasoning_summary_text", 0, "Oh", summary_index=1),
        item(0, "done"),
        item(1, "added"),
        {"type": "response.web_search_call.searching", "output_index": 1},
        item(1, "done"),
        item(2, "added"),
        {"type": "response.content_part.added", "output_index": 2, "content_index": 0},
        delta("output_text", 2, "Sö", content_index=0),
        delta("output_text", 2, "me", content_index=0),
        {"type": "response.content_part.added", "output_index": 2, "content_index": 1},
        delta("output_text", 2, "!", content_index=1),
        item(2, "done"),
        item(3, "added"),
        delta("function_call_arguments", 3, '{"a"'),
        delta("function_call_arguments", 3, ":1}"),
        item(3, "done"),
        {"type": "response.completed", "response": answer(*output)},
    ]


@pytest.mark.parametrize("bare", [False, True])
async def test_the_pieces_of_a_stream_have_the_places_of_the_whole(bare: bool) -> None:
    told = streamed()
    if bare:
        told[-1]["response"]["output"] = []
    deltas, reply = await heard(OpenAIResponses("m", client=Server(events(*told, done=False)).client), asking())
    assert deltas == [
        ThinkingDelta("Hm", 0),
        ThinkingDelta("\n\nOh", 0),
        TextDelta("Sö", 2),
        TextDelta("me", 2),
        TextDelta("!", 3),
        ArgumentsDelta('{"a"', 5, name="add"),
        ArgumentsDelta(":1}", 5, name="add"),
    ]
    assert reply.text == "Söme!"
    assert reply.tool_calls == (ToolCallPart("add", '{"a":1}', vendor_id="call_1"),)
    assert reply.finish == "tool_calls"


async def test_a_stream_that_breaks_off_anywhere_is_a_failed_connection() -> None:
    whole = events(*streamed()[-5:], done=False)
    for length in range(0, whole.rindex(b"}"), 3):
        model = OpenAIResponses("m", client=Server(Pieces([whole[:length]])).client)
        with pytest.raises(ConnectionFailed):
            [piece async for piece in model.stream(asking())]


FAILURES: list[tuple[dict[str, Any], type[ModelError]]] = [
    ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "m"}}}, ServerError),
    ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "m"}}}, RateLimited),
    ({"type": "error", "code": "server_error", "message": "m", "param": None}, ServerError),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, RateLimited),
]


@pytest.mark.parametrize(("event", "kind"), FAILURES)
async def test_a_failure_inside_a_stream_is_an_error(event: dict[str, Any], kind: type[ModelError]) -> None:
    with pytest.raises(ModelError, match="m") as caught:
        await heard(OpenAIResponses("m", client=Server(events(event)).client), asking())
    assert type(caught.value) is kind
    assert caught.value.retryable
