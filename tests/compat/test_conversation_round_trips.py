"""Whatever a conversation of another project holds: it comes back as it was, or what is missing is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import messages_from_dict

from windlass import Agent
from windlass.compat.conversations import FORMATS, read_conversation, write_conversation
from windlass.messages import ImagePart, Message, Messages, ModelRequest, OpaquePart, TextPart, ThinkingPart
from windlass.models.anthropic.requests import Requests as Anthropic
from windlass.models.bedrock.requests import Requests as Bedrock
from windlass.models.google.settings import Encoder as Google
from windlass.models.openai.chat.encode import ChatEncoder
from windlass.models.openai.dialects import OPENAI, RESPONSES
from windlass.models.openai.responses.encode import ResponsesEncoder
from windlass.testing import ScriptedModel, says

Json = dict[str, Any]

words = st.sampled_from(["a", "b c", "🜁", "{", " "])
cached = st.sampled_from([{}, {}, {"cache_control": {"type": "ephemeral"}}])
arguments = st.sampled_from(["{}", '{"name":"x"}', '{"name": "é"}', '{"name"', "[1]", "null", '"x"'])
objects = st.sampled_from([{}, {"name": "x"}, {"deep": {"list": [1, None, "é"]}}])
PNG, PDF = "iVBORw0=", "JVBERg=="


def several(parts: st.SearchStrategy[Json], least: int = 1, most: int = 3) -> st.SearchStrategy[list[Json]]:
    return st.lists(parts, min_size=least, max_size=most)


def with_fields(base: st.SearchStrategy[Json], **fields: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.tuples(base, *fields.values()).map(lambda made: {key: one[key] for one in made for key in one})


def numbered(steps: list[Any], make: Any) -> list[Json]:
    """The messages of steps; `make` gets a step and the number of its first call."""
    found: list[Json] = []
    for number, step in enumerate(steps):
        found += make(step, number * 10)
    return found


# ---------------------------------------------------------------- OpenAI: Chat Completions

chat_parts = st.one_of(
    words.map(lambda text: {"type": "text", "text": text}),
    st.sampled_from([
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "high"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "not_yet_invented", "value": [1]},
    ]),
)  # fmt: skip
chat_content = words | several(chat_parts, 2)
chat_said = st.sampled_from([
    {"content": "Well."}, {"content": None}, {"content": None, "refusal": "I will not."},
    {"content": [{"type": "text", "text": "No:"}, {"type": "refusal", "refusal": "never"}]},
    {"content": "I thought.", "reasoning_content": "Hm."},
    {"content": "Cited.", "annotations": [{"type": "url_citation"}]},
    {"content": "Named.", "name": "bot"}, {"content": None, "audio": {"id": "audio_1"}},
])  # fmt: skip
chat_texts = words.map(lambda text: {"type": "text", "text": text})
chat_extra = st.sampled_from([{}, {"extra_content": {"google": {"thought_signature": "s"}}}])
chat_steps = st.lists(
    st.tuples(
        st.tuples(chat_content, st.sampled_from([{}, {"name": "ann"}])),
        chat_said,
        st.lists(st.tuples(arguments, chat_extra, words | several(chat_texts, 2)), max_size=3),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


def chat(step: Any, number: int) -> list[Json]:
    (content, more), said, calls = step
    wire = [
        {"id": f"call_{number + n}", "type": "function", "function": {"name": "look", "arguments": text}, **extra}
        for n, (text, extra, _) in enumerate(calls)
    ]
    reply = {"role": "assistant", **said, **({"tool_calls": wire} if wire else {})}
    if not wire and reply["content"] is None and "refusal" not in reply:
        reply["content"] = ""
    results = [
        {"role": "tool", "tool_call_id": f"call_{number + n}", "content": told} for n, (_, _, told) in enumerate(calls)
    ]
    return [{"role": "user", "content": content, **more}, reply, *results]


# ---------------------------------------------------------------- OpenAI: Responses

items_content = several(
    st.one_of(
        words.map(lambda text: {"type": "input_text", "text": text}),
        st.sampled_from([
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "high"},
            {"type": "input_image", "file_id": "file-1", "detail": "auto"},
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
            {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        ]),
    )
)  # fmt: skip
items_thoughts = st.sampled_from([
    [],
    [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}],
    [{"type": "reasoning", "encrypted_content": "g",
      "summary": [{"type": "summary_text", "text": one} for one in "ab"]}],
    [{"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
    [{"type": "reasoning", "id": "rs_3", "summary": [{"type": "summary_text", "text": "kept by the server"}]}],
    [{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}],
])  # fmt: skip
items_said = st.sampled_from([
    [],
    [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}],
    [{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "commentary", "content": [
        {"type": "output_text", "text": "See", "annotations": [{"type": "url_citation"}]},
        {"type": "output_text", "text": "there"}]}],
    [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
])  # fmt: skip
items_told = words | st.just([
    {"type": "input_text", "text": "8"}, {"type": "input_image", "image_url": "https://example.org/8.png"}
])  # fmt: skip
items_steps = st.lists(
    st.tuples(items_content, items_thoughts, items_said, st.lists(st.tuples(arguments, items_told), max_size=3)),
    min_size=1, max_size=3,
)  # fmt: skip


def items(step: Any, number: int) -> list[Json]:
    content, thoughts, said, calls = step
    wire = [
        {"type": "function_call", "call_id": f"call_{number + n}", "name": "look", "arguments": text, "id": f"fc_{n}"}
        for n, (text, _) in enumerate(calls)
    ]
    results = [
        {"type": "function_call_output", "call_id": f"call_{number + n}", "output": told}
        for n, (_, told) in enumerate(calls)
    ]
    return [{"type": "message", "role": "user", "content": content}, *thoughts, *said, *wire, *results]


# ---------------------------------------------------------------- Anthropic

blocks_shown = with_fields(
    st.one_of(
        words.map(lambda text: {"type": "text", "text": text}),
        st.sampled_from([
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "document", "title": "a.pdf", "citations": {"enabled": True},
             "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
            {"type": "search_result", "source": "https://example.org", "title": "t", "content": []},
        ]),
    ),
    cached=cached,
)  # fmt: skip
blocks_thoughts = st.sampled_from([
    [],
    [{"type": "thinking", "thinking": "hm", "signature": "sig"}],
    [{"type": "redacted_thinking", "data": "sealed"}, {"type": "thinking", "thinking": "", "signature": "sig"}],
    [{"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
     {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result"}]}],
    [{"type": "text", "text": "Cited.", "citations": [{"type": "char_location", "start_char_index": 0}]}],
])  # fmt: skip
blocks_about = st.sampled_from([{}, {"id": "msg_1", "model": "claude", "stop_reason": "end_turn", "type": "message"}])
blocks_call = st.tuples(
    objects | st.just({"INVALID_JSON": '{"name"'}), cached, several(blocks_shown, 0, 2), st.booleans()
)
blocks_steps = st.lists(
    st.tuples(several(blocks_shown), blocks_thoughts, blocks_about, st.lists(blocks_call, max_size=3)),
    min_size=1, max_size=3,
)  # fmt: skip


def blocks(step: Any, number: int) -> list[Json]:
    content, thoughts, about, calls = step
    uses = [
        {"type": "tool_use", "id": f"toolu_{number + n}", "name": "look", "input": given, **more}
        for n, (given, more, _, _) in enumerate(calls)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"toolu_{number + n}", "content": told, **more,
         **({"is_error": True} if failed else {})}
        for n, (_, more, told, failed) in enumerate(calls)
    ]  # fmt: skip
    reply = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "So."}, *uses], **about}
    found = [{"role": "user", "content": content}, reply]
    return (
        [
            *found,
            {"role": "user", "content": results},
            {"role": "assistant", "content": [{"type": "text", "text": "."}]},
        ]
        if results
        else found
    )


# ---------------------------------------------------------------- LangChain

lc_shown = st.one_of(
    words.map(lambda text: {"type": "text", "text": text}),
    st.sampled_from([
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "file", "base64": PDF, "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
        {"type": "audio", "url": "https://example.org/a.wav", "mime_type": "audio/wav"},
        {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"},
        {"type": "image", "file_id": "file-1", "mime_type": "image/png"},
        {"type": "non_standard", "value": {"x": 1}},
    ]),
)  # fmt: skip
lc_said = st.sampled_from([
    {"content": "Well."},
    {"content": [{"type": "thinking", "thinking": "hm", "signature": "sig", "index": 0},
                 {"type": "text", "text": "So."}]},
    {"content": [{"type": "redacted_thinking", "data": "sealed"}, {"type": "text", "text": "So."}]},
    {"content": [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}],
                  "encrypted_content": "g"}, {"type": "text", "text": "So.", "annotations": [{"type": "citation"}]}]},
    {"content": [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}]}]},
    {"content": [{"type": "reasoning", "reasoning": "hm", "extras": {"signature": "s"}},
                 {"type": "text", "text": "x"}]},
    {"content": [{"type": "server_tool_call", "id": "s", "name": "web_search", "args": {}},
                 {"type": "text", "text": "x"}]},
    {"content": "", "additional_kwargs": {"reasoning_content": "hm"}, "name": "bot", "id": "run-1",
     "response_metadata": {"model_provider": "x"},
     "usage_metadata": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}},
])  # fmt: skip
lc_told = st.sampled_from([{}, {"artifact": {"rows": [1]}}, {"id": "t1"}])
lc_steps = st.lists(
    st.tuples(
        st.tuples(words | several(lc_shown, 2), st.sampled_from([{}, {"name": "ann", "id": "h1"}])), lc_said,
        st.lists(
            st.tuples(objects | st.just('{"name"'), words | several(lc_shown, 2), lc_told, st.booleans()), max_size=3
        ),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


def langchain(step: Any, number: int) -> list[Json]:
    (content, more), said, calls = step
    valid, wrong = [], []
    for n, (args, _, _, _) in enumerate(calls):
        one = {"name": "look", "args": args, "id": f"c{number + n}"}
        if isinstance(args, str):
            wrong.append({**one, "error": "the arguments are not a JSON object", "type": "invalid_tool_call"})
        else:
            valid.append({**one, "type": "tool_call"})
    reply = {"type": "ai", **said, "tool_calls": valid, **({"invalid_tool_calls": wrong} if wrong else {})}
    results = [
        {"type": "tool", "data": {"type": "tool", "content": told, "tool_call_id": f"c{number + n}", "name": "look",
                                  "status": "error" if failed else "success", **more}}
        for n, (_, told, more, failed) in enumerate(calls)
    ]  # fmt: skip
    return [
        {"type": "human", "data": {"type": "human", "content": content, **more}},
        {"type": "ai", "data": reply},
        *results,
    ]


conversations = st.one_of(
    chat_steps.map(lambda steps: ("openai", numbered(steps, chat))),
    items_steps.map(lambda steps: ("openai_responses", numbered(steps, items))),
    blocks_steps.map(lambda steps: ("anthropic", numbered(steps, blocks))),
    lc_steps.map(lambda steps: ("langchain", numbered(steps, langchain))),
)

ENCODERS: dict[str, Any] = {
    "chat": ChatEncoder("gpt-5", OPENAI),
    "responses": ResponsesEncoder("gpt-5", RESPONSES),
    "anthropic": Anthropic("claude-sonnet-4-5"),
    "google": Google("gemini-3-pro"),
    "bedrock": Bedrock("anthropic.claude-sonnet-4-5"),
}


def body(name: str, messages: list[Message]) -> Json:
    encoded: Json = ENCODERS[name].body(ModelRequest("Be kind.", Messages(messages)), {"extra": {}})
    return encoded


@settings(max_examples=150)
@given(conversations)
def test_a_conversation_comes_back_as_it_was(given: tuple[Any, list[Json]]) -> None:
    format, wire = given
    conversation = read_conversation(format, wire)
    lost: list[str] = []
    assert write_conversation(format, conversation.messages, left_out=lost) == wire
    assert (conversation.left_out, lost) == ((), [])


@settings(max_examples=40)
@given(lc_steps)
def test_message_objects_of_langchain_come_back_as_they_were(given: Any) -> None:
    objects = messages_from_dict(numbered(given, langchain))
    conversation = read_conversation("langchain", objects)
    assert conversation.left_out == ()
    assert messages_from_dict(write_conversation("langchain", conversation.messages)) == objects


@settings(max_examples=25)
@given(conversations)
def test_every_vendor_is_sent_what_was_imported(given: tuple[Any, list[Json]]) -> None:
    format, wire = given
    messages = read_conversation(format, wire).messages
    for name in ENCODERS:
        assert json.dumps(body(name, [*messages, Message("user", (TextPart("And now?"),))]))


@settings(max_examples=60)
@given(conversations, st.sampled_from(FORMATS))
def test_what_another_format_cannot_hold_is_named(given: tuple[Any, list[Json]], other: Any) -> None:
    format, wire = given
    messages = read_conversation(format, wire).messages
    lost: list[str] = []
    there = read_conversation(other, write_conversation(other, messages, left_out=lost)).messages
    texts = ["".join(message.text for message in messages if message.role == role) for role in ("user", "assistant")]
    assert ["".join(m.text for m in there if m.role == role) for role in ("user", "assistant")] == texts or lost
    assert [call.name for m in there for call in m.tool_calls] == [call.name for m in messages for call in m.tool_calls]
    known = (ThinkingPart, OpaquePart)
    gone = [part for m in messages for part in m.parts if isinstance(part, known)]
    kept = [part for m in there for part in m.parts if isinstance(part, known)]
    assert lost or len(kept) >= len(gone)


@settings(max_examples=20)
@given(conversations)
async def test_a_session_keeps_what_was_imported(given: tuple[Any, list[Json]]) -> None:
    format, wire = given
    agent = Agent(ScriptedModel(says("Now.")))
    await agent.import_history("s", read_conversation(format, wire).messages)
    result = await agent.run("And now?", session="s")
    assert write_conversation(format, result.messages[:-2]) == wire


def test_reasoning_of_responses_is_sent_back_and_exported() -> None:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "a"}],
        "encrypted_content": "gA",
    }
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    messages = read_conversation("openai_responses", [item, said]).messages
    sent = body("responses", messages)["input"]
    assert sent[0] == {"type": "reasoning", "summary": item["summary"], "encrypted_content": "gA"}
    replied = Message("assistant", (ThinkingPart("a", "gA", vendor="openai-responses"), TextPart("b")))
    assert write_conversation("openai_responses", [replied])[0]["encrypted_content"] == "gA"


def test_thinking_of_langchain_is_sent_back_by_the_adapter_of_its_vendor() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    call = {"name": "look", "args": {}, "id": "toolu_1", "type": "tool_call"}
    wire = [
        {"type": "human", "data": {"content": "go"}},
        {"type": "ai", "data": {"content": [thinking], "tool_calls": [call]}},
        {"type": "tool", "data": {"content": "7", "tool_call_id": "toolu_1"}},
    ]
    messages = read_conversation("langchain", wire).messages
    assert body("anthropic", messages)["messages"][1]["content"][0] == thinking


def test_cache_control_is_sent_back() -> None:
    block = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    messages = read_conversation(
        "anthropic", [{"role": "user", "content": [block, {"type": "text", "text": "b"}]}]
    ).messages
    [sent, _] = body("anthropic", messages)["messages"][0]["content"]
    assert sent == block


def test_an_uploaded_image_stays_an_image() -> None:
    block = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    messages = read_conversation("anthropic", [{"role": "user", "content": [block]}]).messages
    [sent] = body("anthropic", messages)["messages"][0]["content"]
    assert sent | block == sent


@pytest.mark.parametrize(
    ("format", "wire", "lost"),
    [
        ("openai", [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
         ["message 1: the place of a system text"]),
        ("openai", [{"role": "developer", "content": "a", "name": "boss"}], ["message 0: 'name' of a system text"]),
        ("anthropic",
         {"model": "claude", "system": [{"type": "text", "text": "a", "cache_control": {}}], "messages": []},
         ["'model' of the body", "'cache_control' of the system text"]),
        ("langchain", [{"type": "system", "data": {"content": [{"type": "text", "text": "a", "cache_control": {}}]}}],
         ["message 0: 'cache_control' of a system text"]),
        ("langchain", [{"type": "tool", "data": {"content": "a", "tool_call_id": "c", "artifact": object()}}],
         ["message 0: 'artifact', which has no JSON form"]),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_of_a_conversation_is_named(format: Any, wire: Any, lost: list[str]) -> None:
    assert list(read_conversation(format, wire).left_out) == lost


@pytest.mark.parametrize(
    ("format", "part", "lost"),
    [
        ("openai", ThinkingPart("hm", "sig", vendor="anthropic"), "message 0: thinking"),
        ("openai_responses", ThinkingPart("hm"), "message 0: thinking"),
        ("anthropic", ThinkingPart("hm"), "message 0: thinking"),
        ("anthropic", OpaquePart("google", {"x": 1}), "message 0: data of google"),
        ("anthropic", OpaquePart("openai", {"message": {"name": "bot"}}), "message 0: 'name' of openai"),
        ("openai_responses", ImagePart(b"x"), "message 0: the content of [image: image/png]"),
    ],
)  # fmt: skip
def test_what_a_format_has_no_place_for_is_named(format: Any, part: Any, lost: str) -> None:
    named: list[str] = []
    write_conversation(format, [Message("assistant", (TextPart("a"), part))], left_out=named)
    assert named == [lost]


@pytest.mark.parametrize("format", FORMATS)
async def test_an_orphan_result_and_a_missing_one_are_named(format: Any) -> None:
    wires: dict[str, list[Json]] = {
        "openai": [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "x", "content": "7"}],
        "openai_responses": [
            {"role": "user", "content": "a"},
            {"type": "function_call_output", "call_id": "x", "output": "7"},
        ],
        "anthropic": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "7"}]}],
        "langchain": [{"type": "tool", "data": {"content": "7", "tool_call_id": "x"}}],
    }
    messages = read_conversation(format, wires[format]).messages
    with pytest.raises(Exception, match="the result of 'x' has no call in the message before it"):
        await Agent(ScriptedModel()).import_history("s", messages)
