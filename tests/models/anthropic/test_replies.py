"""What is made of Anthropic's answers, whole and streamed."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx2
import pytest

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed, ModelTimeout
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
    Usage,
    user,
)
from windlass.models.anthropic import AnthropicMessages

from .serving import MODEL, Pieces, Server, answer, asked, asking, block, call, events, heard, streamed, text

VENDOR = "anthropic"
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x y"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "http://x", "encrypted_content": "e", "page_age": None}],
}  # fmt: skip
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look", "server_name": "s", "input": {}}
NEW = {"type": "hologram", "depth": 3, "of": {"x": [1, None]}}
USED = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": "ö"}}
DIRECT = {**USED, "id": "toolu_2"}

# A block, the parts that it becomes, and the block that goes back (None: the same).
BLOCKS: list[tuple[dict[str, Any], list[Part], dict[str, Any] | None]] = [
    ({"type": "text", "text": "Hi", "citations": None}, [TextPart("Hi")], {"type": "text", "text": "Hi"}),
    (
        {"type": "text", "text": "Hi", "citations": [CITATION]},
        [TextPart("Hi"), OpaquePart(VENDOR, {"fields": {"citations": [CITATION]}})],
        None,
    ),
    ({"type": "thinking", "thinking": "Hm", "signature": "s"}, [ThinkingPart("Hm", "s", vendor=VENDOR)], None),
    ({"type": "redacted_thinking", "data": "d"}, [ThinkingPart("", "d", redacted=True, vendor=VENDOR)], None),
    (USED, [ToolCallPart("add", '{"a":1,"b":"ö"}', vendor_id="toolu_1")], None),
    ({**DIRECT, "caller": {"type": "direct"}}, [ToolCallPart("add", '{"a":1,"b":"ö"}', vendor_id="toolu_2")], DIRECT),
    (
        {**USED, "id": "toolu_3", "input": {}, "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}},
        [
            ToolCallPart("add", "{}", vendor_id="toolu_3"),
            OpaquePart(VENDOR, {"fields": {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}}),
        ],
        None,
    ),
    (SEARCH, [OpaquePart(VENDOR, SEARCH, mediated=False)], None),
    (FOUND, [OpaquePart(VENDOR, FOUND, mediated=False)], None),
    (MCP, [OpaquePart(VENDOR, MCP, mediated=False)], None),
    (
        {"type": "container_upload", "file_id": "f"},
        [OpaquePart(VENDOR, {"type": "container_upload", "file_id": "f"}, mediated=False)],
        None,
    ),
    (NEW, [OpaquePart(VENDOR, NEW)], None),
]


def ours(message: Message) -> Message:
    """A message as it is recorded: its calls have ids of ours."""
    named = [
        part.replace(id=f"s/1/{at}") if type(part) is ToolCallPart else part for at, part in enumerate(message.parts)
    ]
    return message.replace(parts=tuple(named))


@pytest.mark.parametrize(("said", "parts", "back"), BLOCKS)
async def test_each_kind_of_block_becomes_parts_and_goes_back_unharmed(
    said: dict[str, Any], parts: list[Part], back: dict[str, Any] | None
) -> None:
    server = Server(answer(said), answer("ok"))
    model = server.model(cache=False)
    reply = await model.reply(asking())
    assert list(reply.message.parts) == parts
    await model.reply(ModelRequest("", Messages([user("Hello"), ours(reply.message), user("Go on")])))
    assert server.asked[1]["messages"][1]["content"] == [back or said]


async def test_all_blocks_of_a_reply_go_back_in_their_order_but_for_calls_which_must_be_the_last() -> None:
    server = Server(answer(*[said for said, _, _ in BLOCKS]), answer("ok"))
    model = server.model(cache=False)
    reply = await model.reply(asking())
    await model.reply(ModelRequest("", Messages([user("Hello"), ours(reply.message)])))
    blocks = [back or said for said, _, back in BLOCKS]
    assert server.asked[1]["messages"][1]["content"] == sorted(blocks, key=lambda block: block["type"] == "tool_use")


async def test_a_reply_says_what_was_spent_and_who_spoke() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 1000,
        "output_tokens_details": {"thinking_tokens": 3},
        "server_tool_use": {"web_search_requests": 1},
        "service_tier": "standard",
    }
    partial = dict.fromkeys(usage) | {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}}
    start = {"type": "message_start", "message": {**answer(), "usage": {**usage, "output_tokens": 1}}}
    body = events(
        start,
        *text(0, "Hi"),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": partial},
        {"type": "message_stop"},
    )
    model = Server(answer("Hi", usage=usage), body).model()
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert reply.usage == Usage(1110, 5, 100, 1000, 3, details={"web_searches": 1})
        assert (reply.text, reply.model, reply.response_id, reply.raw_finish) == (
            "Hi",
            "claude-x-1",
            "msg_1",
            "end_turn",
        )


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": None}])
async def test_a_server_that_does_not_count_is_heard_all_the_same(usage: Any) -> None:
    assert (await Server(answer("Hi", usage=usage)).model().reply(asking())).usage == Usage()
    assert (await heard(Server(streamed(text(0, "Hi"), usage=usage)).model(), asking()))[1].usage.input == 10


async def test_a_reply_says_what_it_cost_where_the_address_and_the_model_have_a_price() -> None:
    costs: list[float | None] = []
    for base_url, used in (("https://api.anthropic.com", "claude-sonnet-4-5"), ("http://server", "claude-sonnet-4-5")):
        server = Server(answer("Hi", model=used), streamed(text(0, "Hi")).replace(b"claude-x-1", used.encode()))
        model = AnthropicMessages(used, client=server.client.with_options(base_url=base_url))
        costs += [(await model.reply(asking())).usage.cost, (await heard(model, asking()))[1].usage.cost]
    assert costs == [pytest.approx(10 * 3e-6 + 5 * 15e-6)] * 2 + [None] * 2


FINISHES = [
    ("end_turn", "stop"), ("stop_sequence", "stop"), ("tool_use", "tool_calls"), ("max_tokens", "length"),
    ("model_context_window_exceeded", "length"), ("refusal", "refusal"), ("pause_turn", "paused"),
    ("compaction", "paused"), ("new", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "finish"), FINISHES)
async def test_finish_reasons_become_one_set_and_the_raw_one_is_kept(raw: str, finish: str) -> None:
    model = Server(answer("x", stop=raw), streamed(text(0, "x"), stop=raw)).model()
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.finish, reply.raw_finish) == (finish, raw)


async def test_calls_of_a_server_that_says_it_has_ended_are_calls() -> None:
    assert (await Server(answer(USED)).model().reply(asking())).finish == "tool_calls"


REFUSAL = {"type": "refusal", "category": "cyber", "explanation": "I cannot help with that."}


async def test_a_refusal_is_text_with_a_finish_of_its_own() -> None:
    whole = answer(stop="refusal", stop_details=REFUSAL)
    model = Server(whole, streamed(stop="refusal", stop_details=REFUSAL)).model()
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.text, reply.finish, reply.raw_finish) == ("I cannot help with that.", "refusal", "refusal")


async def test_a_refusal_in_the_middle_keeps_what_was_said() -> None:
    body = streamed(text(0, "Well,", " first"), stop="refusal", stop_details={**REFUSAL, "explanation": None})
    said = streamed(text(0, "Well"), stop="refusal", stop_details=REFUSAL)
    model = Server(body, said, streamed(stop="refusal", stop_details=None)).model()
    assert [(await heard(model, asking()))[1].text for _ in range(3)] == ["Well, first", "Well", ""]


async def test_the_container_that_the_vendor_has_used_is_used_again_until_it_expires() -> None:
    alive = {"id": "container_1", "expires_at": "2999-01-01T00:00:00Z"}
    gone = {"id": "container_2", "expires_at": "2020-01-01T00:00:00Z"}
    server = Server(answer("ok", container=alive), *[answer("ok")] * 3, streamed(text(0, "ok"), container=gone))
    model = server.model()
    reply = await model.reply(asking())
    history = [user("Hello"), reply.message, user("Go on")]
    await model.reply(ModelRequest("", Messages(history)))
    await model.reply(asking())
    await model.reply(ModelRequest("", Messages(history), settings={"extra": {"container": "mine"}}))
    assert [asked.get("container") for asked in server.asked] == [None, "container_1", None, "mine"]
    server.answers.insert(0, answer("ok"))
    skilled = {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}
    await model.reply(ModelRequest("", Messages(history), settings={"extra": {"container": skilled}}))
    assert server.asked[-1]["container"] == {"id": "container_1", **skilled}
    _, late = await heard(model, asking())
    server.answers.append(answer("ok"))
    await model.reply(ModelRequest("", Messages([*history, late.message, user("Go on")])))
    assert "container" not in server.asked[-1]


def everything() -> bytes:
    """A stream with every kind of block and of piece, in two calls at once."""
    thinking = [{"type": "thinking_delta", "thinking": piece} for piece in ("H", "m")]
    signature = [{"type": "signature_delta", "signature": piece} for piece in ("si", "g")]
    query = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"query": ', '"x y"}')]
    new = [{"type": "hologram_delta", "of": [2], "depth": 4, "name": "b"}]
    cited = [{"type": "text_delta", "text": "Sö"}, {"type": "citations_delta", "citation": CITATION}]
    return streamed(
        block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thinking, *signature),
        block(1, {"type": "redacted_thinking", "data": "d"}),
        block(2, {**SEARCH, "input": {}}, *query),
        block(3, FOUND),
        block(4, {"type": "text", "text": ""}, *cited, *cited),
        block(5, {"type": "hologram", "of": [1], "depth": 3, "name": "a"}, *new),
        call(6, "toolu_1", "add", '{"a"', ": 1}", caller={"type": "direct"}),
        call(7, "toolu_2", "now"),
        block(8, {**USED, "id": "toolu_3"}),
        [{"type": "a_new_event", "index": 8}, {"type": "content_block_delta", "index": 99, "delta": {"type": "x"}}],
        text(9),
        stop="tool_use",
    )


async def test_a_stream_of_everything_becomes_deltas_and_a_whole_with_the_same_places() -> None:
    server = Server(everything())
    deltas, reply = await heard(server.model(), asking())
    assert server.asked[0]["stream"] is True
    assert deltas == [
        ThinkingDelta("H", 0),
        ThinkingDelta("m", 0),
        TextDelta("Sö", 4),
        TextDelta("Sö", 4),
        ArgumentsDelta('{"a"', 7, name="add"),
        ArgumentsDelta(": 1}", 7, name="add"),
        ArgumentsDelta("{}", 8, name="now"),
        ArgumentsDelta('{"a":1,"b":"ö"}', 9, name="add"),
    ]
    assert reply.message.parts == (
        ThinkingPart("Hm", "sig", vendor=VENDOR),
        ThinkingPart("", "d", redacted=True, vendor=VENDOR),
        OpaquePart(VENDOR, SEARCH, mediated=False),
        OpaquePart(VENDOR, FOUND, mediated=False),
        TextPart("SöSö"),
        OpaquePart(VENDOR, {"fields": {"citations": [CITATION, CITATION]}}),
        OpaquePart(VENDOR, {"type": "hologram", "of": [1, 2], "depth": 4, "name": "ab"}),
        ToolCallPart("add", '{"a": 1}', vendor_id="toolu_1"),
        ToolCallPart("now", "{}", vendor_id="toolu_2"),
        ToolCallPart("add", '{"a":1,"b":"ö"}', vendor_id="toolu_3"),
        TextPart(""),
    )
    assert (reply.finish, reply.usage, reply.model, reply.response_id) == (
        "tool_calls",
        Usage(10, 5),
        "claude-x-1",
        "msg_1",
    )


RAN = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "code_execution_result", "stdout": "", "return_code": 0, "content": [], "abort_reason": None},
}  # fmt: skip


async def test_a_message_may_be_whole_from_the_start() -> None:
    """As the vendor answers when code of its own waits for the results of calls."""
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_2"}
    blocks = [RAN, {"type": "text", "text": "So"}, {**USED, "caller": caller}]
    start = {"type": "message_start", "message": answer(*blocks, stop="tool_use", container={"id": "c"})}
    more = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}]
    server = Server(
        events(start, {"type": "message_stop"}),
        events(start, *text(0, "And"), *more, {"type": "message_stop"}),
        answer("ok"),
    )
    model = server.model(cache=False)
    deltas, reply = await heard(model, asking())
    assert deltas == [TextDelta("So", 1), ArgumentsDelta('{"a":1,"b":"ö"}', 2, name="add")]
    assert reply.message.parts == (
        OpaquePart(VENDOR, RAN, mediated=False),
        TextPart("So"),
        ToolCallPart("add", '{"a":1,"b":"ö"}', vendor_id="toolu_1"),
        OpaquePart(VENDOR, {"fields": {"caller": caller}}),
        OpaquePart(VENDOR, {"container": {"id": "c"}}),
    )
    assert (reply.finish, reply.raw_finish, reply.usage) == ("tool_calls", "tool_use", Usage(10, 5))
    deltas, longer = await heard(model, asking())
    assert (deltas[2:], longer.text) == ([TextDelta("And", 4)], "SoAnd")
    assert (longer.raw_finish, longer.usage.output) == ("end_turn", 9)
    await model.reply(ModelRequest("", Messages([user("Hi"), ours(reply.message)])))
    assert server.asked[2]["messages"][1]["content"] == blocks


async def test_a_beginning_that_is_said_twice_counts_once_and_two_streams_in_one_are_a_bad_reply() -> None:
    start = {"type": "message_start", "message": {**answer(), "usage": {"input_tokens": 10}}}
    again = {"type": "message_start", "message": {**answer(), "usage": {"input_tokens": 99}}}
    ending = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    _, reply = await heard(Server(events(start, again, *text(0, "Hi"), *ending)).model(), asking())
    assert (reply.text, reply.usage.input) == ("Hi", 10)
    other = {"type": "message_start", "message": {**answer(), "id": "msg_2"}}
    with pytest.raises(BadReply, match="inside another") as caught:
        await heard(Server(events(start, *text(0, "Hi"), other, *text(0, "Ho"), *ending)).model(), asking())
    assert caught.value.retryable


HANDED = {
    "type": "fallback",
    "from": {"model": "claude-a"},
    "to": {"model": "claude-b"},
    "trigger": {"type": "refusal"},
}
THOUGHTS = [{"type": "thinking", "thinking": thought, "signature": f"sig {thought}"} for thought in "ab"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_where_another_model_has_taken_over_it_is_the_one_that_answered(streaming: bool) -> None:
    blocks = [THOUGHTS[0], HANDED, THOUGHTS[1], USED]
    body = streamed(*[block(at, said) for at, said in enumerate(blocks)], stop="tool_use")
    whole = answer(*blocks, stop="tool_use", model="claude-b")
    server = Server(body if streaming else whole, answer("ok"))
    model = server.model(cache=False)
    reply = await asked(model, streaming=streaming)
    assert (reply.model, reply.finish) == ("claude-b", "tool_calls")
    await model.reply(ModelRequest("", Messages([user("Hi"), ours(reply.message)])))
    assert server.asked[1]["messages"][1]["content"] == blocks


async def test_a_call_of_a_model_that_then_declined_is_none() -> None:
    call = {**USED, "id": "toolu_0", "name": "declined", "caller": {"type": "x"}}
    server = Server(answer("So", call, HANDED, "Well", USED, stop="tool_use"), answer("No", call, HANDED), answer("ok"))
    model = server.model(cache=False)
    reply = await model.reply(asking())
    assert [call.name for call in reply.tool_calls] == ["add"]
    assert (await model.reply(asking())).finish == "stop"
    await model.reply(ModelRequest("", Messages([user("Hi"), ours(reply.message)])))
    said = [{"type": "text", "text": text} for text in ("So", "Well")]
    assert server.asked[2]["messages"][1]["content"] == [said[0], HANDED, said[1], USED]


async def test_a_summary_in_pieces_goes_back_whole() -> None:
    pieces = [
        {"type": "compaction_delta", "content": piece, "encrypted_content": None} for piece in ("So ", "far", None)
    ]
    signed = {"type": "compaction_delta", "encrypted_content": "e"}
    body = streamed(block(0, {"type": "compaction", "content": None}, *pieces, signed), stop="compaction")
    server = Server(body, answer("ok"))
    model = server.model(cache=False)
    _, reply = await heard(model, asking())
    assert reply.finish == "paused"
    await model.reply(ModelRequest("", Messages([user("Hi"), reply.message])))
    summary = {"type": "compaction", "content": "So far", "encrypted_content": "e"}
    assert server.asked[1]["messages"][1]["content"] == [summary]


async def test_a_call_says_what_the_model_wrote_even_if_it_is_no_json() -> None:
    server = Server(streamed(call(0, "toolu_1", "add", '{"a": ', "oops"), stop="tool_use"), answer("ok"))
    model = server.model(cache=False)
    _, reply = await heard(model, asking())
    assert reply.tool_calls == (ToolCallPart("add", '{"a": oops', vendor_id="toolu_1"),)
    result = Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("no JSON"),), "error"),))
    await model.reply(ModelRequest("", Messages([user("Hi"), ours(reply.message), result])))
    assert [message["content"][0] for message in server.asked[1]["messages"][1:]] == [
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"INVALID_JSON": '{"a": oops'}},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "no JSON"}],
            "is_error": True,
        },
    ]


async def test_a_long_answer_is_streamed_whoever_asks() -> None:
    server = Server(streamed(text(0, "Hi")))
    reply = await server.model(max_tokens=32_000).reply(asking())
    assert (reply.text, server.asked[0]["stream"]) == ("Hi", True)


SMALL = (
    {"type": "message_start", "message": {"id": "m"}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hé"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "message_stop"},
)


@pytest.mark.parametrize("error", [None, httpx2.RemoteProtocolError("peer closed")])
async def test_a_stream_that_breaks_off_after_any_byte_can_be_tried_again(error: Exception | None) -> None:
    whole = events(*SMALL)
    said = whole.rindex(b"}") + 1
    for length in range(len(whole) + 1):
        model = Server(Pieces([whole[:length]], error)).model()
        if length < said:
            with pytest.raises(ConnectionFailed) as caught:
                await heard(model, asking())
            assert caught.value.retryable
        elif length == len(whole):
            assert (await heard(model, asking()))[1].text == "Hé"


async def test_a_whole_answer_that_breaks_off_can_be_tried_again() -> None:
    body = json.dumps(answer("Hi")).encode()
    headers = {"content-type": "application/json", "request-id": "req_1"}
    for end in range(0, len(body), 7):
        for error in (None, httpx2.RemoteProtocolError("peer closed")):
            broken = httpx2.Response(200, headers=headers, stream=Pieces([body[:end]], error))
            with pytest.raises(ConnectionFailed if error else BadReply) as caught:
                await Server(broken).model().reply(asking())
            assert caught.value.retryable


class Trickle(Pieces):
    """Sends its pieces, and then a byte now and again that says nothing, for ever."""

    async def __aiter__(self) -> Any:
        for piece in self.pieces:
            yield piece
        while True:
            await asyncio.sleep(0.001)
            yield b" "


@pytest.mark.parametrize("told", [b"", b"event: ", events({"type": "message_start", "message": answer()})])
async def test_bytes_that_trickle_in_are_no_answer(told: bytes) -> None:
    body = Trickle([told])
    server = Server(answer("Hi"), body)
    model = server.model()
    await model.reply(asking())  # the first request of a client waits for a thread: there might not be time for a body
    hasty = asking(settings={"timeout": 0.05})
    with pytest.raises(ModelTimeout) as caught:
        await heard(model, hasty)
    assert caught.value.retryable
    assert body.closed
    whole = Trickle([b'{"id": '])
    response = httpx2.Response(200, headers={"content-type": "application/json"}, stream=whole)
    server.answers.append(response)
    with pytest.raises(ModelTimeout):
        await model.reply(hasty)
    assert whole.closed


async def test_compressed_answers_are_read() -> None:
    for packed, streaming in ((streamed(text(0, "Hi")), True), (json.dumps(answer("Hi")).encode(), False)):
        body = gzip.compress(packed)
        kind = "text/event-stream" if streaming else "application/json"
        pieces = Pieces([body[at : at + 3] for at in range(0, len(body), 3)])
        headers = {"content-type": kind, "content-encoding": "gzip"}
        model = Server(httpx2.Response(200, headers=headers, stream=pieces)).model()
        reply = await asked(model, streaming=streaming)
        assert reply.text == "Hi"


BAD = [
    {"id": "x"},
    {"type": "message", "content": [3]},
    {"type": "message", "content": "x"},
    [1],
    "Hi",
    httpx2.Response(200, text="<html>"),
]


@pytest.mark.parametrize("body", BAD)
async def test_an_answer_that_is_none_is_a_bad_reply(body: Any) -> None:
    answered = body if isinstance(body, httpx2.Response) else httpx2.Response(200, json=body)
    with pytest.raises(BadReply):
        await Server(answered).model().reply(asking())


ODD: list[dict[str, Any]] = [
    {"type": "message_start", "message": 3},
    {"type": "content_block_start", "index": 0},
    {"type": "content_block_start", "index": 0, "content_block": 3},
]


@pytest.mark.parametrize("event", ODD)
async def test_an_event_that_makes_no_sense_is_a_bad_reply(event: dict[str, Any]) -> None:
    with pytest.raises(BadReply, match="does not follow the protocol"):
        await heard(Server(events(event)).model(), asking())


async def test_an_answer_in_one_piece_where_a_stream_was_asked_for_is_a_bad_reply() -> None:
    with pytest.raises(BadReply, match="answered with plain JSON"):
        await heard(Server(answer("Hi")).model(), asking())


class Vendor:
    """A real server on the loopback: it begins an answer, and then listens until the other side hangs up."""

    def __init__(self, *told: Any) -> None:
        body = events(*told)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.bytes = head + f"{len(body):x}\r\n".encode() + body + b"\r\n"
        self.told = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def __aenter__(self) -> AnthropicMessages:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.model = AnthropicMessages(MODEL, base_url=f"http://127.0.0.1:{port}", api_key="k")
        return self.model

    async def __aexit__(self, *_: object) -> None:
        await self.model.aclose()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.bytes)
        await writer.drain()
        self.told.set()
        while await reader.read(1000):
            pass
        self.hung_up.set()
        writer.close()


BEGUN = ({"type": "message_start", "message": answer()}, *text(0, "Hi")[:-1])


async def test_the_first_delta_does_not_wait_for_the_rest_and_closing_hangs_up() -> None:
    vendor = Vendor(*BEGUN)
    async with vendor as model:
        stream = model.stream(asking())
        assert await anext(stream) == TextDelta("Hi", 0)
        await stream.aclose()
        await vendor.hung_up.wait()


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("whole", [True, False])
async def test_cancelling_hangs_up(begun: bool, whole: bool) -> None:
    vendor = Vendor(*(BEGUN if begun else ()))
    async with vendor as model:
        asked: Any = model.reply(asking(settings={"max_tokens": 99_000})) if whole else heard(model, asking())
        task = asyncio.create_task(asked)
        await vendor.told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await vendor.hung_up.wait()


async def test_cancelling_one_who_waits_for_a_whole_answer_hangs_up() -> None:
    vendor = Vendor()
    vendor.bytes = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    async with vendor as model:
        task = asyncio.create_task(model.reply(asking()))
        await vendor.told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await vendor.hung_up.wait()


async def test_replies_at_the_same_time_do_not_mix() -> None:
    server = Server(*[streamed(text(0, *f"answer {number}")) for number in range(8)])
    model = server.model()
    replies = await asyncio.gather(*[heard(model, asking(f"question {number}")) for number in range(8)])
    assert sorted(reply.text for _, reply in replies) == [f"answer {number}" for number in range(8)]
    assert all(type(reply) is ModelReply for _, reply in replies)
