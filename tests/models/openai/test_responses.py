"""Responses on the wire: what is sent, and what is made of what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import (
    ConfigError,
    ConnectionFailed,
    ModelError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
)
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
        {"type": "message", "role": "assistant", "content": "So", "phase": "commentary"},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    ]


async def test_reasoning_of_several_pieces_goes_back_in_as_many() -> None:
    pieces = [{"type": "summary_text", "text": text} for text in ("Hm", "Oh")]
    bare = {"type": "reasoning", "summary": [], "encrypted_content": "gBBB"}
    unsealed = {"type": "reasoning", "summary": pieces}
    server = Server(answer({**REASONING, "summary": pieces}, bare, unsealed, text("So")), answer(text("ok")))
    model = OpenAIResponses("gpt-5", client=server.client)
    reply = await model.reply(asking())
    assert reply.message.parts[:3] == (
        ThinkingPart("Hm", vendor=VENDOR),
        ThinkingPart("Oh", "gAAA", vendor=VENDOR),
        ThinkingPart("", "gBBB", vendor=VENDOR),
    )
    await model.reply(ModelRequest("", Messages([reply.message])))
    sealed = {"type": "reasoning", "summary": pieces, "encrypted_content": "gAAA"}
    assert server.asked[1]["input"] == [sealed, bare, {"type": "message", "role": "assistant", "content": "So"}]


async def test_reasoning_that_is_shown_and_not_sealed_goes_back_as_it_was_shown() -> None:
    content = [{"type": "reasoning_text", "text": text} for text in ("Hm", "Oh")]
    shown = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    told = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}},
        *[
            {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": at, "delta": item["text"]}
            for at, item in enumerate(content)
        ],
        {"type": "response.output_item.done", "output_index": 0, "item": {**shown, "status": "completed"}},
        {"type": "response.completed", "response": answer({**shown, "status": "completed"}, CALL)},
    ]
    server = Server(answer({**shown, "encrypted_content": None}, CALL), answer(text("ok")), answer(text("ok")))
    model = OpenAIResponses("m", client=server.client)
    whole = await model.reply(asking())
    streaming = OpenAIResponses("m", client=Server(events(*told)).client)
    *_, streamed = [piece async for piece in streaming.stream(asking())]
    assert whole.message == streamed.message
    await model.reply(ModelRequest("", Messages([whole.message])))
    assert server.asked[1]["input"][0] == shown


@pytest.mark.parametrize("here", ["https://api.openai.com/v1", "http://localhost:8080/v1"])
async def test_what_one_server_has_thought_is_not_for_another(here: str) -> None:
    """OpenAI keeps nothing under the ids of others and takes no reasoning that is shown; nobody else can unseal its."""
    shown = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    thought = sealed if "openai.com" in here else shown
    for there in ("https://api.openai.com/v1", "http://localhost:8080/v1"):
        server = Server(answer(thought, SEARCH, text("So")), answer(text("ok")))
        first = OpenAIResponses("m", client=server.client.with_options(base_url=here))
        reply = await first.reply(asking())
        request = ModelRequest("", Messages([reply.message, user("And?")]))
        await OpenAIResponses("m", client=server.client.with_options(base_url=there)).reply(request)
        kinds = [item.get("type") for item in server.asked[1]["input"]]
        assert kinds == (["reasoning", SEARCH["type"]] if here == there else []) + ["message", None]


async def test_a_call_goes_back_with_all_that_the_vendor_said_of_it() -> None:
    program = {"type": "program", "id": "cm_1", "call_id": "call_0", "code": "x", "fingerprint": "gAAA"}
    caller = {"type": "program", "caller_id": "call_0"}
    named = {**CALL, "call_id": "call_2", "namespace": "crm", "status": "completed"}
    output = [program, {**CALL, "caller": caller}, named, text("So")]
    added = [
        {"type": "response.output_item.added", "output_index": at, "item": item} for at, item in enumerate(output[:3])
    ]
    said = {"type": "response.output_text.delta", "output_index": 3, "delta": "So"}
    whole = {"type": "response.completed", "response": answer(*output)}
    server = Server(answer(*output), answer(text("ok")), events(*added, said, whole))
    model = OpenAIResponses("m", client=server.client)
    reply = await model.reply(asking())
    assert reply.message.parts[0] == OpaquePart(VENDOR, program, mediated=False)
    told = {"calls": {"call_1": {"caller": caller}, "call_2": {"namespace": "crm"}}}
    assert reply.message.parts[4:] == (OpaquePart(VENDOR, told),)
    await model.reply(ModelRequest("", Messages([reply.message])))
    called = {name: CALL[name] for name in ("type", "call_id", "name", "arguments")}
    assert server.asked[1]["input"][1:3] == [
        {**called, "caller": caller},
        {**called, "call_id": "call_2", "namespace": "crm"},
    ]
    *deltas, streamed = [piece async for piece in model.stream(asking())]
    assert (deltas, streamed.message) == ([TextDelta("So", 3)], reply.message)


async def test_what_came_from_others_is_left_out() -> None:
    parts = (ThinkingPart("Hm", "sig", vendor="anthropic"), OpaquePart("google", {"x": 1}), TextPart("Yes"))
    body = await sent(ModelRequest("", Messages([Message("assistant", parts)])))
    assert body["input"] == [{"type": "message", "role": "assistant", "content": "Yes"}]


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
    thought = {**usage, "total_tokens": 22}
    reply = await OpenAIResponses("m", client=Server(answer(text("Hi"), usage=thought)).client).reply(asking())
    assert reply.usage == Usage(10, 12, 4, 2, 3)


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


VENDOR_RUN: list[tuple[dict[str, Any], bool]] = [
    (SEARCH, False),
    ({"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": None, "status": "completed"}, False),
    ({"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "outputs": None}, False),
    ({"type": "image_generation_call", "id": "ig_1", "result": "AAAA", "status": "completed"}, False),
    ({"type": "mcp_list_tools", "id": "ml_1", "server_label": "s", "tools": [{"name": "t"}]}, False),
    ({"type": "mcp_call", "id": "mc_1", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"}, False),
    ({"type": "tool_search_call", "id": "ts_1", "arguments": {}}, False),
    ({"type": "tool_search_call", "id": "ts_1", "execution": "client", "arguments": {}}, True),
    ({"type": "shell_call", "id": "sh_1", "environment": {"type": "container_reference", "container_id": "c"}}, False),
    ({"type": "shell_call", "id": "sh_1", "environment": {"type": "local"}}, True),
    ({"type": "shell_call_output", "id": "so_1", "call_id": "call_9", "output": []}, False),
    ({"type": "program_output", "id": "po_1", "call_id": "call_9", "result": "1"}, False),
    ({"type": "computer_call", "id": "cc_1", "call_id": "call_9", "action": {"type": "click"}}, True),
    ({"type": "compaction", "id": "cp_1", "encrypted_content": "gAAA"}, True),
    ({"type": "of_tomorrow", "anything": [{"x": None}]}, True),
]


@pytest.mark.parametrize(("item", "mediated"), VENDOR_RUN)
async def test_what_the_vendor_did_itself_is_marked_and_comes_back_unharmed(item: Any, mediated: bool) -> None:
    told = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": item["type"]}},
        {"type": f"response.{item['type']}.in_progress", "output_index": 0},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "So"},
        {"type": "response.completed", "response": answer(item, text("So"))},
    ]
    server = Server(answer(item, text("So")), events(*told, done=False), answer(text("ok")))
    model = OpenAIResponses("gpt-4o", client=server.client)
    whole, (_, streamed) = await model.reply(asking()), await heard(model, asking())
    for reply in (whole, streamed):
        assert reply.message.parts == (OpaquePart(VENDOR, item, mediated), TextPart("So"))
    await model.reply(ModelRequest("", Messages([user("Hi"), whole.message])))
    assert server.asked[-1]["input"][1] == item


async def test_citations_and_the_like_are_kept_and_not_sent_back() -> None:
    said = text("So", phase="final_answer")
    said["content"][0] |= {"annotations": [{"type": "url_citation", "url": "u"}], "logprobs": [{"token": "So"}]}
    told = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "So"},
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "function_call", "name": "add"}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": CALL["arguments"]},
        {"type": "response.completed", "response": answer(said, CALL)},
    ]
    server = Server(events(*told, done=False), answer(text("ok")))
    model = OpenAIResponses("gpt-4o", client=server.client)
    _, reply = await heard(model, asking())
    assert reply.message.parts[:3] == (
        TextPart("So"),
        OpaquePart(VENDOR, {"phase": "final_answer", "logprobs": [{"token": "So"}]}),
        OpaquePart(VENDOR, {"annotations": [{"type": "url_citation", "url": "u"}]}, mediated=False),
    )
    await model.reply(ModelRequest("", Messages([reply.message])))
    assert server.asked[1]["input"][0] == {
        "type": "message",
        "role": "assistant",
        "content": "So",
        "phase": "final_answer",
    }


async def test_what_a_caller_adds_for_the_vendor_goes_where_it_belongs() -> None:
    approval = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}
    file = {"type": "input_file", "file_id": "f"}
    messages = [
        Message("user", (OpaquePart(VENDOR, approval), TextPart("Go on"), OpaquePart(VENDOR, file))),
        Message("assistant", (ToolCallPart("see", "{}", "s/1/0", "call_1"),)),
        Message("tool", (ToolResultPart("s/1/0", "see", (TextPart("Here"), OpaquePart(VENDOR, file))),)),
    ]
    told = (await sent(ModelRequest("", Messages(messages))))["input"]
    assert told[0] == approval
    assert told[1] == {"role": "user", "content": [{"type": "input_text", "text": "Go on"}, file]}
    assert told[3]["output"] == [{"type": "input_text", "text": "Here"}, file]


async def test_what_only_the_vendor_knows_comes_to_what_we_say() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    extra = {
        "tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"], "text": {"verbosity": "low"},
        "reasoning": {"summary": "auto"},
    }  # fmt: skip
    body = await sent(asking(tools=(TOOL,), output=schema), "gpt-5", extra=extra, reasoning="low")
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert (body["text"]["verbosity"], body["text"]["format"]["strict"]) == ("low", True)
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}


async def test_tools_may_be_called_one_by_one_and_chosen_in_the_words_of_the_vendor() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    body = await sent(asking(tools=(TOOL,)), parallel_tool_calls=False, tool_choice=choice)
    assert (body["parallel_tool_calls"], body["tool_choice"]) == (False, choice)


async def test_content_that_nobody_knows_is_kept() -> None:
    content = {"type": "output_hologram", "data": "x"}
    server = Server(answer({"type": "message", "content": [content]}), answer(text("ok")))
    model = OpenAIResponses("m", client=server.client)
    reply = await model.reply(asking())
    assert reply.message.parts == (OpaquePart(VENDOR, content),)
    await model.reply(ModelRequest("", Messages([reply.message])))
    assert server.asked[1]["input"] == [{"type": "message", "role": "assistant", "content": [content]}]


async def test_stop_sequences_are_refused_for_there_are_none() -> None:
    with pytest.raises(ConfigError, match="no stop sequences"):
        OpenAIResponses("gpt-5", settings={"stop": ["x"]})
    with pytest.raises(ConfigError, match="no stop sequences"):
        await sent(asking(settings={"stop": ["x"]}))


BACKGROUND = {"extra": {"background": True}}


async def test_a_reply_in_the_background_is_asked_for_until_it_is_there() -> None:
    busy = httpx2.Response(503, json={"error": {"message": "busy"}})
    server = Server(answer(status="queued"), busy, busy, answer(status="in_progress"), busy, answer(text("Done")))
    model = OpenAIResponses("gpt-5", client=server.client, settings=BACKGROUND, poll_every=0)
    assert (await model.reply(asking())).text == "Done"
    others = server.requests[1:]
    assert (server.asked[0]["background"], "store" in server.asked[0]) == (True, False)
    assert {(request.method, request.url.path) for request in others} == {("GET", "/v1/responses/resp_1")}
    assert others[0].url.params["include[]"] == "reasoning.encrypted_content"


async def test_a_reply_in_the_background_may_fail() -> None:
    busy = [httpx2.Response(503, json={"error": {"message": "busy"}}) for _ in range(3)]
    gone = httpx2.Response(404, json={"error": {"message": "gone"}})
    failed = answer(status="failed", error={"code": "server_error", "message": "m"})
    for answers, kind in ((busy, Overloaded), ([gone], ModelNotFound), ([failed], ServerError)):
        server = Server(answer(status="queued"), *answers)
        with pytest.raises(kind):
            await OpenAIResponses("m", client=server.client, settings=BACKGROUND, poll_every=0).reply(asking())
        assert not server.answers


async def test_who_does_not_wait_for_a_reply_in_the_background_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = asyncio.Event()

    async def forever(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("windlass.models.openai.responses.background.sleep", forever)
    server = Server(answer(status="queued"), answer(status="cancelled"))
    waiting = asyncio.create_task(OpenAIResponses("m", client=server.client, settings=BACKGROUND).reply(asking()))
    await asleep.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [request.url.path for request in server.requests] == ["/v1/responses", "/v1/responses/resp_1/cancel"]


async def test_items_are_told_apart_by_their_ids_where_a_server_gives_no_places() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm"}]}
    said = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}]}
    call = {**CALL, "id": "fc_1"}
    told = [
        {"type": "response.output_item.added", "item": {"type": "reasoning", "id": "rs_1"}},
        {"type": "response.reasoning_text.delta", "item_id": "rs_1", "delta": "Hm"},
        {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1"}},
        {"type": "response.content_part.added", "item_id": "msg_1"},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"},
        {"type": "response.output_item.added", "item": {**call, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": '{"a":1}'},
        {"type": "response.completed", "response": answer(thought, said, call)},
    ]
    deltas, _ = await heard(OpenAIResponses("m", client=Server(events(*told)).client), asking())
    assert deltas == [ThinkingDelta("Hm", 0), TextDelta("Hi", 1), ArgumentsDelta('{"a":1}', 2, name="add")]


async def test_items_at_one_place_are_told_apart_and_pieces_are_counted_as_they_come() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm"}]}
    said = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}]}
    calls = [{**CALL, "id": f"fc_{at}", "call_id": f"call_{at}", "arguments": f'{{"a":{at}}}'} for at in range(2)]
    told = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}},
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {"type": "output_text"}},
        {"type": "response.reasoning_text.delta", "output_index": 0, "item_id": "x", "content_index": 4, "delta": "H"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "item_id": "y", "content_index": 4, "delta": "m"},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 5, "delta": "Hi"},
    ]
    for call in calls:
        told += [
            {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": call["arguments"]},
        ]
    done = [
        {"type": "response.output_item.done", "output_index": at, "item": item}
        for at, item in [(1, calls[0]), (1, calls[1]), (0, thought), (0, said)]
    ]
    for output in ([thought, said, *calls], []):
        ended = {"type": "response.completed", "response": answer(*output)}
        server = Server(events(*told, *done, ended))
        deltas, reply = await heard(OpenAIResponses("m", client=server.client), asking())
        assert [delta.part for delta in deltas] == [0, 0, 1, 2, 3]
        assert [call.vendor_id for call in reply.tool_calls] == ["call_0", "call_1"]


async def test_reasoning_that_is_shown_comes_before_its_summary() -> None:
    thought = {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": "Hm"}],
        "summary": [{"type": "summary_text", "text": "Oh"}],
    }
    told = [
        {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Hm"},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "O"},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "h"},
        {"type": "response.completed", "response": answer(thought)},
    ]
    _, reply = await heard(OpenAIResponses("m", client=Server(events(*told)).client), asking())
    assert reply.message.parts == (ThinkingPart("Hm", vendor=VENDOR), ThinkingPart("Oh", vendor=VENDOR))


async def test_a_content_that_is_plain_text_is_text() -> None:
    server = Server(answer({"type": "message", "content": "Hi"}, {"type": "message", "content": None}))
    assert (await OpenAIResponses("m", client=server.client).reply(asking())).message.parts == (TextPart("Hi"),)


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
        ThinkingDelta("Oh", 1),
        TextDelta("Sö", 3),
        TextDelta("me", 3),
        TextDelta("!", 4),
        ArgumentsDelta('{"a"', 6, name="add"),
        ArgumentsDelta(":1}", 6, name="add"),
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
