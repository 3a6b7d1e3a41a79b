"""What Bedrock is sent; each body is checked against AWS's own description of Converse."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from windlass.errors import ConfigError
from windlass.messages import (
    ImagePart,
    Message,
    Messages,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)

from .serving import MODEL, Server, answer, asking, converse_accepts

NOVA, LLAMA = "us.amazon.nova-micro-v1:0", "meta.llama3-1-8b-instruct-v1:0"
ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = ToolCallPart("add", '{"a": 1}', id="s/1/0", vendor_id="tooluse_1")
POINT = {"cachePoint": {"type": "default"}}


async def sent(request: ModelRequest, model: str = MODEL, **settings: Any) -> Any:
    """The body of a request, which must be one that Converse takes."""
    server = Server(answer("ok"))
    await server.model(model, **settings).reply(request)
    known = {name: value for name, value in server.asked[0].items() if name != "windlass"}
    assert converse_accepts(known) == ""
    return server.asked[0]


async def content(*parts: Part, role: Any = "user", model: str = MODEL) -> list[Any]:
    """How parts are sent, in a message after the first."""
    messages = Messages([user("Hello"), Message(role, parts)])
    said = (await sent(ModelRequest("", messages, (ADD,)), model, cache=False))["messages"]
    return list(said[1:] if role == "assistant" else said[0]["content"][1:])


async def test_a_request_has_the_shape_of_converse() -> None:
    settings = {"temperature": 0.5, "top_p": 0.25, "max_tokens": 77, "stop": "END", "tool_choice": "required"}
    body = await sent(ModelRequest("Be kind.", Messages([user("Hi")]), (ADD,), settings=settings), NOVA, cache=False)
    assert body == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "system": [{"text": "Be kind."}],
        "inferenceConfig": {"temperature": 0.5, "topP": 0.25, "maxTokens": 77, "stopSequences": ["END"]},
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "add", "description": "Add.", "inputSchema": {"json": ADD.schema}}}],
            "toolChoice": {"any": {}},
        },
    }


async def test_what_is_not_said_is_not_sent() -> None:
    assert await sent(ModelRequest("  ", Messages([user("Hi")])), LLAMA) == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}]
    }


@pytest.mark.parametrize(
    ("choice", "told"),
    [("auto", {"auto": {}}), ("required", {"any": {}}), ("add", {"tool": {"name": "add"}}), ({"any": {}}, {"any": {}})],
)
async def test_which_tools_must_be_used(choice: Any, told: Any) -> None:
    body = await sent(asking(tools=(ADD,)), tool_choice=choice)
    assert body["toolConfig"]["toolChoice"] == told


async def test_no_tools_are_offered_if_none_may_be_used_but_those_that_were_called() -> None:
    assert "toolConfig" not in await sent(asking(tools=(ADD,)), tool_choice="none")
    result = ToolResultPart("s/1/0", "add", (TextPart("2"),))
    called = Messages([user("Go"), Message("assistant", (CALL,)), Message("tool", (result,))])
    for tools, described in (((ADD,), "Add."), ((), None)):
        body = await sent(ModelRequest("", called, tools), cache=False, tool_choice="none" if tools else None)
        [tool] = body["toolConfig"]["tools"]
        assert (tool["toolSpec"]["name"], tool["toolSpec"].get("description")) == ("add", described)
        assert "toolChoice" not in body["toolConfig"]


async def test_all_results_of_a_step_are_in_one_message_and_come_first() -> None:
    calls = (CALL, CALL.replace(id="s/1/1", vendor_id="tooluse_2"))
    results = [ToolResultPart(call.id, "add", (TextPart(call.id),)) for call in calls]
    messages = [
        user("Go"),
        Message("assistant", (TextPart("Let me see."), *calls)),
        user("Faster!"),
        Message("tool", (results[0],)),
        Message("tool", (results[1].replace(status="error"),)),
    ]
    body = await sent(ModelRequest("", Messages(messages), (ADD,)), cache=False)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "s/1/0"}], "status": "success"}},
        {"toolResult": {"toolUseId": "tooluse_2", "content": [{"text": "s/1/1"}], "status": "error"}},
        {"text": "Faster!"},
    ]


async def results(*parts: Any, model: str, status: Any = "ok") -> Any:
    result = ToolResultPart("s/1/0", "add", parts, status)
    called = Messages([user("Go"), Message("assistant", (CALL,)), Message("tool", (result,))])
    body = await sent(ModelRequest("", called, (ADD,)), model, cache=False)
    return body["messages"][2]["content"][0]["toolResult"]


async def test_results_are_as_the_family_of_the_model_wants_them() -> None:
    mistral = "mistral.mistral-large-2407-v1:0"
    text = TextPart('{"a": 1}')
    told = {"toolUseId": "tooluse_1", "content": [{"text": '{"a": 1}'}]}
    assert await results(text, model=LLAMA, status="error") == {**told, "status": "error"}
    assert await results(text, model="us.writer.palmyra-x5-v1:0", status="error") == told
    assert (await results(text, model=mistral))["content"] == [{"json": {"a": 1}}]
    assert (await results(TextPart("2"), model=mistral))["content"] == [{"json": {"result": "2"}}]
    assert (await results(model=NOVA))["content"] == [{"text": "(nothing)"}]
    picture = {"image": {"format": "png", "source": {"bytes": b64encode(b"x").decode()}}}
    assert (await results(TextPart("See:"), ImagePart(b"x"), model=MODEL))["content"] == [{"text": "See:"}, picture]


async def test_what_a_model_does_not_take_inside_results_comes_after_them() -> None:
    calls = (CALL, CALL.replace(id="s/1/1", vendor_id="tooluse_2"))
    shown = [ToolResultPart(call.id, "add", (TextPart("See:"), ImagePart(b"x"))) for call in calls]
    told = Messages([user("Go"), Message("assistant", calls), Message("tool", tuple(shown))])
    after = [{"text": "The tools showed:"}, *[{"image": {"format": "png", "source": {"bytes": "eA=="}}}] * 2]
    for model, separate in (("qwen.qwen3-vl-235b-a22b", False), ("us.mistral.pixtral-large-2502-v1:0", True)):
        *_, last = said = (await sent(ModelRequest("", told, (ADD,)), model))["messages"]
        assert last["content"][0 if separate else 2 :] == after
        for block in said[2]["content"][:2]:
            assert [next(iter(item)) for item in block["toolResult"]["content"]] == [
                "json" if separate else "text",
                "text",
            ]


async def test_what_a_model_does_not_take_beside_results_comes_after_them() -> None:
    done = Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("2"),)),))
    read = Message("user", (TextPart("Read:"), OpaquePart("bedrock", DOCUMENT)))
    for model, last, kinds in (
        (MODEL, user("And?"), [["toolResult", "text"]]),
        (MODEL, read, [["toolResult"], ["text"], ["text", "document"]]),
        (LLAMA, user("And?"), [["toolResult"], ["text"], ["text"]]),
        ("mistral.mistral-large-2407-v1:0", user("And?"), [["toolResult"], ["text"], ["text"]]),
        (NOVA, read, [["toolResult", "text", "document"]]),
    ):
        for after in ([done, last], [last, done]):
            told = Messages([user("Go"), Message("assistant", (CALL,)), *after])
            said = (await sent(ModelRequest("", told, (ADD,)), model, cache=False))["messages"]
            assert [message["role"] for message in said] == ["user", "assistant"] * (len(said) // 2) + ["user"]
            assert [[next(iter(block)) for block in message["content"]] for message in said[2:]] == kinds


async def test_a_conversation_opens_as_the_model_wants_it() -> None:
    opened = Messages([Message("assistant", (TextPart("Welcome!"),)), user("Hi")])
    for model, roles in ((MODEL, ["assistant", "user"]), (NOVA, ["user", "assistant", "user"])):
        said = (await sent(ModelRequest("", opened), model))["messages"]
        assert [message["role"] for message in said] == roles
    for nothing in ([], [user(" ")]):
        assert (await sent(ModelRequest("", Messages(nothing)), LLAMA))["messages"] == [
            {"role": "user", "content": [{"text": "."}]}
        ]


async def test_a_document_does_not_come_without_a_word() -> None:
    [message] = (await sent(ModelRequest("", Messages([Message("user", (OpaquePart("bedrock", DOCUMENT),))])), LLAMA))[
        "messages"
    ]
    assert message["content"] == [{"text": "(A document:)"}, DOCUMENT]


async def test_a_call_by_a_name_that_no_tool_can_have_does_not_spoil_the_conversation() -> None:
    for name, told in (("get weather!", "get_weather_"), ("", "_"), ("x" * 70, "x" * 64)):
        called = Messages([user("Go"), Message("assistant", (CALL.replace(name=name),)), LONG[2]])
        body = await sent(ModelRequest("", called), LLAMA)
        assert body["messages"][1]["content"][0]["toolUse"]["name"] == told
        assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == [told]


DOCUMENT = {"document": {"format": "pdf", "name": "a paper", "source": {"bytes": "cGRm"}}}
VIDEO = {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/film.mp4"}}}}
JPEG = {"image": {"format": "jpeg", "source": {"bytes": "eA=="}}}
PARTS = [
    (TextPart(" "), []),
    (ImagePart(b"x", media_type="image/jpg"), [JPEG]),
    (ImagePart(url="data:image/jpeg;base64,eA=="), [JPEG]),
    (ImagePart(url="data:image/jpeg,x"), [JPEG]),
    (
        ImagePart(url="s3://bucket/x.png"),
        [{"image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/x.png"}}}}],
    ),
    (OpaquePart("bedrock", DOCUMENT), [DOCUMENT]),
    (OpaquePart("bedrock", {"document": {**DOCUMENT["document"], "source": {"bytes": b"pdf"}}}), [DOCUMENT]),
    (OpaquePart("bedrock", VIDEO), [VIDEO]),
    (OpaquePart("bedrock", POINT), [POINT]),
    (OpaquePart("anthropic", {"type": "text"}), []),
    (ThinkingPart("Hm.", "sig", vendor="anthropic"), []),
    (ThinkingPart("Hm.", vendor="bedrock"), []),
]


@pytest.mark.parametrize(("part", "blocks"), PARTS)
async def test_each_kind_of_part_has_its_block(part: Any, blocks: list[Any]) -> None:
    assert await content(part, TextPart("?")) == [*blocks, {"text": "?"}]


async def test_signed_thinking_goes_back_to_models_that_sign_and_to_no_others() -> None:
    thoughts = (ThinkingPart("Hm.", "sig", vendor="bedrock"), ThinkingPart("", "aGlk", redacted=True, vendor="bedrock"))
    [message] = await content(*thoughts, TextPart("Hi"), role="assistant")
    assert message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": "aGlk"}},
        {"text": "Hi"},
    ]
    [message] = await content(*thoughts, TextPart("Hi"), role="assistant", model=NOVA)
    assert message["content"] == [{"text": "Hi"}]


@pytest.mark.parametrize("id", ["a|b", "x" * 65, "", None])
async def test_an_id_that_bedrock_would_refuse_is_another_one_and_always_the_same(id: str | None) -> None:
    call = CALL.replace(vendor_id=id)
    told = Messages([user("Go"), Message("assistant", (call,)), Message("tool", (ToolResultPart("s/1/0", "add"),))])
    one, other = [await sent(ModelRequest("", told, (ADD,))) for _ in range(2)]
    made = one["messages"][1]["content"][0]["toolUse"]["toolUseId"]
    assert made.startswith("tooluse_")
    assert one["messages"][2]["content"][0]["toolResult"]["toolUseId"] == made
    assert one == other


async def test_newer_models_of_mistral_take_ids_of_nine_letters_and_digits_only() -> None:
    """Though Bedrock itself gives their calls others."""
    calls = tuple(CALL.replace(id=f"s/1/{at}", vendor_id=f"tooluse_{at}") for at in range(2))
    results = tuple(ToolResultPart(f"s/1/{at}", "add") for at in range(2))
    told = Messages([user("Go"), Message("assistant", calls), Message("tool", results)])
    body = await sent(ModelRequest("", told, (ADD,)), "mistral.ministral-3-8b-instruct")
    ids = [block["toolUse"]["toolUseId"] for block in body["messages"][1]["content"]]
    assert [(len(id), id.isalnum()) for id in ids] == [(9, True)] * 2
    assert len(set(ids)) == 2
    assert [block["toolResult"]["toolUseId"] for block in body["messages"][2]["content"]] == ids


async def test_nothing_comes_after_the_calls_of_an_answer() -> None:
    [message] = await content(CALL, TextPart("And so"), role="assistant")
    assert [[*block] for block in message["content"]] == [["text"], ["toolUse"]]
    thought, other = ThinkingPart("Hm.", "sig", vendor="bedrock"), CALL.replace(id="s/1/1", vendor_id="tooluse_2")
    [message] = await content(thought, CALL, thought, other, role="assistant")
    assert [[*block] for block in message["content"]] == [["reasoningContent"], ["toolUse"]] * 2


async def test_an_id_that_bedrock_gave_goes_back_to_models_that_make_such() -> None:
    told = Messages([user("Go"), Message("assistant", (CALL.replace(vendor_id="functions.add:0"),)), LONG[2]])
    for model, same in (("moonshot.kimi-k2-thinking", True), (MODEL, False)):
        called, result = (await sent(ModelRequest("", told, (ADD,)), model))["messages"][1:]
        id = called["content"][0]["toolUse"]["toolUseId"]
        assert (id == "functions.add:0") is same
        assert result["content"][0]["toolResult"]["toolUseId"] == id


# ---------------------------------------------------------------- the vendor's cache


def points(body: Any) -> list[str]:
    """Where the marks are."""
    places = ["tools"] if POINT in body.get("toolConfig", {}).get("tools", ()) else []
    places += ["system"] if POINT in body.get("system", ()) else []
    return [*places, *[str(at) for at, message in enumerate(body["messages"]) if message["content"][-1] == POINT]]


LONG = [user("Go"), Message("assistant", (CALL,)), Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("2"),)),))]
KNOWN = [
    (MODEL, ["tools", "system", "0", "2"]),
    ("anthropic.claude-3-haiku-20240307-v1:0", []),
    ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", ["tools", "system", "0", "2"]),
    ("global.anthropic.claude-opus-5-v1:0", ["tools", "system", "0", "2"]),
    (NOVA, ["system", "0", "2"]),
    (LLAMA, []),
    ("arn:aws:bedrock:us-east-1:1:application-inference-profile/abc", []),
]


@pytest.mark.parametrize(("model", "places"), KNOWN)
async def test_the_end_of_the_stable_prefix_is_marked_for_models_that_know_it(model: str, places: list[str]) -> None:
    request = ModelRequest("Be kind.", Messages(LONG), (ADD,))
    assert points(await sent(request, model)) == places
    assert points(await sent(request, model, cache=False)) == []
    if not places:
        assert points(await sent(request, model, cache=True)) == ["system", "0", "2"]


async def test_what_is_laid_over_the_last_message_is_not_marked_and_marks_are_not_kept() -> None:
    server = Server(answer("ok"), answer("ok"))
    model = server.model()
    overlaid = Messages(LONG, overlay={2: LONG[2].replace(parts=(*LONG[2].parts, TextPart("It is Monday.")))})
    await model.reply(ModelRequest("Be kind.", overlaid, (ADD,)))
    assert points(server.asked[0]) == ["tools", "system", "1"]
    await model.reply(ModelRequest("Be kind.", Messages(LONG), (ADD,)))
    assert points(server.asked[1]) == ["tools", "system", "0", "2"]
    assert json.dumps(server.asked[1]).count("cachePoint") == 4


async def test_a_mark_is_not_behind_a_document() -> None:
    document, question = OpaquePart("bedrock", DOCUMENT), TextPart("What is in it?")
    [message] = (await sent(ModelRequest("", Messages([Message("user", (question, document))]))))["messages"]
    assert message["content"] == [{"text": "What is in it?"}, POINT, DOCUMENT]


@pytest.mark.parametrize(("theirs", "places"), [(1, ["tools", "system"]), (3, ["system"]), (4, [])])
async def test_who_marks_messages_marks_them_alone_and_there_are_never_more_than_four(
    theirs: int, places: list[str]
) -> None:
    parts = [part for at in range(theirs) for part in (TextPart(str(at)), OpaquePart("bedrock", POINT))]
    body = await sent(ModelRequest("Be kind.", Messages([Message("user", (*parts, TextPart("?")))]), (ADD,)))
    assert points(body) == places
    assert json.dumps(body).count("cachePoint") == theirs + len(places)


async def test_a_time_to_live_can_be_said() -> None:
    body = await sent(asking(), cache="1h")
    assert body["messages"][0]["content"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}


# ---------------------------------------------------------------- reasoning, output, extra

REASONING: list[tuple[str, Any, Any]] = [
    (MODEL, 4000, {"thinking": {"type": "enabled", "budget_tokens": 4000}}),
    (MODEL, "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
    (MODEL, {"type": "adaptive"}, {"thinking": {"type": "adaptive"}}),
    ("us.amazon.nova-2-lite-v1:0", "low", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}}),
    ("us.amazon.nova-2-lite-v1:0", True, {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}}),
    ("us.amazon.nova-2-lite-v1:0", False, {"reasoningConfig": {"type": "disabled"}}),
    ("openai.gpt-oss-120b-1:0", "high", {"reasoning_effort": "high"}),
    ("us.openai.gpt-5.6-luna", "xhigh", {"reasoning": {"effort": "xhigh"}}),
    ("us.openai.gpt-5.6-luna", "minimal", {"reasoning": {"effort": "low"}}),
    ("us.openai.gpt-5.6-luna", False, {"reasoning": {"effort": "none"}}),
    ("qwen.qwen3-32b-v1:0", "minimal", {"reasoning_config": "low"}),
    ("qwen.qwen3-32b-v1:0", True, {"reasoning_config": "high"}),
    (LLAMA, {"reasoning_config": "high"}, {"reasoning_config": "high"}),
    (LLAMA, False, None),
]


@pytest.mark.parametrize(("model", "reasoning", "fields"), REASONING)
async def test_reasoning_is_told_in_the_words_of_the_model(model: str, reasoning: Any, fields: Any) -> None:
    body = await sent(asking(), model, reasoning=reasoning)
    assert body.get("additionalModelRequestFields") == fields


async def test_newer_claudes_are_told_an_effort() -> None:
    body = await sent(asking(), "us.anthropic.claude-opus-4-7-v1:0", reasoning="high")
    assert body["additionalModelRequestFields"] == {"thinking": {"type": "adaptive"}}
    assert body["outputConfig"] == {"effort": "high"}


async def test_a_model_of_which_nobody_knows_how_it_reasons_is_not_told_in_words() -> None:
    with pytest.raises(
        ConfigError, match=r"reasoning='high': this adapter cannot set the reasoning of 'meta\.llama3.*as a mapping"
    ):
        await sent(asking(), LLAMA, reasoning="high")


SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 3, "description": "In years."},
        "minimum": {"type": "array", "items": {"$ref": "#/$defs/City"}, "maxItems": 3},
    },
    "$defs": {"City": {"type": "object", "properties": {"name": {"type": "string", "enum": ["a"]}}}},
}


async def test_the_schema_of_the_output_is_sent_as_far_as_it_is_taken() -> None:
    body = await sent(asking(output=SCHEMA))
    told = body["outputConfig"]["textFormat"]
    assert told["type"] == "json_schema"
    assert json.loads(told["structure"]["jsonSchema"]["schema"]) == {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "description": "In years. (minimum: 3)"},
            "minimum": {"type": "array", "items": {"$ref": "#/$defs/City"}, "description": "(maxItems: 3)"},
        },
        "$defs": {
            "City": {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": ["a"]}},
                "additionalProperties": False,
            }
        },
        "additionalProperties": False,
    }
    assert "system" not in body


async def test_a_model_that_takes_no_schema_is_asked_for_it_in_words() -> None:
    body = await sent(asking(output=SCHEMA), NOVA)
    assert "outputConfig" not in body
    assert '"age"' in body["system"][0]["text"]


async def test_extra_is_joined_with_what_we_say() -> None:
    extra = {
        "additionalModelRequestFields": {"top_k": 5},
        "guardrailConfig": {"guardrailIdentifier": "abc", "guardrailVersion": "1", "trace": "enabled"},
        "performanceConfig": {"latency": "optimized"},
        "toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]},
        "windlass": "passed on",
    }
    body = await sent(asking(tools=(ADD,), settings={"extra": extra}), reasoning=4000, cache=False)
    assert body["additionalModelRequestFields"]["top_k"] == 5
    assert body["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 4000
    assert [next(iter(tool)) for tool in body["toolConfig"]["tools"]] == ["toolSpec", "systemTool"]
    assert (body["performanceConfig"], body["windlass"]) == ({"latency": "optimized"}, "passed on")


async def test_a_lone_surrogate_does_not_keep_a_message_from_being_sent() -> None:
    body = await sent(asking("a \ud800 b"), cache=False)
    assert body["messages"][0]["content"] == [{"text": "a \N{REPLACEMENT CHARACTER} b"}]


async def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="loudness"):
        Server().model(loudness=3)
