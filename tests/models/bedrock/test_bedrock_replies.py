"""What Bedrock says, whole and streamed, as a reply of ours."""

from __future__ import annotations

import gzip
import json
import struct
from base64 import b64encode
from typing import Any
from zlib import crc32

import httpx2
import pytest

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed
from windlass.messages import ImagePart, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage

from .serving import Pieces, Server, answer, asked, asking, block, call, frame, frames, heard, streamed, text

HIDDEN = b64encode(b"hidden thoughts").decode()
PNG = b64encode(b"a picture").decode()
CITED = {"title": "A book", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}
SEARCH = {"toolUseId": "tooluse_1", "name": "nova_grounding", "type": "server_tool_use"}
FOUND = {"toolUseId": "tooluse_1", "type": "nova_grounding_result", "status": "success"}

NUMBER = {"json": {"n": 1}}


def halves(data: bytes) -> list[str]:
    """Two pieces of bytes, in base64."""
    return [b64encode(data[:5]).decode(), b64encode(data[5:]).decode()]


def thought(text: str, signature: str) -> Any:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


# What a block is when it is said at once, the events in which it is streamed, and the parts it becomes.
BLOCKS: dict[str, tuple[dict[str, Any], list[tuple[str, Any]], tuple[Part, ...]]] = {
    "text": ({"text": "Hello."}, text(0, "Hel", "lo", "."), (TextPart("Hello."),)),
    "call": (
        {"toolUse": {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1, "b": "é"}}},
        call(0, "tooluse_1", "add", '{"a":', '1,"b":"é"}'),
        (ToolCallPart("add", '{"a":1,"b":"é"}', vendor_id="tooluse_1"),),
    ),
    "call without arguments": (
        {"toolUse": {"toolUseId": "tooluse_1", "name": "now", "input": {}}},
        call(0, "tooluse_1", "now"),
        (ToolCallPart("now", "{}", vendor_id="tooluse_1"),),
    ),
    "thinking": (
        thought("Let me see.", "c2lnbmVk"),
        block(
            0,
            None,
            {"reasoningContent": {"text": "Let me "}},
            {"reasoningContent": {"text": "see."}},
            {"reasoningContent": {"signature": "c2ln"}},
            {"reasoningContent": {"signature": "bmVk"}},
        ),
        (ThinkingPart("Let me see.", "c2lnbmVk", vendor="bedrock"),),
    ),
    "redacted thinking": (
        {"reasoningContent": {"redactedContent": HIDDEN}},
        block(0, None, *[{"reasoningContent": {"redactedContent": half}} for half in halves(b"hidden thoughts")]),
        (ThinkingPart("", HIDDEN, redacted=True, vendor="bedrock"),),
    ),
    "citations": (
        {"citationsContent": {"content": [{"text": "It is so."}], "citations": [CITED]}},
        block(0, None, {"text": "It is "}, {"text": "so."}, {"citation": CITED}),
        (TextPart("It is so."), OpaquePart("bedrock", {"citations": [CITED]})),
    ),
    "a picture": (
        {"image": {"format": "jpeg", "source": {"bytes": PNG}}},
        block(0, {"image": {"format": "jpeg"}}, *[{"image": {"source": {"bytes": h}}} for h in halves(b"a picture")]),
        (ImagePart(b"a picture", media_type="image/jpeg"),),
    ),
    "a tool of the vendor's": (
        {"toolUse": {**SEARCH, "input": {"q": "news"}}},
        call(0, "tooluse_1", "nova_grounding", '{"q":', '"news"}', type="server_tool_use"),
        (OpaquePart("bedrock", {"toolUse": {**SEARCH, "input": {"q": "news"}}}, mediated=False),),
    ),
    "what it found": (
        {"toolResult": {**FOUND, "content": [{"text": "much"}, NUMBER]}},
        block(0, {"toolResult": FOUND}, {"toolResult": [{"text": "mu"}]}, {"toolResult": [{"text": "ch"}, NUMBER]}),
        (OpaquePart("bedrock", {"toolResult": {**FOUND, "content": [{"text": "much"}, NUMBER]}}, mediated=False),),
    ),
    "what nobody knows": (
        {"telepathy": {"said": "abc", "to": [1, 2], "at": 2}},
        block(0, {"telepathy": {"said": "ab", "to": [1], "at": 1}}, {"telepathy": {"said": "c", "to": [2], "at": 2}}),
        (OpaquePart("bedrock", {"telepathy": {"said": "abc", "to": [1, 2], "at": 2}}),),
    ),
}  # fmt: skip
of_all = pytest.mark.parametrize("name", BLOCKS)


@of_all
async def test_a_block_is_the_same_at_once_and_in_pieces_and_goes_back_as_it_came(name: str) -> None:
    whole, events, parts = BLOCKS[name]
    server = Server(answer(whole), streamed(events), answer("ok"))
    model = server.model(cache=False)
    reply = await model.reply(asking())
    assert reply.message.parts == parts
    _, streamed_reply = await heard(model, asking())
    assert streamed_reply.message.parts == parts
    assert reply.usage == streamed_reply.usage
    request = asking()
    await model.reply(request.replace(messages=[*request.messages, reply.message]))
    said = server.asked[-1]["messages"]
    shown = [{"text": "Hello"}, {"text": "The assistant showed:"}, whole]
    assert said[-1]["content"] == (shown if name == "a picture" else [whole])


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_call_may_say_that_it_is_one(streaming: bool) -> None:
    """As Bedrock does for some models, though its description knows that type of the vendor's own calls only."""
    used = {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1}}
    events = call(0, "tooluse_1", "add", '{"a":', "1}", type="tool_use")
    whole = answer({"toolUse": {**used, "type": "tool_use"}}, stop="tool_use")
    server = Server(streamed(events, stop="tool_use") if streaming else whole, answer("ok"))
    model = server.model(cache=False)
    reply = await asked(model, streaming=streaming)
    assert reply.message.parts == (ToolCallPart("add", '{"a":1}', vendor_id="tooluse_1"),)
    await model.reply(asking().replace(messages=[*asking().messages, reply.message]))
    assert server.asked[1]["messages"][1]["content"] == [{"toolUse": used}]


async def test_a_remark_of_nothing_but_null_is_none() -> None:
    nothing = {"delta": {"stop_sequence": None}, "more": []}
    reply = await Server(answer("Hi", additionalModelResponseFields=nothing, trace=None)).model().reply(asking())
    assert reply.message.parts == (TextPart("Hi"),)


async def test_deltas_come_as_they_are_said_and_know_their_part() -> None:
    body = streamed(
        BLOCKS["thinking"][1],
        [(kind, {**data, "contentBlockIndex": 1}) for kind, data in text(1, "Let ", "me see.")],
        call(2, "tooluse_1", "add", '{"a": 1}'),
        call(3, "tooluse_2", "now"),
        stop="tool_use",
    )
    deltas, reply = await heard(Server(body).model(), asking())
    assert [(type(delta), delta.part, delta.text) for delta in deltas] == [
        (ThinkingDelta, 0, "Let me "),
        (ThinkingDelta, 0, "see."),
        (TextDelta, 1, "Let "),
        (TextDelta, 1, "me see."),
        (ArgumentsDelta, 2, '{"a": 1}'),
        (ArgumentsDelta, 3, "{}"),
    ]
    assert [delta.name for delta in deltas[-2:]] == ["add", "now"]
    assert reply.finish == "tool_calls"


async def test_pieces_of_another_kind_at_one_index_are_another_part() -> None:
    pieces = block(0, None, {"reasoningContent": {"text": "Hm."}}, {"text": "Hi."})
    _, reply = await heard(Server(streamed(pieces)).model(), asking())
    assert [type(part) for part in reply.message.parts] == [ThinkingPart, TextPart]


async def test_arguments_that_are_no_json_are_kept_as_they_were_written() -> None:
    server = Server(streamed(call(0, "tooluse_1", "add", '{"a": '), stop="tool_use"), answer("ok"))
    model = server.model()
    _, reply = await heard(model, asking())
    assert reply.tool_calls[0].json == '{"a": '
    await model.reply(asking().replace(messages=[*asking().messages, reply.message]))
    assert server.asked[1]["messages"][1]["content"][0]["toolUse"]["input"] == {"INVALID_JSON": '{"a": '}


async def test_arguments_that_come_as_a_text_are_what_the_model_wrote() -> None:
    for written in ('{"a": 1}', '{"a": '):
        said = {"toolUse": {"toolUseId": "t", "name": "add", "input": written}}
        reply = await asked(Server(answer(said, stop="tool_use")).model(), streaming=False)
        assert reply.tool_calls[0].json == written


async def test_what_is_null_is_not_said() -> None:
    called = {"toolUseId": "t", "name": "add", "input": {}}
    whole = answer({"text": None, "toolUse": called}, {"text": "Hi.", "toolUse": None}, {"text": None}, stop="tool_use")
    opened = {"text": None, "toolUse": {"toolUseId": "t", "name": "add"}}
    stream = streamed(
        block(0, opened, {"text": None, "toolUse": {"input": "{}"}}),
        [("contentBlockStart", {"contentBlockIndex": 1, "start": None}), *text(1, "Hi.")],
        stop="tool_use",
    )
    server = Server(whole, stream)
    for streaming in (False, True):
        reply = await asked(server.model(), streaming=streaming)
        assert reply.message.parts == (ToolCallPart("add", "{}", vendor_id="t"), TextPart("Hi."))


@pytest.mark.parametrize("streaming", [False, True])
async def test_half_a_character_is_heard(streaming: bool) -> None:
    said = answer("Hi \ud83d")
    whole = httpx2.Response(200, content=json.dumps(said), headers={"content-type": "application/json"})
    reply = await asked(Server(streamed(text(0, "Hi ", "\ud83d")) if streaming else whole).model(), streaming=streaming)
    assert reply.text == "Hi \ud83d"


FINISHES = [
    ("end_turn", "stop"),
    ("stop_sequence", "stop"),
    ("max_tokens", "length"),
    ("model_context_window_exceeded", "length"),
    ("guardrail_intervened", "content_filter"),
    ("content_filtered", "content_filter"),
    ("something_new", "other"),
]


@pytest.mark.parametrize(("raw", "finish"), FINISHES)
@pytest.mark.parametrize("streaming", [False, True])
async def test_finishes_are_ours_and_the_raw_one_is_kept(raw: str, finish: str, streaming: bool) -> None:
    server = Server(streamed(text(0, "Hi"), stop=raw) if streaming else answer("Hi", stop=raw))
    reply = await asked(server.model(), streaming=streaming)
    assert (reply.finish, reply.raw_finish, reply.text) == (finish, raw, "Hi")


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_that_bedrock_cannot_read_is_none(streaming: bool) -> None:
    raw = "malformed_tool_use"
    server = Server(streamed(text(0, "Hi"), stop=raw) if streaming else answer("Hi", stop=raw))
    with pytest.raises(BadReply, match=raw) as caught:
        await asked(server.model(), streaming=streaming)
    assert caught.value.retryable


@pytest.mark.parametrize("streaming", [False, True])
async def test_usage_counts_what_the_cache_read_and_wrote_as_input(streaming: bool) -> None:
    usage = {
        "inputTokens": 10, "outputTokens": 5, "totalTokens": 1015, "cacheReadInputTokens": 800,
        "cacheWriteInputTokens": 200, "cacheDetails": [{"ttl": "5m", "inputTokens": 200}],
    }  # fmt: skip
    server = Server(streamed(text(0, "Hi"), usage=usage) if streaming else answer("Hi", usage=usage))
    reply = await asked(server.model(), streaming=streaming)
    assert reply.usage.replace(cost=None) == Usage(input=1010, output=5, cached=800, cache_written=200)


TRACE = {
    "guardrail": {"inputAssessment": {"g": {"topicPolicy": {"topics": []}}}},
    "promptRouter": {"invokedModelId": "arn:aws:bedrock:us-east-1:1:inference-profile/us.amazon.nova-lite-v1:0"},
}


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_is_said_about_an_answer_is_kept_and_not_sent_back(streaming: bool) -> None:
    fields = {"stop_sequence": "END"}
    whole = answer("Hi", trace=TRACE, additionalModelResponseFields=fields)
    events = frames(
        *text(0, "Hi"),
        ("messageStop", {"stopReason": "end_turn", "additionalModelResponseFields": fields}),
        ("metadata", {"usage": whole["usage"], "trace": TRACE, "serviceTier": {"type": "flex"}}),
    )
    server = Server(events if streaming else whole, answer("ok"))
    model = server.model()
    reply = await asked(model, streaming=streaming)
    assert reply.model == "us.amazon.nova-lite-v1:0"
    assert [part.data for part in reply.message.parts[1:]] == [
        {"trace": TRACE},
        {"additionalModelResponseFields": fields},
    ]
    await model.reply(asking().replace(messages=[*asking().messages, reply.message]))
    assert server.asked[1]["messages"][1]["content"][0] == {"text": "Hi"}
    assert "trace" not in str(server.asked[1])


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_id_of_the_request_is_that_of_the_response(streaming: bool) -> None:
    headers = {"x-amzn-requestid": "r-1"}
    body = Pieces([streamed(text(0, "Hi"))])
    response = (
        httpx2.Response(200, headers=headers, stream=body)
        if streaming
        else httpx2.Response(200, headers=headers, json=answer("Hi"))
    )
    assert (await asked(Server(response).model(), streaming=streaming)).response_id == "r-1"


@pytest.mark.parametrize("streaming", [False, True])
async def test_cost_is_that_of_the_model_in_its_price_list_and_unknown_elsewhere(streaming: bool) -> None:
    pytest.importorskip("genai_prices")
    usage = {"inputTokens": 1_000_000, "outputTokens": 0, "totalTokens": 1_000_000}
    for name, cost in (("us.amazon.nova-micro-v1:0", 0.035), ("meta.no-such-model", None)):
        server = Server(streamed(text(0, "Hi"), usage=usage) if streaming else answer("Hi", usage=usage))
        assert (await asked(server.model(name), streaming=streaming)).usage.cost == cost


def test_the_window_of_a_model_is_known_by_its_price_list() -> None:
    pytest.importorskip("genai_prices")
    assert Server().model("us.amazon.nova-micro-v1:0").context_window == 128_000


async def test_an_answer_without_usage_or_content_is_one() -> None:
    empty = {"output": {"message": {"role": "assistant", "content": None}}, "stopReason": "end_turn"}
    server = Server(empty, frames(("messageStop", {"stopReason": "end_turn"})))
    for streaming in (False, True):
        reply = await asked(server.model(), streaming=streaming)
        assert (reply.message.parts, reply.usage) == ((), Usage())


def headers(head: bytes) -> bytes:
    """A message whose checksums are right, with these headers."""
    prelude = struct.pack("!II", len(head) + 16, len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head
    return message + struct.pack("!I", crc32(message))


WRONG = [
    (answer({"text": 7}), "'text' must be a string, not 7"),
    (answer({"toolUse": {"toolUseId": 7, "name": "add", "input": {}}}), "'toolUseId' must be a string, not 7"),
    (answer({"toolUse": {"toolUseId": "t", "name": ["add"], "input": {}}}), "'name' must be a string"),
    (answer(thought("a", 1)), "'signature' must be a string"),  # type: ignore[arg-type]
    (answer(None), "does not follow the protocol"),
    ({"hello": 1}, "expected a message"),
    (["hello"], "expected a message"),
    (streamed(block(0, None, {"text": 7})), "'text' must be a string, not 7"),
    (streamed(call(0, 7, "add", "{}")), "'toolUseId' must be a string, not 7"),  # type: ignore[arg-type]
    (streamed(call(0, "t", "add", {"a": 1})), "'input' must be a string"),  # type: ignore[arg-type]
    (frames(("contentBlockDelta", {"delta": {"text": "a"}})), "contentBlockIndex"),
    (frames(("contentBlockDelta", b"{")), "not JSON"),
    (frames(("contentBlockDelta", b"[]")), "does not follow the protocol"),
    (frames(("contentBlockDelta", b"[" * 100_000)), "nested too deeply"),
    (frame("messageStop", {}).replace(b":event-type", b":wrong-type"), "the stream is damaged"),
    (headers(b"\x01a\x63"), "unknown headers"),
    (headers(b"\x01a\x04\x00"), "unknown headers"),
]


@pytest.mark.parametrize(("said", "words"), WRONG)
async def test_what_is_not_the_protocol_is_a_bad_reply_that_says_where(said: Any, words: str) -> None:
    with pytest.raises(BadReply, match=words) as caught:
        await asked(Server(said).model(), streaming=isinstance(said, bytes))
    assert caught.value.retryable


SMALL = streamed(text(0, "Hé", "llo"), call(1, "tooluse_1", "add", '{"a":', "1}"), stop="tool_use")
END = SMALL.index(b"messageStop") + 100


@pytest.mark.parametrize("breaking", [False, True])
async def test_a_stream_that_ends_anywhere_is_whole_or_an_error(breaking: bool) -> None:
    for size in range(len(SMALL)):
        error = httpx2.ReadError("reset") if breaking else None
        server = Server(Pieces([SMALL[: size // 2], SMALL[size // 2 : size]], error))
        try:
            _, reply = await heard(server.model(), asking())
        except ConnectionFailed:
            assert size < END
        else:
            assert (reply.text, reply.tool_calls[0].json) == ("Héllo", '{"a":1}')
            assert size > SMALL.index(b"messageStop")


async def test_a_byte_that_was_changed_is_found() -> None:
    for place in range(0, len(SMALL), 7):
        damaged = SMALL[:place] + bytes([SMALL[place] ^ 1]) + SMALL[place + 1 :]
        with pytest.raises((BadReply, ConnectionFailed)) as caught:
            await heard(Server(damaged).model(), asking())
        assert caught.value.retryable


async def test_a_stream_that_is_closed_closes_the_connection() -> None:
    pieces = Pieces([streamed(text(0, "Hel", "lo"))])
    stream = Server(pieces).model().stream(asking())
    assert (await anext(stream)).text == "Hel"  # type: ignore[union-attr]
    await stream.aclose()
    assert pieces.closed


async def test_a_compressed_answer_is_read() -> None:
    packed = gzip.compress(streamed(text(0, "Hi")))
    response = httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=Pieces([packed[:20], packed[20:]]))
    assert (await asked(Server(response).model(), streaming=True)).text == "Hi"
