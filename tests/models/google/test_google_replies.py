"""What Gemini answers, by hand: each kind of part, whole and in pieces, and back again."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ConnectionFailed, ContentFiltered
from windlass.messages import (
    AudioPart,
    ImagePart,
    Message,
    Messages,
    ModelReply,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    user,
)

from .serving import Server, answer, asking, events, heard

PIXEL = b64encode(b"pixel").decode()
CODE: dict[str, Any] = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
RAN: dict[str, Any] = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}, "thoughtSignature": "cg=="}
SEARCH: dict[str, Any] = {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t"}, "thoughtSignature": "dA=="}
FOUND: dict[str, Any] = {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t"}, "thoughtSignature": "dQ=="}
SOUND: dict[str, Any] = {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}
NOVEL: dict[str, Any] = {"hologram": {"depth": [1, {"x": None}]}}


def opaque(part: dict[str, Any], *, mediated: bool = True) -> OpaquePart:
    return OpaquePart("google", part, mediated=mediated)


def signed(signature: str) -> ThinkingPart:
    return ThinkingPart("", signature, vendor="google")


PARTS: list[tuple[list[dict[str, Any]], list[Any]]] = [
    ([{"text": "Hi"}], [TextPart("Hi")]),
    ([{"text": "Hi", "thoughtSignature": "cw=="}], [signed("cw=="), TextPart("Hi")]),
    ([{"text": "Hm", "thought": True}], [ThinkingPart("Hm", vendor="google")]),
    (
        [{"text": "Hm", "thought": True, "thoughtSignature": "cw=="}],
        [ThinkingPart("Hm", "cw==", vendor="google")],
    ),
    (
        [{"text": "Hi"}, {"text": "", "thoughtSignature": "cw=="}],
        [TextPart("Hi"), ThinkingPart("", "cw==", redacted=True, vendor="google")],
    ),
    (
        [{"functionCall": {"name": "f", "args": {"é": [1]}, "id": "a"}, "thoughtSignature": "cw=="}],
        [signed("cw=="), ToolCallPart("f", '{"é": [1]}', vendor_id="a")],
    ),
    (
        [{"functionCall": {"name": "f", "args": {}}}, {"functionCall": {"name": "f"}}],
        [ToolCallPart("f", "{}"), ToolCallPart("f", "{}")],
    ),
    ([{"inlineData": {"mimeType": "image/png", "data": PIXEL}}], [ImagePart(b"pixel")]),
    (
        [{"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://a/b"}, "thoughtSignature": "cw=="}],
        [signed("cw=="), ImagePart(url="gs://a/b", media_type="image/jpeg")],
    ),
    ([SOUND], [AudioPart(b"\0\0\0")]),
    ([CODE, RAN], [opaque(CODE, mediated=False), opaque(RAN, mediated=False)]),
    ([SEARCH, FOUND], [opaque(SEARCH, mediated=False), opaque(FOUND, mediated=False)]),
    ([{"text": "a"}, NOVEL, {"text": "b"}], [TextPart("a"), opaque(NOVEL), TextPart("b")]),
]


@pytest.mark.parametrize(("wire", "parts"), PARTS)
async def test_each_kind_of_part_whole_streamed_and_sent_back(wire: list[dict[str, Any]], parts: list[Any]) -> None:
    chunks = [answer(part, finish=None) for part in wire]
    server = Server(answer(*wire), events(*chunks, answer()), answer({"text": "ok"}))
    model = server.model()
    whole = await model.reply(asking())
    _, streamed = await heard(model, asking())
    assert whole.message == streamed.message == Message("assistant", tuple(parts))
    assert whole.finish == ("tool_calls" if whole.tool_calls else "stop")
    assert (whole.raw_finish, whole.response_id) == ("STOP", "r1")
    await model.reply(ModelRequest("", Messages([user("Hello"), whole.message])))
    back = server.asked[-1]["contents"][1]
    assert back["role"] == "model"
    for sent, said in zip(back["parts"], wire, strict=True):
        if "functionCall" in said:
            assert sent["functionCall"]["id"]
            said = {**said, "functionCall": {"args": {}, "id": sent["functionCall"]["id"], **said["functionCall"]}}
        assert sent == said


async def test_a_stream_says_at_once_what_is_new() -> None:
    body = events(
        answer({"text": "Let me ", "thought": True}, finish=None),
        answer({"text": "see.", "thought": True}, finish=None),
        answer({"text": "I look"}, finish=None),
        answer({"text": " it up."}, {"functionCall": {"name": "f", "args": {"a": 1}}}, finish=None),
        answer({"functionCall": {"name": "g", "args": {}, "id": "x"}}),
    )
    deltas, reply = await heard(Server(body).model(), asking())
    assert deltas == [
        ThinkingDelta("Let me ", 0),
        ThinkingDelta("see.", 0),
        TextDelta("I look", 1),
        TextDelta(" it up.", 1),
        ArgumentsDelta('{"a": 1}', 2, name="f"),
        ArgumentsDelta("{}", 3, name="g"),
    ]
    assert [call.name for call in reply.tool_calls] == ["f", "g"]
    assert reply.finish == "tool_calls"


async def test_a_signed_piece_of_text_stays_by_itself() -> None:
    pieces = [{"text": "a"}, {"text": "b", "thoughtSignature": "cw=="}, {"text": "c"}]
    body = events(*[answer(piece, finish=None) for piece in pieces], answer())
    _, reply = await heard(Server(body).model(), asking())
    assert reply.message.parts == (TextPart("a"), signed("cw=="), TextPart("b"), TextPart("c"))
    assert reply.text == "abc"


USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 5,
    "toolUsePromptTokenCount": 7,
    "totalTokenCount": 132,
    "serviceTier": "standard",
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}],
}


async def test_usage_and_the_model_that_answered() -> None:
    about = {"usageMetadata": USAGE, "modelVersion": "gemini-2.5-flash-002", "createTime": "2026-01-01T00:00:00Z"}
    early = {"usageMetadata": {"promptTokenCount": 90, "thoughtsTokenCount": 5, "totalTokenCount": 95}}
    body = events(answer({"text": "H"}, finish=None) | early, answer({"text": "i"}) | about)
    server = Server(answer({"text": "Hi"}) | about, body, answer({"text": "Hi"}))
    model = server.model()
    expected = Usage(input=107, output=25, cached=60, reasoning=5)
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.usage.replace(cost=None), reply.usage.total) == (expected, USAGE["totalTokenCount"])
        assert (reply.model, reply.text) == ("gemini-2.5-flash-002", "Hi")
    assert (await model.reply(asking())).usage == Usage()


FINISHES = [
    ("STOP", "stop"),
    ("MAX_TOKENS", "length"),
    ("CONTINUATION", "length"),
    ("SAFETY", "content_filter"),
    ("RECITATION", "content_filter"),
    ("BLOCKLIST", "content_filter"),
    ("PROHIBITED_CONTENT", "content_filter"),
    ("SPII", "content_filter"),
    ("IMAGE_SAFETY", "content_filter"),
    ("MODEL_ARMOR", "content_filter"),
    ("LANGUAGE", "other"),
    ("OTHER", "other"),
    ("SOMETHING_NEW", "other"),
]


@pytest.mark.parametrize(("raw", "finish"), FINISHES)
async def test_finishes(raw: str, finish: str) -> None:
    server = Server(answer({"text": "Hi"}, finish=raw), events(answer({"text": "Hi"}, finish=raw)))
    model = server.model()
    for reply in (await model.reply(asking()), (await heard(model, asking()))[1]):
        assert (reply.finish, reply.raw_finish, reply.text) == (finish, raw, "Hi")


async def test_an_answer_that_is_cut_short_before_its_first_word() -> None:
    nothing = {"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}]}
    server = Server(nothing, events(nothing))
    for reply in (await server.model().reply(asking()), (await heard(server.model(), asking()))[1]):
        assert (reply.finish, reply.message.parts) == ("length", ())


async def test_why_an_answer_is_refused_is_kept_and_not_sent_back() -> None:
    why = {"finishMessage": "Not nice.", "safetyRatings": [{"category": "HARM", "blocked": True}]}
    refused = {"candidates": [{"finishReason": "SAFETY", **why}], "responseId": "r"}
    server = Server(refused, answer({"text": "ok"}))
    reply = await server.model().reply(asking())
    assert (reply.finish, reply.message.parts) == ("content_filter", (opaque({"finish": why}),))
    await server.model().reply(ModelRequest("", Messages([user("Hi"), reply.message, user("So?")])))
    assert [content["role"] for content in server.asked[1]["contents"]] == ["user", "user"]


async def test_what_needs_no_reason_has_none() -> None:
    said = answer({"text": "Hi"}, finishMessage="Model generated text.", safetyRatings=[], avgLogprobs=-0.1)
    assert (await Server(said).model().reply(asking())).message == Message("assistant", (TextPart("Hi"),))


async def test_a_refused_prompt_is_an_error() -> None:
    refused = {"promptFeedback": {"blockReason": "MODEL_ARMOR", "blockReasonMessage": "Bad."}, "responseId": "r9"}
    server = Server(refused, events(refused))
    for asked in (server.model().reply(asking()), heard(server.model(), asking())):
        with pytest.raises(ContentFiltered, match=r"refuses the prompt: MODEL_ARMOR: Bad\.") as caught:
            await asked
        assert (caught.value.retryable, caught.value.request_id) == (False, "r9")


@pytest.mark.parametrize("raw", ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"])
async def test_a_call_that_gemini_cannot_read_can_be_tried_again(raw: str) -> None:
    bad = {"candidates": [{"finishReason": raw, "finishMessage": "Malformed: print(f())"}], "responseId": "r9"}
    server = Server(bad, events(answer({"text": "So"}, finish=None), bad))
    for asked in (server.model().reply(asking()), heard(server.model(), asking())):
        with pytest.raises(BadReply, match=r"Malformed: print\(f\(\)\)") as caught:
            await asked
        assert (caught.value.retryable, caught.value.request_id) == (True, "r9")


async def test_where_an_answer_was_found_is_kept_and_marked_as_not_mediated() -> None:
    first = {"groundingMetadata": {"webSearchQueries": ["oslo"], "groundingChunks": [1]}}
    last = {
        "groundingMetadata": {"groundingChunks": [1, 2]},
        "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://x.org"}]},
        "citationMetadata": {"citationSources": [{"uri": "https://x.org"}]},
    }
    body = events(answer({"text": "It "}, finish=None, **first), answer({"text": "rains."}, **last))
    server = Server(body, answer({"text": "ok"}))
    _, reply = await heard(server.model(), asking())
    assert reply.message.parts == (
        TextPart("It rains."),
        opaque({"groundingMetadata": {"webSearchQueries": ["oslo"], "groundingChunks": [1, 2]}}, mediated=False),
        opaque({"urlContextMetadata": last["urlContextMetadata"]}, mediated=False),
        opaque({"citationMetadata": last["citationMetadata"]}),
    )
    await server.model().reply(ModelRequest("", Messages([user("Hi"), reply.message])))
    assert server.asked[1]["contents"][1] == {"parts": [{"text": "It rains."}], "role": "model"}


async def test_a_whole_answer_need_not_say_why_it_ended() -> None:
    reply = await Server(answer({"text": "Hi"}, finish=None)).model().reply(asking())
    assert (reply.text, reply.finish, reply.raw_finish) == ("Hi", "stop", None)
    with pytest.raises(BadReply, match="answer is empty"):
        await Server({"candidates": [], "usageMetadata": None}).model().reply(asking())


async def test_a_stream_that_ends_without_a_finish_has_broken_off() -> None:
    with pytest.raises(ConnectionFailed, match="broke off") as caught:
        await heard(Server(events(answer({"text": "Hi"}, finish=None))).model(), asking())
    assert caught.value.retryable


async def test_null_and_the_unknown_are_borne() -> None:
    odd: dict[str, Any] = {
        "candidates": [{"content": None, "finishReason": None, "safetyRatings": None, "groundingMetadata": None}],
        "usageMetadata": None,
        "promptFeedback": {"safetyRatings": [], "blockReason": "BLOCK_REASON_UNSPECIFIED"},
        "modelVersion": "m",
        "news": {"a": 1},
    }
    body = events(odd, {"usageMetadata": {"promptTokenCount": None}}, answer({}, {"text": None}, {"text": "Hi"}))
    _, reply = await heard(Server(body).model(), asking())
    assert (reply.text, reply.usage, reply.model) == ("Hi", Usage(), "m")


STRANGE: list[Any] = [
    [1],
    "word",
    {"candidates": "none"},
    answer({"functionCall": {"args": {}}}),
    answer({"text": 5}),
    {**answer({"text": "Hi"}), "usageMetadata": {"promptTokenCount": [1]}},
    {**answer({"text": "Hi"}), "usageMetadata": {"promptTokenCount": 1}, "modelVersion": ["m"]},
]


@pytest.mark.parametrize("strange", STRANGE)
async def test_an_answer_that_is_not_the_protocol_is_a_bad_reply(strange: Any) -> None:
    server = Server(strange, events(strange, answer()))
    for asked in (server.model().reply(asking()), heard(server.model(), asking())):
        with pytest.raises(BadReply, match="does not follow the protocol") as caught:
            await asked
        assert caught.value.retryable


def calling(**fields: Any) -> dict[str, Any]:
    return {"functionCall": fields}


async def test_arguments_in_pieces_are_put_where_they_belong() -> None:
    """As Vertex streams them if `streamFunctionCallArguments` is asked for."""
    pieces = [
        {"jsonPath": "$.city", "stringValue": "New ", "willContinue": True},
        {"jsonPath": "$.city", "stringValue": "Delhi"},
        {"jsonPath": "$.city"},
        {"jsonPath": "$.days[0].high", "numberValue": 31},
        {"jsonPath": "$.days[1].high", "numberValue": 32},
        {"jsonPath": "$['in words']", "boolValue": True},
        {"jsonPath": "$.until", "nullValue": "NULL_VALUE"},
    ]
    server = Server(
        events(
            answer(calling(name="weather", id="c1", willContinue=True), finish=None),
            *[answer(calling(partialArgs=[piece], willContinue=True), finish=None) for piece in pieces],
            answer(calling(), calling(name="now", args={})),
        )
    )
    deltas, reply = await heard(server.model(), asking())
    whole = {"city": "New Delhi", "days": [{"high": 31}, {"high": 32}], "in words": True, "until": None}
    assert [(call.name, call.arguments, call.vendor_id) for call in reply.tool_calls] == [
        ("weather", whole, "c1"),
        ("now", {}, None),
    ]
    assert [delta.part for delta in deltas] == [0, 1]


def begun(text: str, **fields: Any) -> list[Any]:
    """The beginning of a call in pieces."""
    piece = {"jsonPath": "$.a", "stringValue": text, "willContinue": True}
    first = answer({**calling(name="f", willContinue=True), **fields}, finish=None)
    return [first, answer(calling(partialArgs=[piece], willContinue=True), finish=None)]


async def test_a_call_in_pieces_ends_where_another_begins_and_where_all_ends() -> None:
    whole = answer(calling(name="g", args={"b": 1}), finish=None)
    server = Server(events(*begun("x"), whole, answer(calling(), finish=None), *begun("y"), answer()))
    _, reply = await heard(server.model(), asking())
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("f", {"a": "x"}),
        ("g", {"b": 1}),
        ("f", {"a": "y"}),
    ]


async def test_a_call_in_pieces_that_is_cut_off_is_not_taken_for_a_whole_one() -> None:
    _, reply = await heard(Server(events(*begun("rm /tm"), answer(finish="MAX_TOKENS"))).model(), asking())
    assert (reply.finish, [call.json for call in reply.tool_calls]) == ("length", ['{"a": "rm /tm"'])


async def test_a_call_in_pieces_comes_after_the_text_before_its_end_and_is_signed_wherever_that_is_said() -> None:
    signed: dict[str, Any] = {"thoughtSignature": "c2ln"}
    for stream in (
        [*begun("x", **signed), answer({"text": "Hm."}, finish=None), answer(calling())],
        [*begun("x"), answer({"text": "Hm."}, finish=None), answer({**calling(), **signed})],
    ):
        _, reply = await heard(Server(events(*stream)).model(), asking())
        text, signature, call = reply.message.parts
        assert (text, signature) == (TextPart("Hm."), ThinkingPart("", "c2ln", vendor="google"))
        assert call.arguments == {"a": "x"}  # type: ignore[union-attr]


async def test_a_piece_of_arguments_that_belongs_nowhere_is_a_bad_reply() -> None:
    for path in ("$", "$.a[0]", "$.b[999999999]", 7):
        piece = calling(name="f", args={"a": "text"}, partialArgs=[{"jsonPath": path, "stringValue": "b"}])
        with pytest.raises(BadReply):
            await heard(Server(events(answer(piece))).model(), asking())


async def test_a_reply_is_plain_data() -> None:
    reply = await Server(answer({"text": "Hi"}, NOVEL)).model().reply(asking())
    assert type(reply) is ModelReply
    assert json.loads(json.dumps(reply.message.parts[1].data)) == NOVEL  # type: ignore[union-attr]


async def test_of_several_candidates_the_first_is_heard() -> None:
    both = answer({"text": "Hi"}, finish=None)
    both["candidates"].insert(0, {"content": {"parts": [{"text": "Other"}]}, "index": 1})
    assert (await Server(both).model().reply(asking())).text == "Hi"
    other = {"candidates": [{"content": {"parts": [{"text": "Other"}]}, "finishReason": "MAX_TOKENS", "index": 1}]}
    _, reply = await heard(Server(events(both, answer(), other)).model(), asking())
    assert (reply.text, reply.finish) == ("Hi", "stop")


STREAMS = [
    b": still there\n\n" + events(answer({"text": "Hi"})),
    b"\xef\xbb\xbf" + events(answer({"text": "Hi"})),
    events(answer({"text": "Hi"})).replace(b"data: ", b"id: 1\nevent: message\ndata:").replace(b"\r\n", b"\n"),
    events(answer({"text": "Hi"})).strip(),
]


@pytest.mark.parametrize("stream", STREAMS, ids=["comment", "mark", "fields", "no end"])
async def test_a_stream_may_be_written_in_all_the_ways_that_streams_are(stream: bytes) -> None:
    _, reply = await heard(Server(stream).model(), asking())
    assert reply.text == "Hi"


async def test_what_python_takes_for_the_end_of_a_line_may_be_in_a_text() -> None:
    text = "a\u2028b\u2029c\x85d"
    _, reply = await heard(Server(events(answer({"text": text}))).model(), asking())
    assert reply.text == text
