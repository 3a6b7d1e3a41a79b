"""Servers that speak Chat Completions, each in its own way: what is made of what they say, and what they get back."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.errors import BadReply, BadRequest, ConnectionFailed, ModelError, QuotaExceeded, ServerError
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
    Usage,
    user,
)
from windlass.models.openai import OpenAIChat
from windlass.models.openai.dialects import COMPATIBLE, DIALECTS, chat_dialect

from .serving import Pieces, Server, asked, asking, events, heard
from .test_chat import answer, chunk, piece, sent, wire

CALLED = Message("assistant", (ToolCallPart("add", "{}", "s/1/0", "abcdef123"),))
RESULT = Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("3"),)),))


async def calls_of(*pieces: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """The calls that are made of pieces, each of which comes in a chunk of its own."""
    server = Server(events(*[chunk(tool_calls=[item]) for item in pieces], chunk("tool_calls")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    return [(call.name, call.json, call.vendor_id) for call in reply.tool_calls]


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("name", [None, "add"])
async def test_pieces_of_calls_that_come_by_turns_are_told_apart_by_their_ids(index: Any, name: Any) -> None:
    assert await calls_of(
        piece(index, '{"a"', "c0", "add"),
        piece(index, '{"a"', "c1", "add"),
        piece(index, ":1}", "c0", name),
        piece(index, ":2}", "c1", name),
    ) == [("add", '{"a":1}', "c0"), ("add", '{"a":2}', "c1")]


async def test_an_id_that_is_new_in_each_piece_begins_no_call() -> None:
    pieces = [piece(0, '{"a"', "c0", "add"), piece(0, ":1", "c1"), piece(0, "}", "c2", "")]
    assert await calls_of(*pieces) == [("add", '{"a":1}', "c0")]


async def test_another_name_without_an_id_begins_a_call_be_the_one_before_it_empty() -> None:
    pieces = [piece(0, "", None, "now"), piece(0, '{"a":1}', None, "add"), piece(0, "", None, "now")]
    assert await calls_of(*pieces) == [("now", "", None), ("add", '{"a":1}', None), ("now", "", None)]


async def test_a_call_may_have_any_index() -> None:
    assert await calls_of(piece(1, "", "c", "add"), piece(1, ""), piece(1, "{}")) == [("add", "{}", "c")]


async def test_a_piece_with_neither_an_id_nor_a_name_goes_on_with_the_call_before_it() -> None:
    pieces = [piece(0, "{}", "c0", "now"), piece(0, "", "c1", "add"), piece(1, '{"a"'), piece(1, ":1}")]
    assert await calls_of(*pieces) == [("now", "{}", "c0"), ("add", '{"a":1}', "c1")]


async def test_a_piece_goes_on_with_the_call_of_its_id_be_its_index_another() -> None:
    pieces = [piece(0, '{"a"', "c0", "add"), piece(1, ":1}", "c0"), piece(1, "", "c1", "now"), piece(2, "{}", "c1", "")]
    assert await calls_of(*pieces) == [("add", '{"a":1}', "c0"), ("now", "{}", "c1")]


async def test_a_name_may_come_after_the_arguments() -> None:
    assert await calls_of(piece(0, '{"a"', "c"), piece(0, ":1}", None, "add")) == [("add", '{"a":1}', "c")]


async def test_what_is_said_again_with_each_piece_of_a_detail_is_kept_once() -> None:
    common = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "id": None}
    pieces: list[dict[str, Any]] = [{"text": "ha"}, {"text": "ha"}, {"signature": "s"}]
    server = Server(
        events(*[chunk(reasoning="ha", reasoning_details=[{**common, **item}]) for item in pieces], chunk("stop")),
        answer(content="ok"),
    )
    model = OpenAIChat("m", client=server.client, dialect=DIALECTS["openrouter"])
    _, reply = await heard(model, asking())
    await model.reply(ModelRequest("", Messages([user("Hi"), reply.message])))
    assert server.asked[1]["messages"][1]["reasoning_details"] == [{**common, "text": "haha", "signature": "s"}]


async def test_a_text_beside_the_message_is_not_joined_from_its_repetitions() -> None:
    server = Server(events(*[chunk(content="x", channel="final") for _ in range(3)], chunk("stop")))
    _, reply = await heard(OpenAIChat("m", client=server.client), asking())
    assert reply.message.parts == (TextPart("xxx"), OpaquePart("openai", {"channel": "final"}))


SIGNS_OF_LIFE = [
    b"retry: 3000\n\n",
    b"id: 7\n\n: ping\n\n",
    b"event: ping\n\n",
    b"data:\n\n",
    b"data: null\n\n",
    b": OPENROUTER PROCESSING\n\n",
]


@pytest.mark.parametrize("sign", SIGNS_OF_LIFE)
async def test_signs_of_life_are_not_part_of_the_answer(sign: bytes) -> None:
    first, last = events(chunk(content="Hi"), done=False), events(chunk("stop"))
    body = sign + first + sign + last
    for written in (body, body.replace(b"\n", b"\r\n"), body.replace(b"data: ", b"data:")):
        _, reply = await heard(OpenAIChat("m", client=Server(written).client), asking())
        assert (reply.text, reply.finish) == ("Hi", "stop")


async def test_a_server_that_is_done_need_not_say_why() -> None:
    call = chunk(tool_calls=[piece(0, "{}", "c", "add")])
    for said, finish in ((chunk(content="Hi"), "other"), (call, "tool_calls")):
        _, reply = await heard(OpenAIChat("m", client=Server(events(said, chunk())).client), asking())
        assert (reply.finish, reply.raw_finish) == (finish, None)
    for nothing in (events(), events(chunk(content="Hi"), done=False)):
        with pytest.raises(ConnectionFailed):
            await heard(OpenAIChat("m", client=Server(Pieces([nothing])).client), asking())


@pytest.mark.parametrize(
    ("raw", "finish"),
    [("STOP", "stop"), ("eos_token", "stop"), ("tool_use", "tool_calls"), ("MAX_TOKENS", "length"),
     ("model_context_window_exceeded", "length"), ("sensitive", "content_filter"), ("abort", "other")],
)  # fmt: skip
async def test_servers_have_other_words_for_the_end(raw: str, finish: str) -> None:
    reply = await OpenAIChat("m", client=Server(answer(raw, content="x")).client).reply(asking())
    assert (reply.finish, reply.raw_finish) == (finish, raw)


USAGES: list[tuple[dict[str, Any], Usage]] = [
    ({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 45,
      "completion_tokens_details": {"reasoning_tokens": 30}}, Usage(12, 33, reasoning=30)),
    ({"prompt_tokens": 20, "completion_tokens": 151, "total_tokens": 553}, Usage(20, 533)),
    ({"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22, "num_cached_tokens": 16}, Usage(20, 2, 16)),
    ({"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 122,
      "prompt_tokens_details": {"cached_tokens": 100}}, Usage(20, 2, 100)),
    ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4},
      "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4}, Usage(9, 1, 4, 3)),
    ({"total_tokens": 0, "total_characters": 0}, Usage()),
]  # fmt: skip


@pytest.mark.parametrize(("told", "usage"), USAGES)
async def test_all_that_was_spent_is_counted_wherever_a_server_says_it(told: dict[str, Any], usage: Usage) -> None:
    server = Server({**answer(content="x"), "usage": told}, events({**chunk("stop", content="x"), "usage": told}))
    model = OpenAIChat("m", client=server.client)
    for streaming in (False, True):
        assert (await asked(model, streaming=streaming)).usage == usage


ERRORS: list[tuple[dict[str, Any], type[ModelError], bool]] = [
    ({"object": "error", "message": "m: bad", "type": "BadRequestError", "code": 400}, BadRequest, False),
    ({"code": "InternalError", "message": "m: lost"}, ServerError, True),
    ({"detail": "m: gone"}, ServerError, True),
    ({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "m: no balance"}}, QuotaExceeded, False),
    ({"choices": None, "base_resp": {"status_code": 1000, "status_msg": "m: unknown"}}, ServerError, True),
    ({"type": "error", "error": {"type": "x", "message": "m", "http_code": "400"}}, BadRequest, False),
]


@pytest.mark.parametrize(("told", "kind", "retryable"), ERRORS)
async def test_an_error_that_looks_like_an_answer_is_an_error(told: Any, kind: Any, retryable: bool) -> None:
    server = Server(told, events(chunk(content="Hi"), told))
    model = OpenAIChat("m", client=server.client)
    for streaming in (False, True):
        with pytest.raises(ModelError, match=r"^m") as caught:
            await asked(model, streaming=streaming)
        assert (type(caught.value), caught.value.retryable) == (kind, retryable)


async def test_an_answer_without_choices_says_what_it_has_instead() -> None:
    odd = {"choices": None, "note": "come back later"}
    with pytest.raises(BadReply, match="come back later"):
        await OpenAIChat("m", client=Server(odd).client).reply(asking())


async def test_a_filtered_answer_may_have_no_message() -> None:
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": {"hate": {"filtered": True}}}
    reply = await OpenAIChat("m", client=Server({"choices": [choice]}).client).reply(asking())
    assert (reply.message.parts, reply.finish) == ((), "content_filter")


async def test_what_a_server_has_looked_up_by_itself_is_kept_and_marked() -> None:
    beside = {"citations": ["http://x"], "search_results": [{"title": "X", "url": "http://x"}]}
    pieces = [{**chunk(content="H"), "citations": ["http://x"]}, {**chunk("stop", content="i"), **beside}]
    server = Server({**answer(content="Hi"), **beside}, events(*pieces), answer(content="ok"))
    model = OpenAIChat("sonar", client=server.client)
    for streaming in (False, True):
        reply = await asked(model, streaming=streaming)
        assert reply.message.parts == (TextPart("Hi"), OpaquePart("openai", beside, mediated=False))
    await model.reply(ModelRequest("", Messages([user("Hi"), reply.message])))
    assert server.asked[-1]["messages"][1] == {"role": "assistant", "content": "Hi"}


async def test_text_in_a_list_may_have_the_name_that_responses_gives_it() -> None:
    content = [{"type": "output_text", "text": "Hi"}]
    reply = await OpenAIChat("m", client=Server(answer(content=content)).client).reply(asking())
    assert reply.message.parts == (TextPart("Hi"),)


async def test_a_vendor_that_takes_one_text_only_gets_all_in_one() -> None:
    message = Message("user", (TextPart("One."), TextPart("Two.")))
    assert await wire(message, dialect=DIALECTS["deepseek"]) == [{"role": "user", "content": "One.\n\nTwo."}]
    (elsewhere,) = await wire(message)
    assert [item["text"] for item in elsewhere["content"]] == ["One.", "Two."]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_a_server_that_nobody_knows_gets_its_thinking_back_where_it_had_put_it(
    field: str, streaming: bool
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    whole = answer("tool_calls", tool_calls=[call], **{field: "Hm"})
    pieces = [chunk(**{field: "H"}), chunk(**{field: "m"}), chunk(tool_calls=[{"index": 0, **call}]), chunk("stop")]
    server = Server(events(*pieces) if streaming else whole, answer(content="ok"))
    model = OpenAIChat("m", client=server.client, dialect=COMPATIBLE)
    reply = await asked(model, streaming=streaming)
    assert reply.message.parts[0] == ThinkingPart("Hm", vendor="openai-compatible")
    await model.reply(ModelRequest("", Messages([user("Hi"), reply.message])))
    assert server.asked[1]["messages"][1] == {"role": "assistant", field: "Hm", "tool_calls": [call]}


async def test_mistrals_models_hear_no_user_right_after_a_tool() -> None:
    bridge = {"role": "assistant", "content": "I have read the results."}
    called = [CALLED, RESULT, user("And now?")]
    for model, dialect in (("x", DIALECTS["mistral"]), ("mistralai/Mistral-Small-4", COMPATIBLE)):
        server = Server(*[answer(content="ok")] * 3)
        asked = OpenAIChat(model, client=server.client, dialect=dialect)
        for messages in (called[:2], called, [*called[:2], user("Or now?")]):
            await asked.reply(ModelRequest("", Messages(messages)))
        first, second, third = [body["messages"] for body in server.asked]
        assert first[-1]["role"] == "tool"
        assert second[2:] == [bridge, {"role": "user", "content": "And now?"}]
        assert third[2:] == [bridge, {"role": "user", "content": "Or now?"}]
    seen = Message("tool", (ToolResultPart("s/1/0", "add", (ImagePart(url="http://x/i.png"),)),))
    roles = [item["role"] for item in await wire(CALLED, seen, dialect=DIALECTS["mistral"])]
    assert roles == ["assistant", "tool", "assistant", "user"]
    assert [item["role"] for item in await wire(*called)] == ["assistant", "tool", "user"]


async def test_mistrals_models_have_not_said_nothing() -> None:
    silent = Message("assistant", (ThinkingPart("Hm", "sealed", vendor="anthropic"),))
    told = await wire(user("Hi"), silent, user("Well?"), dialect=DIALECTS["mistral"])
    assert [item["role"] for item in told] == ["user", "user"]
    assert (await wire(user("Hi"), silent))[1] == {"role": "assistant", "content": ""}


async def test_a_vendor_that_takes_no_schema_is_asked_for_it_in_words() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = await sent(ModelRequest("Be kind.", Messages([user("Hi")]), output=schema), DIALECTS["deepseek"])
    assert body["response_format"] == {"type": "json_object"}
    text = body["messages"][0]["content"]
    assert text.startswith("Be kind.\n\n")
    assert '"integer"' in text


async def test_a_vendor_that_wants_the_thought_behind_each_call_gets_one() -> None:
    for host, thought in (("api.moonshot.ai", {"reasoning_content": " "}), ("api.example.com", {})):
        dialect = chat_dialect(f"https://{host}/v1", "kimi-k3")
        called, said = await wire(CALLED, Message("assistant", (TextPart("So."),)), dialect=dialect)
        assert called == {"role": "assistant", "tool_calls": called["tool_calls"], **thought}
        assert said == {"role": "assistant", "content": "So."}
