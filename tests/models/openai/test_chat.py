"""Chat Completions on the wire: what is sent, and what is made of what comes back."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx2
import pytest
from openai import AsyncAzureOpenAI, AzureOpenAI, OpenAI

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConfigError, ConnectionFailed, ServerError
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
    assistant,
    user,
)
from windlass.models import open_model
from windlass.models.openai import OpenAIChat, OpenAIResponses
from windlass.models.openai.dialects import COMPATIBLE, DIALECTS, chat_dialect
from windlass.models.openai.settings import strict

from .serving import Pieces, Server, asking, events, heard

TOOL = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def answer(finish: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return {"id": "chatcmpl-1", "model": "gpt-x-1", "choices": [choice]}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "gpt-x-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None, arguments: str, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


async def sent(request: ModelRequest, dialect: Any = None, **settings: Any) -> dict[str, Any]:
    server = Server(answer(content="ok"))
    await OpenAIChat("gpt-x", client=server.client, settings=settings, dialect=dialect).reply(request)
    body: dict[str, Any] = server.asked[0]
    return body


async def wire(*messages: Message, dialect: Any = None) -> list[Any]:
    body = await sent(ModelRequest("", Messages(messages)), dialect)
    return list(body["messages"])


async def test_a_plain_request_says_only_what_was_asked() -> None:
    body = await sent(ModelRequest("Be kind.", Messages([user("Hi")])))
    assert body == {
        "model": "gpt-x",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    }


async def test_settings_have_the_names_of_the_vendor() -> None:
    request = asking(tools=(TOOL,), settings={"temperature": 0.5, "extra": {"logit_bias": {"1": 2}}})
    body = await sent(
        request,
        temperature=1.0, top_p=0.9, max_tokens=7, stop=["x"], seed=3, reasoning="low", tool_choice="add",
        parallel_tool_calls=False, prompt_cache_key="k", extra={"user": "me"},
    )  # fmt: skip
    del body["messages"], body["model"], body["tools"]
    assert body == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 7,
        "stop": ["x"],
        "seed": 3,
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "logit_bias": {"1": 2},
        "user": "me",
    }


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
async def test_a_tool_choice_that_names_no_tool_is_sent_as_it_is(choice: str) -> None:
    assert (await sent(asking(tools=(TOOL,)), tool_choice=choice))["tool_choice"] == choice


async def test_a_compatible_server_gets_the_old_name_of_the_limit() -> None:
    assert (await sent(asking(), COMPATIBLE, max_tokens=7))["max_tokens"] == 7


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    for wrong in ({"extra": "flex"}, "hot"):
        with pytest.raises(ConfigError, match="must be a mapping of names to values, not '"):
            OpenAIChat("gpt-5", settings=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unknown settings temprature: the settings are temperature"):
        OpenAIChat("gpt-x", settings={"temprature": 1})


@pytest.mark.parametrize("closed", [True, False])
async def test_an_output_is_strict_where_its_schema_can_be(closed: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"type": "object", "properties": {}, "additionalProperties": False}}
        },
        "required": ["items"],
        "additionalProperties": not closed,
    }
    told = (await sent(asking(output=schema)))["response_format"]
    assert told == {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": closed}}


async def test_images_are_sent_by_address_or_by_their_bytes() -> None:
    message = Message("user", (TextPart("Look"), ImagePart(url="http://x/i.png"), ImagePart(b"hi", None, "image/gif")))
    assert await wire(message) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "http://x/i.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/gif;base64,aGk="}},
            ],
        }
    ]


async def test_calls_and_results_meet_by_the_id_of_the_vendor() -> None:
    calls = Message(
        "assistant", (TextPart("So."), ToolCallPart("add", "", "s/1/0", "call_a"), ToolCallPart("add", "{", "s/1/1"))
    )
    results = Message(
        "tool",
        (
            ToolResultPart("s/1/1", "add", (ImagePart(url="http://x/i.png"),)),
            ToolResultPart("s/1/0", "add", (TextPart("3"),)),
        ),
    )
    said, second, first, picture = await wire(calls, results)
    made = said["tool_calls"][1]["id"]
    assert said == {
        "role": "assistant",
        "content": "So.",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": "{}"}},
            {"id": made, "type": "function", "function": {"name": "add", "arguments": "{"}},
        ],
    }
    assert made.startswith("call_")
    assert second == {"role": "tool", "tool_call_id": made, "content": "The image follows."}
    assert first == {"role": "tool", "tool_call_id": "call_a", "content": "3"}
    assert picture["content"][1] == {"type": "image_url", "image_url": {"url": "http://x/i.png"}}


async def test_an_id_that_the_vendor_would_refuse_is_made_anew_and_always_the_same() -> None:
    message = Message("assistant", (ToolCallPart("add", "{}", "s/1/0", "toolu_" + "x" * 60),))
    for dialect, length in ((None, 29), (DIALECTS["mistral"], 9)):
        ids = {(await wire(message, dialect=dialect))[0]["tool_calls"][0]["id"] for _ in range(2)}
        assert [len(made) for made in ids] == [length]


@pytest.mark.parametrize(("vendor", "field"), [("deepseek", "reasoning_content"), ("groq", "reasoning")])
async def test_thinking_goes_back_to_its_vendor_only(vendor: str, field: str) -> None:
    message = Message("assistant", (ThinkingPart("Hm.", vendor=vendor), TextPart("Yes")))
    home = await wire(message, dialect=DIALECTS[vendor])
    assert home == [{"role": "assistant", field: "Hm.", "content": "Yes"}]
    assert await wire(message) == [{"role": "assistant", "content": "Yes"}]


async def test_what_only_the_vendor_understands_comes_back_unharmed() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    content = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "reference", "ids": [1]}]
    server = Server(
        answer(content=content, reasoning_details=details, annotations=[{"type": "url_citation"}]), answer()
    )
    model = OpenAIChat("m", client=server.client, dialect=DIALECTS["mistral"])
    reply = await model.reply(asking())
    assert reply.message.parts == (
        ThinkingPart("Hm", vendor="mistral"),
        OpaquePart("mistral", content[1]),
        OpaquePart("mistral", {"reasoning_details": details}),
        OpaquePart("mistral", {"annotations": [{"type": "url_citation"}]}, mediated=False),
    )
    await model.reply(ModelRequest("", Messages([user("Hello"), reply.message])))
    assert server.asked[1]["messages"][1] == {"role": "assistant", "content": content, "reasoning_details": details}
    assert await wire(reply.message) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_a_reply_thinks_before_it_speaks(field: str) -> None:
    server = Server(answer(content="Yes", **{field: "Hm"}))
    reply = await OpenAIChat("m", client=server.client, dialect=DIALECTS["groq"]).reply(asking())
    assert reply.message.parts == (ThinkingPart("Hm", vendor="groq"), TextPart("Yes"))


async def test_content_in_a_list_is_heard_piece_by_piece() -> None:
    thinking = [{"type": "thinking", "thinking": thought} for thought in ([{"type": "text", "text": "H"}], "m", None)]
    reference = {"type": "reference", "reference_ids": [1]}
    said = {"type": "text", "text": "Yes"}
    server = Server(
        events(*[chunk(content=[item]) for item in [*thinking, reference, said]], chunk("stop")),
        answer(content=[{"type": "thinking", "thinking": "Hm"}, reference, said, {"type": "text"}]),
    )
    model = OpenAIChat("m", client=server.client, dialect=DIALECTS["mistral"])
    parts = (ThinkingPart("Hm", vendor="mistral"), OpaquePart("mistral", reference), TextPart("Yes"))
    assert (await heard(model, asking()))[1].message.parts == parts
    assert (await model.reply(asking())).message.parts == parts


async def test_usage_may_come_with_the_choice() -> None:
    last = chunk("stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2}
    _, reply = await heard(OpenAIChat("m", client=Server(events(last)).client), asking())
    assert reply.usage == Usage(3, 1, 2)


async def test_usage_may_come_in_a_field_of_the_vendor() -> None:
    last = {**chunk("stop"), "x_groq": {"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}}
    _, reply = await heard(OpenAIChat("m", client=Server(events(last)).client), asking())
    assert reply.usage == Usage(3, 1)


async def test_a_reply_says_what_was_spent_and_who_spoke() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    server = Server({**answer(content="Hi"), "usage": usage})
    reply = await OpenAIChat("gpt-x", client=server.client).reply(asking())
    assert reply.usage == Usage(10, 5, 4, 2, 3)
    assert (reply.text, reply.model, reply.response_id, reply.raw_finish) == ("Hi", "gpt-x-1", "chatcmpl-1", "stop")


FINISHES = [
    ("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("function_call", "tool_calls"),
    ("model_length", "length"), ("insufficient_system_resource", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "finish"), FINISHES)
async def test_finish_reasons_become_one_set_and_the_raw_one_is_kept(raw: str, finish: str) -> None:
    server = Server(answer(raw, content="x"), events(chunk(content="x"), chunk(raw)))
    model = OpenAIChat("gpt-x", client=server.client)
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.finish, reply.raw_finish) == (finish, raw)


async def test_calls_of_a_server_that_says_stop_are_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    reply = await OpenAIChat("m", client=Server(answer("stop", tool_calls=[call])).client).reply(asking())
    assert reply.finish == "tool_calls"
    assert reply.tool_calls == (ToolCallPart("add", '{"a": 1}', vendor_id="c"),)


async def test_a_refusal_is_text_with_a_finish_of_its_own() -> None:
    server = Server(answer(content=None, refusal="No."), events(chunk(refusal="N"), chunk(refusal="o."), chunk("stop")))
    model = OpenAIChat("gpt-x", client=server.client)
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.text, reply.finish) == ("No.", "refusal")


async def test_malformed_arguments_are_kept_as_the_model_wrote_them() -> None:
    server = Server(events(chunk(tool_calls=[piece(0, '{"a": ', "c", "add")]), chunk("tool_calls")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    assert reply.tool_calls == (ToolCallPart("add", '{"a": ', vendor_id="c"),)


async def test_a_stream_thinks_speaks_and_calls_in_parallel() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    body = events(
        chunk(role="assistant", content=""),
        chunk(reasoning_content="H"),
        chunk(reasoning_content="m"),
        chunk(content="Sü"),
        chunk(tool_calls=[piece(0, "", "c0", "add"), piece(1, '{"b"', "c1", "sub")]),
        chunk(tool_calls=[piece(0, '{"a":1}')]),
        chunk(tool_calls=[piece(1, ":2}")]),
        chunk("tool_calls"),
        {"id": "c1", "choices": [], "usage": usage},
    )
    server = Server(body)
    deltas, reply = await heard(OpenAIChat("gpt-x", client=server.client), asking())
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    assert deltas == [
        ThinkingDelta("H", 0),
        ThinkingDelta("m", 0),
        TextDelta("Sü", 1),
        ArgumentsDelta('{"b"', 3, name="sub"),
        ArgumentsDelta('{"a":1}', 2, name="add"),
        ArgumentsDelta(":2}", 3, name="sub"),
    ]
    assert reply.message.parts[0] == ThinkingPart("Hm", vendor="openai")
    assert [(call.name, call.json, call.vendor_id) for call in reply.tool_calls] == [
        ("add", '{"a":1}', "c0"),
        ("sub", '{"b":2}', "c1"),
    ]
    assert reply.usage == Usage(1, 2)


@pytest.mark.parametrize("index", [None, 0])
async def test_calls_without_an_index_of_their_own_are_told_apart_by_their_ids(index: int | None) -> None:
    calls = [piece(index, '{"a":1}', "c0", "add"), piece(index, '{"a"', "c1", "add"), piece(index, ":2}")]
    server = Server(events(*[chunk(tool_calls=[call]) for call in calls], chunk("tool_calls")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    assert [call.json for call in reply.tool_calls] == ['{"a":1}', '{"a":2}']


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("id", [None, ""])
async def test_calls_without_ids_are_told_apart_by_their_names(index: int | None, id: str | None) -> None:
    calls = [piece(index, '{"a":1}', id, "add"), piece(index, '{"a"', id, "add"), piece(index, ":2}", id, "add")]
    server = Server(events(*[chunk(tool_calls=[call]) for call in calls], chunk("tool_calls")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    assert [call.json for call in reply.tool_calls] == ['{"a":1}', '{"a":2}']


async def test_streamed_details_of_reasoning_are_joined() -> None:
    pieces = [{"type": "reasoning.text", "text": text, "index": 0} for text in ("a", "b")]
    seal = {"type": "reasoning.text", "text": None, "signature": "s", "index": 0}
    server = Server(events(*[chunk(reasoning_details=[item]) for item in [*pieces, seal]], chunk("stop", content="x")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    details = [{"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s"}]
    assert reply.message.parts == (TextPart("x"), OpaquePart("openai", {"reasoning_details": details}))


async def test_a_stream_that_breaks_off_anywhere_is_a_failed_connection() -> None:
    whole = events(chunk(content="Hi"), chunk(content=" you"), chunk("stop"), done=False)
    ends = whole.rindex(b"}")
    for error in (None, httpx2.RemoteProtocolError("peer closed")):
        for length in range(ends):
            model = OpenAIChat("gpt-x", client=Server(Pieces([whole[:length]], error)).client)
            with pytest.raises(ConnectionFailed) as caught:
                await heard(model, asking())
            assert caught.value.retryable


async def test_the_first_delta_does_not_wait_for_the_rest_and_closing_closes_the_connection() -> None:
    class Endless(Pieces):
        async def __aiter__(self) -> Any:
            yield self.pieces[0]
            await asyncio.Event().wait()

    body = Endless([events(chunk(content="Hi"), done=False)])
    stream = OpenAIChat("gpt-x", client=Server(body).client).stream(asking())
    assert await anext(stream) == TextDelta("Hi", 0)
    await stream.aclose()
    assert body.closed


async def test_cancelling_closes_the_connection() -> None:
    class Endless(Pieces):
        async def __aiter__(self) -> Any:
            yield self.pieces[0]
            reached.set()
            await asyncio.Event().wait()

    reached = asyncio.Event()
    body = Endless([events(chunk(content="Hi"), done=False)])
    task = asyncio.create_task(heard(OpenAIChat("gpt-x", client=Server(body).client), asking()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert body.closed


async def test_a_compressed_stream_is_read() -> None:
    packed = gzip.compress(events(chunk(content="Hi"), chunk("stop")))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    response = httpx2.Response(
        200, headers=headers, stream=Pieces([packed[at : at + 3] for at in range(0, len(packed), 3)])
    )
    _, reply = await heard(OpenAIChat("gpt-x", client=Server(response).client), asking())
    assert reply.text == "Hi"


BAD = [{"id": "x"}, {"choices": []}, {"choices": [3]}, [1], httpx2.Response(200, text="<html>")]


@pytest.mark.parametrize("body", BAD)
async def test_an_answer_that_is_none_is_a_bad_reply(body: Any) -> None:
    with pytest.raises(BadReply):
        await OpenAIChat("gpt-x", client=Server(body).client).reply(asking())


async def test_a_chunk_that_is_none_is_a_bad_reply() -> None:
    with pytest.raises(BadReply):
        await heard(OpenAIChat("gpt-x", client=Server(events({"choices": [3]})).client), asking())


async def test_only_what_is_new_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(*[answer(content="ok")] * 4)
    model = OpenAIChat("gpt-x", client=server.client)
    encoded: list[Message] = []
    encode = model._encoder._message
    monkeypatch.setattr(model._encoder._history, "_encode", lambda m, ids: encoded.append(m) or encode(m, ids))
    items = [user("one"), assistant("two"), user("three")]
    for length in (1, 3):
        await model.reply(ModelRequest("", Messages(items[:length])))
    assert encoded == items
    changed = [items[0], items[1].replace(parts=(TextPart("2"),)), items[2]]
    await model.reply(ModelRequest("", Messages(changed)))
    assert encoded[3:] == [changed[1]]
    await model.reply(ModelRequest("", Messages(changed[:1])))
    texts = [[item["content"] for item in asked["messages"]] for asked in server.asked]
    assert texts == [["one"], ["one", "two", "three"], ["one", "2", "three"], ["one"]]


async def test_a_changed_call_takes_its_result_along() -> None:
    server = Server(answer(content="ok"), answer(content="ok"))
    model = OpenAIChat("gpt-x", client=server.client)
    first, result = user("Hi"), Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("3"),)),))
    for vendor_id in ("call_a", "call_b"):
        call = Message("assistant", (ToolCallPart("add", "{}", "s/1/0", vendor_id),))
        await model.reply(ModelRequest("", Messages([first, call, result])))
    assert [asked["messages"][2]["tool_call_id"] for asked in server.asked] == ["call_a", "call_b"]


VENDORS = [
    ("openai", "api.openai.com/v1", "OPENAI_API_KEY"),
    ("openai-chat", "api.openai.com/v1", "OPENAI_API_KEY"),
    ("openai-responses", "api.openai.com/v1", "OPENAI_API_KEY"),
    ("openrouter", "openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    ("groq", "api.groq.com/openai/v1", "GROQ_API_KEY"),
    ("deepseek", "api.deepseek.com", "DEEPSEEK_API_KEY"),
    ("mistral", "api.mistral.ai/v1", "MISTRAL_API_KEY"),
]


@pytest.mark.parametrize(("vendor", "address", "variable"), VENDORS)
async def test_a_vendor_has_its_address_and_its_key(
    vendor: str, address: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=f"'{vendor}:m/x:free' has no key: set {variable}, or pass api_key=…"):
        open_model(f"{vendor}:m/x:free")
    monkeypatch.setenv(variable, "secret")
    model: Any = open_model(f"{vendor}:m/x:free")
    assert model.name == f"{vendor}:m/x:free"
    client = model._connection.client()
    assert str(client.base_url).rstrip("/") == f"https://{address}"
    assert (client.api_key, client.max_retries) == ("secret", 0)
    await model.aclose()


async def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name, options in (("ollama:m", {}), ("openai:m", {"base_url": "http://localhost:1/v1"})):
        model: Any = open_model(name, **options)
        assert str(model._connection.client().base_url).startswith("http://localhost")
        await model.aclose()


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses])
def test_a_client_that_cannot_wait_is_refused(adapter: Any) -> None:
    with pytest.raises(ConfigError, match="client is a object; pass an AsyncOpenAI"):
        adapter("gpt-x", client=object())
    with OpenAI(api_key="k") as plain, pytest.raises(ConfigError, match="not asynchronous: pass an AsyncOpenAI"):
        adapter("gpt-x", client=plain)
    azure = AzureOpenAI(api_key="k", api_version="1", azure_endpoint="https://me.openai.azure.com")
    with azure, pytest.raises(ConfigError, match="AzureOpenAI; it is not asynchronous: pass an AsyncAzureOpenAI"):
        adapter("gpt-x", client=azure)


@pytest.mark.parametrize(
    ("adapter", "path"),
    [(OpenAIChat, "/openai/deployments/gpt-x/chat/completions"), (OpenAIResponses, "/openai/responses")],
)
async def test_a_client_for_azure_works_by_being_passed_in_and_does_not_retry(adapter: Any, path: str) -> None:
    asked: list[httpx2.Request] = []

    def busy(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(500, json={"error": {"message": "m"}})

    client = AsyncAzureOpenAI(
        api_key="k",
        api_version="2026-01-01",
        azure_endpoint="https://me.openai.azure.com",
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(busy)),
    )
    model = adapter("gpt-x", client=client, settings={"max_tokens": 5})
    for attempt in (model.reply(asking()), heard(model, asking())):
        with pytest.raises(ServerError):
            await attempt
    assert [(request.url.path, request.url.params["api-version"]) for request in asked] == [(path, "2026-01-01")] * 2
    assert asked[0].headers["api-key"] == "k"
    limit = {OpenAIChat: "max_completion_tokens", OpenAIResponses: "max_output_tokens"}[adapter]
    assert json.loads(asked[0].content)[limit] == 5
    assert client.max_retries != 0


ADDRESSES = [
    (None, "gpt-x", "openai", "max_completion_tokens"),
    ("https://api.openai.com/v1", "gpt-x", "openai", "max_completion_tokens"),
    ("https://eu.api.openai.com/v1", "gpt-x", "openai", "max_completion_tokens"),
    ("https://me.openai.azure.com/openai", "mine", "openai", "max_completion_tokens"),
    ("https://api.mistral.ai/v1/", "m", "mistral", "max_tokens"),
    ("https://api.deepseek.com/beta", "m", "deepseek", "max_tokens"),
    ("https://openrouter.ai/api/v1", "openai/gpt-5", "openrouter", "max_tokens"),
    ("http://localhost:11434/v1", "llama3", "ollama", "max_tokens"),
    ("http://localhost:8000/v1", "llama3", "openai-compatible", "max_tokens"),
    ("http://localhost:8000/v1", "openai/gpt-oss-20b", "openai-compatible", "max_tokens"),
    ("https://gateway.example/v1", "o3-mini", "openai-compatible", "max_completion_tokens"),
    ("https://notopenai.com/v1", "m", "openai-compatible", "max_tokens"),
]


@pytest.mark.parametrize(("address", "model", "vendor", "limit"), ADDRESSES)
def test_a_server_is_known_by_its_address(address: str | None, model: str, vendor: str, limit: str) -> None:
    dialect = chat_dialect(address, model)
    assert (dialect.vendor, dialect.limit) == (vendor, limit)


async def test_the_dialect_of_a_client_that_is_passed_in_is_that_of_its_address() -> None:
    server = Server(answer(content="ok"))
    client = server.client.with_options(base_url="https://api.mistral.ai/v1")
    model = OpenAIChat("m", client=client, settings={"seed": 1})
    await model.reply(asking())
    assert server.asked[0]["random_seed"] == 1
    assert model.name == "mistral:m"


def test_another_address_in_the_environment_is_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert chat_dialect(None, "llama3").vendor == "openai-compatible"


async def test_what_only_the_vendor_knows_comes_to_what_we_say() -> None:
    search = {"type": "web_search"}
    body = await sent(asking(tools=(TOOL,)), extra={"tools": [search], "service_tier": "flex"}, tool_choice=search)
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert (body["tool_choice"], body["service_tier"]) == (search, "flex")
    alone = await sent(asking(), extra={"tools": [search]}, tool_choice="required")
    assert (alone["tools"], alone["tool_choice"]) == ([search], "required")
    server = Server(events(chunk("stop")))
    model = OpenAIChat(
        "m", client=server.client, settings={"extra": {"stream_options": {"include_obfuscation": False}}}
    )
    await heard(model, asking())
    assert server.asked[0]["stream_options"] == {"include_usage": True, "include_obfuscation": False}


REASONING = [
    (None, "low", {"reasoning_effort": "low"}),
    (None, {"effort": "low", "summary": "auto"}, {"reasoning_effort": "low"}),
    (None, False, {"reasoning_effort": "none"}),
    (None, True, {}),
    (DIALECTS["openrouter"], {"max_tokens": 9}, {"reasoning": {"max_tokens": 9}}),
]


@pytest.mark.parametrize(("dialect", "reasoning", "told"), REASONING)
async def test_reasoning_is_asked_for_in_the_words_of_the_vendor(dialect: Any, reasoning: Any, told: Any) -> None:
    body = await sent(asking(), dialect, reasoning=reasoning)
    del body["messages"], body["model"]
    assert body == told


@pytest.mark.parametrize("reasoning", [2000, {"summary": "auto"}])
async def test_reasoning_that_the_vendor_cannot_be_asked_for_is_refused(reasoning: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning="):
        await sent(asking(), reasoning=reasoning)


CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


async def test_arguments_are_promised_by_those_who_can_where_the_schema_allows_it() -> None:
    tools = (ToolSpec("open", "", {"type": "object"}), ToolSpec("closed", "", CLOSED))
    told = (await sent(asking(tools=tools)))["tools"]
    assert [tool["function"].get("strict") for tool in told] == [None, True]
    elsewhere = (await sent(asking(tools=tools), COMPATIBLE))["tools"]
    assert [tool["function"].get("strict") for tool in elsewhere] == [None, None]


FIELDS: list[tuple[Any, bool]] = [
    ({"type": ["string", "null"], "description": "x", "enum": ["a", None]}, True),
    ({"type": "string", "format": "date", "pattern": "^a+$"}, True),
    ({"type": "string", "format": "uri"}, False),
    ({"type": "string", "pattern": "(?=a)b"}, False),
    ({"type": "string", "default": "x"}, False),
    ({"type": "array", "items": CLOSED, "maxItems": 3}, True),
    ({"type": "array", "items": {"type": "object"}}, False),
    ({"anyOf": [{"type": "null"}, CLOSED]}, True),
    ({"allOf": [CLOSED]}, False),
    ({"$ref": "#/$defs/X"}, True),
    ({"type": ["object", "null"], "properties": {}}, False),
    (True, False),
]


@pytest.mark.parametrize(("field", "kept"), FIELDS)
def test_a_schema_is_strict_if_the_vendor_can_keep_to_all_of_it(field: Any, kept: bool) -> None:
    schema = {**CLOSED, "properties": {"a": field}}
    assert strict(schema) is kept
    assert strict({"type": "object", **schema, "$defs": {"X": {"type": "object"}}}) is False
    assert strict({"anyOf": [schema]}) is False


async def test_an_image_that_another_model_made_is_left_out() -> None:
    assert await wire(Message("assistant", (TextPart("Here"), ImagePart(b"x")))) == [
        {"role": "assistant", "content": "Here"}
    ]


async def test_fields_that_nobody_knows_are_kept_and_a_call_gets_its_own_back() -> None:
    signature = {"google": {"thought_signature": "s"}}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}, "extra_content": signature}
    audio = {"id": "a1", "data": "AA", "transcript": "Hi"}
    logprobs = {"content": [{"token": "a"}, {"token": "b"}]}
    whole = answer("tool_calls", tool_calls=[call], audio=audio, images=[1])
    whole["choices"][0]["logprobs"] = logprobs
    first, second = chunk(images=[1], audio={"id": "a1", "data": "A"}), chunk(audio={"data": "A", "transcript": "Hi"})
    for at, piece_of_it in enumerate((first, second)):
        piece_of_it["choices"][0]["logprobs"] = {"content": [logprobs["content"][at]]}
    server = Server(whole, answer(), events(chunk(tool_calls=[{"index": 0, **call}]), first, second, chunk("stop")))
    model = OpenAIChat("m", client=server.client)
    reply = await model.reply(asking())
    kept = reply.message.parts[1]
    told = {"audio": audio, "images": [1], "logprobs": logprobs, "calls": {"c": {"extra_content": signature}}}
    assert kept == OpaquePart("openai", told)
    await model.reply(ModelRequest("", Messages([user("Hello"), reply.message])))
    assert server.asked[1]["messages"][1] == {"role": "assistant", "tool_calls": [call], "audio": {"id": "a1"}}
    _, streamed = await heard(model, asking())
    assert streamed.message.parts[1] == kept


async def test_of_several_answers_the_first_is_heard() -> None:
    other = chunk(content="Other")
    other["choices"][0]["index"] = 1
    server = Server(events(chunk(content="Hi"), other, chunk("stop")))
    assert (await heard(OpenAIChat("m", client=server.client), asking()))[1].text == "Hi"


async def test_the_first_of_several_answers_need_not_come_first() -> None:
    other = answer(content="Other", finish="length")
    other["choices"][0]["index"] = 1
    other["choices"] += answer(content="Hi")["choices"]
    reply = await OpenAIChat("m", client=Server(other).client).reply(asking())
    assert (reply.text, reply.finish) == ("Hi", "stop")
    both = chunk(content="Other")
    both["choices"][0]["index"] = 1
    both["choices"] += chunk("stop", content="Hi")["choices"]
    _, reply = await heard(OpenAIChat("m", client=Server(events(both)).client), asking())
    assert (reply.text, reply.finish) == ("Hi", "stop")


async def test_a_stream_is_whole_when_the_server_is_done_or_has_said_what_it_cost() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 1}}
    lost = httpx2.RemoteProtocolError("peer closed")
    for whole in (events(chunk("stop")), events(chunk("stop"), usage, done=False)):
        model = OpenAIChat("m", client=Server(Pieces([whole], lost)).client)
        assert (await heard(model, asking()))[1].finish == "stop"
    with pytest.raises(ConnectionFailed):
        await heard(OpenAIChat("m", client=Server(events(chunk("stop"), done=False)).client), asking())


async def test_the_body_is_json_that_can_be_sent_twice() -> None:
    server = Server(answer(content="ok"), answer(content="ok"))
    model = OpenAIChat("gpt-x", client=server.client)
    for _ in range(2):
        await model.reply(asking(tools=(TOOL,)))
    assert json.dumps(server.asked[0]) == json.dumps(server.asked[1])
