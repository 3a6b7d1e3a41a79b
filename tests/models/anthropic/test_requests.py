"""What Anthropic is sent: every kind of part, the settings, and where its cache may end."""

from __future__ import annotations

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
    assistant,
    user,
)

from .serving import Server, answer, asking

TOOL = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
BASE64 = {"type": "base64", "media_type": "image/gif", "data": "aGk="}


async def sent(request: ModelRequest, model: str = "claude-sonnet-4-6", **settings: Any) -> dict[str, Any]:
    """The body of a request, without the marks of the cache unless they are asked for."""
    server = Server(answer("ok"))
    await server.model(model, **{"cache": False, **settings}).reply(request)
    body: dict[str, Any] = server.asked[0]
    return body


async def wire(*messages: Message) -> list[Any]:
    return list((await sent(ModelRequest("", Messages(messages))))["messages"])


def texts(*said: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one} for one in said]


async def test_a_plain_request_says_only_what_was_asked_and_what_the_vendor_wants_to_know() -> None:
    body = await sent(ModelRequest("Be kind.", Messages([user("Hi")])))
    assert body == {
        "model": "claude-sonnet-4-6",
        "system": texts("Be kind."),
        "messages": [{"role": "user", "content": texts("Hi")}],
        "max_tokens": 16_384,
    }


PARTS: list[tuple[Part, dict[str, Any] | None]] = [
    (TextPart("Hi"), {"type": "text", "text": "Hi"}),
    (TextPart(" \n"), None),
    (
        ThinkingPart("Hm", "sig", vendor="anthropic"),
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
    ),
    (ThinkingPart("", "sig", vendor="anthropic"), {"type": "thinking", "thinking": "", "signature": "sig"}),
    (ThinkingPart("", "data", redacted=True, vendor="anthropic"), {"type": "redacted_thinking", "data": "data"}),
    (ThinkingPart("Hm", vendor="anthropic"), None),
    (ThinkingPart("Hm", "sig", vendor="google"), None),
    (
        ToolCallPart("add", '{"a": 1}', "s/1/0", "toolu_01"),
        {"type": "tool_use", "id": "toolu_01", "name": "add", "input": {"a": 1}},
    ),
    (
        ToolCallPart("add", '{"a": ', "s/1/0", "toolu_01"),
        {"type": "tool_use", "id": "toolu_01", "name": "add", "input": {"INVALID_JSON": '{"a": '}},
    ),
    (
        ToolCallPart("default_api.add it", "{}", "s/1/0", "toolu_01"),
        {"type": "tool_use", "id": "toolu_01", "name": "default_api_add_it", "input": {}},
    ),
    (
        ToolCallPart("add", "[1]", "", "call-1"),
        {"type": "tool_use", "id": "call-1", "name": "add", "input": {"INVALID_JSON": "[1]"}},
    ),
    (OpaquePart("anthropic", {"type": "compaction", "content": "So far"}), {"type": "compaction", "content": "So far"}),
    (OpaquePart("google", {"type": "compaction"}), None),
    (OpaquePart("anthropic", "no block"), None),
    (OpaquePart("anthropic", {"type": "x", "fields": 1}), {"type": "x", "fields": 1}),
]


@pytest.mark.parametrize(("part", "block"), PARTS)
async def test_an_assistant_says_each_kind_of_part(part: Part, block: dict[str, Any] | None) -> None:
    body = await wire(user("Hi"), Message("assistant", (part, TextPart("."))), user("Go on"))
    said = [*([] if block is None else [block]), {"type": "text", "text": "."}]
    assert body[1]["content"] == (said[::-1] if type(part) is ToolCallPart else said)


async def test_nothing_comes_after_the_calls_of_an_answer() -> None:
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    one, two = [ToolCallPart("add", "{}", f"s/1/{at}") for at in range(2)]
    parts = (TextPart("One"), one, OpaquePart("anthropic", searched), TextPart("Two"), two)
    body = await wire(user("Hi"), Message("assistant", parts))
    assert [block["type"] for block in body[1]["content"]] == [
        "text",
        "server_tool_use",
        "text",
        "tool_use",
        "tool_use",
    ]


async def test_thoughts_between_calls_stay_between_them() -> None:
    one, two = [ToolCallPart("add", "{}", f"s/1/{at}") for at in range(2)]
    thoughts = [ThinkingPart(text, "sig", vendor="anthropic") for text in "ab"]
    for parts in ((thoughts[0], one, thoughts[1], two), (one, thoughts[0], TextPart("So"), two)):
        body = await wire(user("Hi"), Message("assistant", parts))
        kinds = {ThinkingPart: "thinking", TextPart: "text", ToolCallPart: "tool_use"}
        assert [block["type"] for block in body[1]["content"]] == [kinds[type(part)] for part in parts]
    foreign = (one, ThinkingPart("c", "sig", vendor="google"), TextPart("So"), two)
    body = await wire(user("Hi"), Message("assistant", foreign))
    assert [block["type"] for block in body[1]["content"]] == ["text", "tool_use", "tool_use"]


async def test_models_that_always_think_are_told_to_think_little() -> None:
    body = await sent(asking(), "claude-fable-5", reasoning=False)
    assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})


IMAGES = [
    (ImagePart(b"hi", None, "image/gif"), BASE64),
    (ImagePart(url="http://x/i.png"), {"type": "url", "url": "http://x/i.png"}),
    (ImagePart(url="data:image/gif;base64,aGk="), BASE64),
    (ImagePart(url="data:image/gif;charset=x;base64,aGk="), BASE64),
    (ImagePart(url="data:image/gif,h%69"), BASE64),
]


@pytest.mark.parametrize(("image", "source"), IMAGES)
async def test_images_come_from_users_and_from_tools(image: ImagePart, source: dict[str, Any]) -> None:
    first, _, result = await wire(
        Message("user", (TextPart("Look"), image)),
        Message("assistant", (ToolCallPart("see", "{}", "s/1/0", "toolu_1"),)),
        Message("tool", (ToolResultPart("s/1/0", "see", (TextPart("Here"), image)),)),
    )
    blocks = [{"type": "image", "source": source}]
    assert first["content"] == [*texts("Look"), *blocks]
    assert result["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [*texts("Here"), *blocks]}
    ]


async def test_an_image_of_an_assistant_is_shown_by_the_user_after_the_results_of_its_calls() -> None:
    image = ImagePart(url="http://x/i.png")
    said = Message("assistant", (image, TextPart("So"), ToolCallPart("add", "{}", "s/1/0", "toolu_1")))
    _, second, third = await wire(user("Draw"), said, Message("tool", (ToolResultPart("s/1/0", "add"),)))
    assert [block["type"] for block in second["content"]] == ["text", "tool_use"]
    assert third == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1"},
            *texts("The assistant showed:"),
            {"type": "image", "source": {"type": "url", "url": "http://x/i.png"}},
        ],
    }


async def test_messages_of_one_role_are_one_and_results_come_first() -> None:
    call = Message("assistant", (ToolCallPart("add", "{}", "s/1/0", "toolu_1"),))
    result = Message("tool", (ToolResultPart("s/1/0", "add", (TextPart("3"),)),))
    used = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    body = await wire(user("a"), user(""), user("b"), assistant("So"), call, user("Hurry"), result, user("Please"))
    assert body == [
        {"role": "user", "content": texts("a", "b")},
        {"role": "assistant", "content": [*texts("So"), used]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": texts("3")},
                *texts("Hurry", "Please"),
            ],
        },
    ]  # fmt: skip


@pytest.mark.parametrize("vendor_id", [None, "call_abc", "toolu_" + "x" * 90, "functions.add:0"])
async def test_a_call_of_somebody_elses_gets_an_id_that_its_result_has_too(vendor_id: str | None) -> None:
    calls = Message("assistant", tuple(ToolCallPart("add", "{}", f"s/1/{at}", vendor_id) for at in range(2)))
    results = Message("tool", tuple(ToolResultPart(f"s/1/{at}", "add") for at in (1, 0)))
    bodies = [await wire(user("Hi"), calls, results) for _ in range(2)]
    assert bodies[0] == bodies[1]
    made = [block["id"] for block in bodies[0][1]["content"]]
    assert [block["tool_use_id"] for block in bodies[0][2]["content"]] == made[::-1]
    assert len(set(made)) == 2
    assert all(id.startswith("toolu_") and len(id) < 64 for id in made)


@pytest.mark.parametrize("status", ["error", "denied", "cancelled", "interrupted"])
async def test_a_call_that_failed_is_marked_unless_it_shows_more_than_text(status: Any) -> None:
    def result(*content: Any) -> Message:
        return Message("tool", (ToolResultPart("c", "add", content, status),))

    (said,) = (await wire(result(TextPart("No"))))[0]["content"]
    (shown,) = (await wire(result(TextPart("No"), ImagePart(b""))))[0]["content"]
    assert said["is_error"] is True
    assert "is_error" not in shown


async def test_fields_that_we_do_not_know_go_back_with_their_block_and_vanish_with_it() -> None:
    fields = OpaquePart("anthropic", {"fields": {"citations": [{"cited_text": "x"}]}})
    said = Message("assistant", (TextPart("So"), fields, TextPart(""), fields))
    assert (await wire(user("Hi"), said))[1]["content"] == [
        {"type": "text", "text": "So", "citations": [{"cited_text": "x"}]}
    ]


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5, "top_p": 0.9, "top_k": 3}, {"temperature": 0.5, "top_p": 0.9, "top_k": 3}),
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"stop": "x"}, {"stop_sequences": ["x"]}),
    ({"stop": ("x", "y")}, {"stop_sequences": ["x", "y"]}),
    ({"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
    ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    ({"tool_choice": "none", "parallel_tool_calls": False}, {"tool_choice": {"type": "none"}}),
    ({"tool_choice": "add"}, {"tool_choice": {"type": "tool", "name": "add"}}),
    ({"tool_choice": {"type": "tool", "name": "none"}}, {"tool_choice": {"type": "tool", "name": "none"}}),
    ({"parallel_tool_calls": True}, {}),
    ({"parallel_tool_calls": False}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    (
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
    ({"reasoning": False}, {"thinking": {"type": "disabled"}}),
    ({"reasoning": "none"}, {"thinking": {"type": "disabled"}}),
    ({"reasoning": True}, {"thinking": {"type": "adaptive"}}),
    ({"reasoning": "xhigh"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}),
    ({"reasoning": "minimal"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
    (
        {"reasoning": 2000},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 18_384},
    ),
    (
        {"reasoning": 2000, "max_tokens": 4096},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4096},
    ),
    ({"reasoning": {"type": "between_tools"}}, {"thinking": {"type": "between_tools"}}),
    (
        {"extra": {"metadata": {"user_id": "me"}, "service_tier": "auto", "top_k": 3, "new": [1]}},
        {"metadata": {"user_id": "me"}, "service_tier": "auto", "top_k": 3, "new": [1]},
    ),
    (
        {"reasoning": "low", "extra": {"output_config": {"effort": "max"}}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
    ),
]


@pytest.mark.parametrize(("settings", "fields"), SETTINGS)
async def test_settings_have_the_names_of_the_vendor(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    of_model, of_request = (
        await sent(asking(tools=(TOOL,)), **settings),
        await sent(asking(tools=(TOOL,), settings=settings)),
    )
    assert of_model == of_request
    for name in ("messages", "model", "tools"):
        del of_model[name]
    assert of_model == {"max_tokens": 16_384, **fields}


async def test_what_a_request_sets_wins_and_extras_are_merged() -> None:
    request = asking(settings={"temperature": 0.1, "extra": {"top_k": 1}})
    body = await sent(request, temperature=0.9, extra={"top_k": 9, "service_tier": "auto"})
    assert (body["temperature"], body["top_k"], body["service_tier"]) == (0.1, 1, "auto")


async def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown settings temprature: the settings are temperature"):
        Server().model(temprature=1)
    with pytest.raises(ConfigError, match="unknown settings temprature"):
        await Server().model().reply(asking(settings={"temprature": 1}))


async def test_betas_and_headers_are_headers() -> None:
    server = Server(answer("ok"))
    await server.model(extra={"betas": ["one", "two"], "extra_headers": {"x-team": "a"}}).reply(asking())
    headers = server.requests[0].headers
    assert (headers["anthropic-beta"], headers["x-team"]) == ("one,two", "a")
    assert not {"betas", "extra_headers"} & set(server.asked[0])


OLDER = [
    ("claude-3-opus-latest", 4096, {"type": "adaptive"}),
    ("claude-3-5-haiku-latest", 8192, {"type": "adaptive"}),
    ("claude-opus-4-1", 8192 + 16_384, {"type": "enabled", "budget_tokens": 16_384}),
    ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 16_384 * 2, {"type": "enabled", "budget_tokens": 16_384}),
    ("claude-sonnet-4@20250514", 16_384 * 2, {"type": "enabled", "budget_tokens": 16_384}),
    ("claude-opus-4-7", 16_384, {"type": "adaptive"}),
    ("claude-sonnet-5", 16_384, {"type": "adaptive"}),
    ("kimi-k3", 8192, {"type": "adaptive"}),
]


@pytest.mark.parametrize(("model", "longest", "thinking"), OLDER)
async def test_older_models_say_less_and_want_a_budget_for_an_effort(
    model: str, longest: int, thinking: dict[str, Any]
) -> None:
    from windlass.models.anthropic.settings import encode_settings

    body = encode_settings(model, {"reasoning": "high"})
    assert (body["max_tokens"], body["thinking"]) == (longest, thinking)


async def test_a_budget_for_an_effort_leaves_room_for_the_answer() -> None:
    body = await sent(asking(), "claude-sonnet-4-5", reasoning="high", max_tokens=4096)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


async def test_tools_are_told_with_their_schemas_and_those_of_the_vendor_beside_them() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = await sent(asking(tools=(TOOL, ToolSpec("now"))), extra={"tools": [search]})
    assert body["tools"] == [
        {"name": "add", "description": "Add.", "input_schema": dict(TOOL.schema)},
        {"name": "now", "description": "", "input_schema": {"type": "object"}},
        search,
    ]


async def test_an_output_is_told_as_far_as_the_vendor_takes_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"],
        "additionalProperties": False,
    }
    config = (await sent(asking(output=schema), reasoning="low"))["output_config"]
    assert config["effort"] == "low"
    assert config["format"]["type"] == "json_schema"
    told = config["format"]["schema"]
    assert (told["required"], told["additionalProperties"]) == (["age"], False)
    assert told["properties"]["age"] == {"type": "integer", "description": "{minimum: 0}"}


MARK = {"type": "ephemeral"}


def marked(body: dict[str, Any]) -> list[str]:
    """Where the cache may end, in the words of what stands there."""
    blocks = [*body.get("tools", []), *body.get("system", [])]
    blocks += [block for message in body["messages"] for block in message["content"]]
    return [
        str(block.get("name") or block.get("text") or block.get("tool_use_id"))
        for block in blocks
        if "cache_control" in block
    ]


def step(number: int) -> list[Message]:
    return [
        Message("assistant", (ToolCallPart("add", "{}", f"s/{number}/0", f"toolu_{number}"),)),
        Message("tool", (ToolResultPart(f"s/{number}/0", "add"),)),
    ]


async def test_the_cache_ends_after_the_stable_prefix_and_after_what_will_stay_of_the_history() -> None:
    history = [user("Hi"), *step(1), *step(2)]
    request = ModelRequest("Be kind.", Messages(history), (TOOL,))
    body = await sent(request, cache=True)
    assert marked(body) == ["add", "Be kind.", "toolu_1", "toolu_2"]
    assert body["tools"][0]["cache_control"] == MARK
    assert marked(await sent(request, cache="1h")) == marked(body)
    assert (await sent(request, cache="1h"))["tools"][0]["cache_control"] == {**MARK, "ttl": "1h"}
    assert marked(await sent(request, cache=False)) == []


async def test_every_request_marks_where_the_one_before_ended() -> None:
    server = Server(*[answer("ok")] * 6)
    model = server.model()
    history = [user("Hi")]
    ends: list[str] = []
    for number in range(6):
        await model.reply(ModelRequest("", Messages.sharing(history)))
        marks = marked(server.asked[-1])
        assert marks == [*ends[-1:], marks[-1]]
        ends.append(marks[-1])
        history += step(number) if number != 2 else [assistant("Done"), user("Again")]
    assert ends == ["Hi", "toolu_0", "toolu_1", "Again", "toolu_3", "toolu_4"]


async def test_a_message_with_something_laid_over_it_is_not_where_the_cache_ends() -> None:
    history = [user("Hi"), *step(1), *step(2)]
    overlay = {4: Message("tool", (ToolResultPart("s/2/0", "add", (TextPart("It is late."),)),))}
    body = await sent(ModelRequest("", Messages(history, overlay=overlay)), cache=True)
    assert [block["cache_control"] for block in body["messages"][3]["content"]] == [MARK]
    assert marked(body) == ["add", "add"]
    assert "cache_control" not in body["messages"][4]["content"][0]
    first = await sent(ModelRequest("", Messages(history[:1], overlay={0: user("Hi. It is late.")})), cache=True)
    assert marked(first) == []


async def test_what_the_vendor_does_not_cache_is_not_marked() -> None:
    thought = ThinkingPart("Hm", "sig", vendor="anthropic")
    said = Message("assistant", (TextPart("So"), thought))
    deferred = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    request = ModelRequest(" ", Messages([user("Hi"), said, user("Go on"), Message("assistant", (thought,))]), (TOOL,))
    body = await sent(request, cache=True, extra={"tools": [deferred]})
    assert marked(body) == ["add", "So"]
    assert "system" not in body


async def test_marks_of_ones_own_replace_ours_and_marks_leave_nothing_behind() -> None:
    server = Server(*[answer("ok")] * 3)
    model = server.model()
    request = ModelRequest("", Messages([user("Hi")]), (TOOL,))
    await model.reply(request)
    await model.reply(request.replace(settings={"extra": {"cache_control": MARK}}))
    await model.reply(request.replace(settings={"cache": False}))
    assert marked(server.asked[0]) == ["add", "Hi"]
    assert (marked(server.asked[1]), server.asked[1]["cache_control"]) == ([], MARK)
    assert marked(server.asked[2]) == []


async def test_only_what_is_new_is_encoded_again() -> None:
    from windlass.models.anthropic import requests

    encoded: list[Message] = []
    encode = requests.encode_message
    server = Server(*[answer("ok")] * 3)
    model = server.model()
    items = [user("one"), assistant("two"), user("three")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "encode_message", lambda message, ids: encoded.append(message) or encode(message, ids))
        for length in (1, 3):
            await model.reply(ModelRequest("", Messages(items[:length])))
        changed = [items[0], assistant("2"), items[2]]
        await model.reply(ModelRequest("", Messages(changed)))
    assert encoded == [*items, changed[1]]
    said = [[block["text"] for message in asked["messages"] for block in message["content"]] for asked in server.asked]
    assert said == [["one"], ["one", "two", "three"], ["one", "2", "three"]]
