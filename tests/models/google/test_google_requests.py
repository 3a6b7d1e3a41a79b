"""What Gemini is sent, by hand: each kind of part, each setting."""

from __future__ import annotations

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
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)

from .serving import Server, answer, asking

OLDER, NEWER = "gemini-2.5-flash", "gemini-3-pro-preview"
UNSIGNED = b64encode(b"skip_thought_signature_validator").decode()
PIXEL = {"mimeType": "image/png", "data": b64encode(b"pixel").decode()}


async def sent(request: ModelRequest, model: str = OLDER, **options: Any) -> dict[str, Any]:
    server = Server(answer({"text": "ok"}))
    await server.model(model, **options).reply(request)
    body: dict[str, Any] = server.asked[0]
    return body


async def contents(*messages: Message, model: str = OLDER) -> list[Any]:
    body = await sent(ModelRequest("", Messages(messages)), model)
    found: list[Any] = body["contents"]
    return found


async def test_a_request_in_full() -> None:
    spec = ToolSpec("weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
    settings = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "stop": "END",
        "seed": 7,
        "tool_choice": "required",
        "extra": {
            "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            "cachedContent": "cachedContents/1",
            "labels": {"team": "a"},
            "generationConfig": {"topK": 5, "responseModalities": ["TEXT"]},
            "toolConfig": {"includeServerSideToolInvocations": True},
            "tools": [{"googleSearch": {}}],
        },
    }
    request = ModelRequest("Be kind.", Messages([user("Hi")]), (spec,), "", settings)
    assert await sent(request) == {
        "contents": [{"parts": [{"text": "Hi"}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": "Be kind."}], "role": "user"},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "weather",
                        "description": "Tell the weather.",
                        "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
                    }
                ]
            },
            {"googleSearch": {}},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}, "includeServerSideToolInvocations": True},
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 100,
            "stopSequences": ["END"],
            "seed": 7,
            "topK": 5,
            "responseModalities": ["TEXT"],
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "cachedContent": "cachedContents/1",
        "labels": {"team": "a"},
    }


CHOICES: list[tuple[Any, dict[str, Any]]] = [
    ("auto", {"mode": "AUTO"}),
    ("none", {"mode": "NONE"}),
    ("weather", {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    (["weather", "time"], {"mode": "ANY", "allowedFunctionNames": ["weather", "time"]}),
]


@pytest.mark.parametrize(("choice", "config"), CHOICES)
async def test_the_choice_of_tools(choice: Any, config: dict[str, Any]) -> None:
    body = await sent(asking(tools=(ToolSpec("weather"),), settings={"tool_choice": choice}))
    assert body["toolConfig"] == {"functionCallingConfig": config}


THINKING: list[tuple[str, Any, dict[str, Any]]] = [
    (OLDER, True, {"includeThoughts": True}),
    (OLDER, False, {"thinkingBudget": 0}),
    (OLDER, "none", {"thinkingBudget": 0}),
    (OLDER, "low", {"includeThoughts": True, "thinkingBudget": 1024}),
    (OLDER, "high", {"includeThoughts": True, "thinkingBudget": 24576}),
    (OLDER, "dynamic", {"includeThoughts": True, "thinkingBudget": -1}),
    (OLDER, 2000, {"includeThoughts": True, "thinkingBudget": 2000}),
    (OLDER, {"thinkingBudget": 5}, {"thinkingBudget": 5}),
    (NEWER, "low", {"includeThoughts": True, "thinkingLevel": "LOW"}),
    (NEWER, "xhigh", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
    (NEWER, "minimal", {"includeThoughts": True, "thinkingLevel": "LOW"}),
    (NEWER, False, {"thinkingLevel": "LOW"}),
    ("gemini-3.7-flash", "none", {"thinkingLevel": "LOW"}),
    ("gemini-3-flash-preview", False, {"thinkingLevel": "MINIMAL"}),
    ("gemini-3.5-flash-lite", "minimal", {"includeThoughts": True, "thinkingLevel": "MINIMAL"}),
    ("gemini-2.5-pro", False, {"thinkingBudget": 128}),
    (NEWER, True, {"includeThoughts": True}),
]


@pytest.mark.parametrize(("model", "reasoning", "config"), THINKING)
async def test_reasoning(model: str, reasoning: Any, config: dict[str, Any]) -> None:
    body = await sent(asking(), model, settings={"reasoning": reasoning})
    assert body["generationConfig"]["thinkingConfig"] == config


async def test_settings_of_a_request_win_over_those_of_the_model() -> None:
    own = {"temperature": 1, "stop": ("a", "b"), "extra": {"cachedContent": "x", "labels": {"a": "1"}}}
    asked = {"temperature": 0, "extra": {"cachedContent": "y"}}
    body = await sent(asking(settings=asked), settings=own)
    assert body["generationConfig"] == {"temperature": 0, "stopSequences": ["a", "b"]}
    assert (body["cachedContent"], body["labels"]) == ("y", {"a": "1"})


async def test_a_setting_nobody_knows_is_refused() -> None:
    server = Server()
    with pytest.raises(ConfigError, match=r"unknown settings topK.*under 'extra'"):
        server.model(settings={"topK": 5})
    with pytest.raises(ConfigError, match="unknown settings warmth"):
        await server.model().reply(asking(settings={"warmth": 5}))


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


async def test_a_schema_for_the_answer_is_sent_as_it_is() -> None:
    wanted = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert (await sent(asking(output=SCHEMA)))["generationConfig"] == wanted
    body = await sent(asking(output=SCHEMA, tools=(ToolSpec("weather"),)), NEWER)
    assert body["generationConfig"] == wanted


async def test_an_older_model_with_tools_is_asked_for_the_schema_in_words() -> None:
    body = await sent(ModelRequest("Be kind.", Messages([user("Hi")]), (ToolSpec("weather"),), output=SCHEMA))
    assert body["generationConfig"] == {}
    text = body["systemInstruction"]["parts"][0]["text"]
    assert text.startswith("Be kind.\n\nYour final answer is JSON")
    assert '{"type": "object", "properties": {"city": {"type": "string"}}}' in text


@pytest.mark.parametrize("choice", ["required", "weather", ["weather"]])
async def test_a_model_that_must_call_a_tool_is_asked_for_the_schema_in_words(choice: Any) -> None:
    request = asking(output=SCHEMA, tools=(ToolSpec("weather"),), settings={"tool_choice": choice})
    body = await sent(request, NEWER)
    assert body["generationConfig"] == {}
    assert "Your final answer is JSON" in body["systemInstruction"]["parts"][0]["text"]


async def test_images_of_a_user() -> None:
    images = (
        ImagePart(b"pixel"),
        ImagePart(url="https://x.org/a.jpg?size=2"),
        ImagePart(url="gs://bucket/a", media_type="image/webp"),
        ImagePart(url=f"data:image/gif;base64,{PIXEL['data']}"),
    )
    found = await contents(Message("user", (TextPart("Look"), *images)))
    assert found[0]["parts"] == [
        {"text": "Look"},
        {"inlineData": PIXEL},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.org/a.jpg?size=2"}},
        {"fileData": {"mimeType": "image/webp", "fileUri": "gs://bucket/a"}},
        {"inlineData": {"mimeType": "image/gif", "data": PIXEL["data"]}},
    ]


CALLED = Message(
    "assistant",
    (
        ThinkingPart("Hm.", vendor="google"),
        TextPart("I look."),
        ThinkingPart("", "c2ln", vendor="google"),
        ToolCallPart("weather", '{"city": "Oslo"}', "s/1/0", "fc1"),
        ToolCallPart("weather", '{"city": "Rome"}', "s/1/1", "fc2"),
    ),
)
RESULTS = Message(
    "tool",
    (
        ToolResultPart("s/1/1", "weather", (TextPart("hot"),)),
        ToolResultPart("s/1/0", "weather", (TextPart("no such city"),), "error"),
    ),
)


async def test_calls_and_their_results() -> None:
    assert await contents(user("Hi"), CALLED, RESULTS, user("And?")) == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "I look."},
                {
                    "functionCall": {"name": "weather", "args": {"city": "Oslo"}, "id": "fc1"},
                    "thoughtSignature": "c2ln",
                },
                {"functionCall": {"name": "weather", "args": {"city": "Rome"}, "id": "fc2"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "weather", "response": {"output": "hot"}, "id": "fc2"}},
                {"functionResponse": {"name": "weather", "response": {"error": "no such city"}, "id": "fc1"}},
            ],
        },
        {"role": "user", "parts": [{"text": "And?"}]},
    ]


async def test_calls_without_an_id_get_one_that_stays_the_same() -> None:
    calls = Message("assistant", tuple(ToolCallPart("roll", "{}", f"s/1/{at}") for at in range(2)))
    results = Message("tool", tuple(ToolResultPart(f"s/1/{at}", "roll") for at in (1, 0)))
    first = await contents(user("Hi"), calls, results)
    ids = [part["functionCall"]["id"] for part in first[1]["parts"]]
    assert len(set(ids)) == 2
    assert [part["functionResponse"]["id"] for part in first[2]["parts"]] == ids[::-1]
    assert await contents(user("Hi"), calls, results) == first


async def test_calls_of_another_model_say_so_to_a_newer_one() -> None:
    foreign = Message(
        "assistant",
        (
            ThinkingPart("Mine.", "secret", vendor="anthropic"),
            OpaquePart("anthropic", {"type": "server_tool_use"}),
            ToolCallPart("roll", "{}", "s/1/0", "toolu_1"),
            ToolCallPart("roll", "no json", "s/1/1", "toolu_2"),
        ),
    )
    results = Message("tool", (ToolResultPart("s/1/0", "roll"), ToolResultPart("s/1/1", "roll")))
    told = ("toolu_1", {}), ("toolu_2", {"INVALID_JSON": "no json"})
    calls = [{"functionCall": {"name": "roll", "args": args, "id": id}} for id, args in told]
    older = await contents(user("Hi"), foreign, results)
    assert older[1]["parts"] == calls
    assert [part["functionResponse"]["id"] for part in older[2]["parts"]] == ["toolu_1", "toolu_2"]
    newer = await contents(user("Hi"), foreign, results, model=NEWER)
    assert newer[1]["parts"] == [calls[0] | {"thoughtSignature": UNSIGNED}, calls[1]]
    assert await contents(user("Hi"), foreign, results, model="eu.gemini-3.5-flash") == newer
    assert await contents(user("Hi"), foreign, results, model="au.gemini-2.5-flash") == older
    other = await contents(user("Hi"), foreign, results, model="models/gemma-4")
    assert other[1]["parts"] == calls


async def test_a_call_comes_after_what_somebody_said_and_not_after_another_answer() -> None:
    """As Gemini wants it: a compaction may leave a call at the beginning, and a model may go on."""
    call = {"functionCall": {"name": "roll", "args": {}, "id": "c"}}
    made = Message("assistant", (ToolCallPart("roll", "{}", "s/1/0", "c"),))
    said = Message("assistant", (TextPart("Let me see."),))
    result = Message("tool", (ToolResultPart("s/1/0", "roll"),))
    assert [content["role"] for content in await contents(made, result)] == ["user", "model", "user"]
    assert (await contents(made, result))[0]["parts"] == [{"text": "."}]
    joined = await contents(user("Hi"), said, made, result)
    assert [content["role"] for content in joined] == ["user", "model", "user"]
    assert joined[1]["parts"] == [{"text": "Let me see."}, call]
    assert [content["role"] for content in await contents(said, user("Hi"), user("Ho"))] == ["model", "user", "user"]
    assert await contents() == [{"parts": [{"text": "."}], "role": "user"}]


async def test_results_in_several_messages_are_those_of_one_step() -> None:
    looked = Message("assistant", (ToolCallPart("look", "{}", "1", "a"), ToolCallPart("look", "{}", "2", "b")))
    one = Message("tool", (ToolResultPart("1", "look", (ImagePart(b"pixel"),)),))
    other = Message("tool", (ToolResultPart("2", "look", (TextPart("none"),)),))
    told = await contents(user("Hi"), looked, one, other, user("Well?"))
    assert [next(iter(part)) for part in told[2]["parts"]] == ["functionResponse", "functionResponse", "inlineData"]
    assert told[3:] == [{"parts": [{"text": "Well?"}], "role": "user"}]


async def test_images_in_results() -> None:
    looked = Message("assistant", (ToolCallPart("look", "{}", "1", "a"), ToolCallPart("look", "{}", "2", "b")))
    sound = OpaquePart("google", {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}})
    seen = Message(
        "tool",
        (
            ToolResultPart("1", "look", (TextPart("see"), ImagePart(b"pixel"), sound)),
            ToolResultPart("2", "look", (TextPart("none"),)),
        ),
    )
    first = {"name": "look", "response": {"output": "see"}, "id": "a"}
    second = {"name": "look", "response": {"output": "none"}, "id": "b"}
    newer = (await contents(user("Hi"), looked, seen, model=NEWER))[2]["parts"]
    files = [{"inlineData": PIXEL}, sound.data]
    assert newer == [{"functionResponse": first | {"parts": files}}, {"functionResponse": second}]
    older = (await contents(user("Hi"), looked, seen))[2]["parts"]
    assert older == [{"functionResponse": first}, {"functionResponse": second}, *files]


async def test_a_signature_whose_part_is_gone_stands_for_itself() -> None:
    said = Message("assistant", (ThinkingPart("", "c2ln", vendor="google"), ThinkingPart("", "Zm9v", vendor="google")))
    found = await contents(user("Hi"), said)
    assert found[1]["parts"] == [{"text": "", "thoughtSignature": "c2ln"}, {"text": "", "thoughtSignature": "Zm9v"}]


async def test_an_answer_that_says_nothing_is_left_out_and_an_empty_question_is_not() -> None:
    empty = Message("assistant", (TextPart(""), ThinkingPart("Hm.", vendor="openai")))
    assert await contents(user(""), empty, user("Hi")) == [
        {"role": "user", "parts": [{"text": ""}]},
        {"role": "user", "parts": [{"text": "Hi"}]},
    ]


async def test_a_conversation_that_grows_is_sent_as_if_it_were_new() -> None:
    server = Server(*[answer({"text": "ok"})] * 4)
    model = server.model()
    messages = [user("Hi"), CALLED, RESULTS, user("And?")]
    for length in (1, 3, 4):
        await model.reply(ModelRequest("", Messages(messages[:length])))
    changed = [*messages[:3], user("Or?")]
    await model.reply(ModelRequest("", Messages(changed)))
    for asked, said in zip(server.asked, [messages[:1], messages[:3], messages, changed], strict=True):
        assert asked["contents"] == await contents(*said)


async def test_what_the_user_adds_does_not_stay() -> None:
    server = Server(answer({"text": "ok"}), answer({"text": "ok"}))
    model, tools = server.model(), (ToolSpec("weather"),)
    more = {"generationConfig": {"responseJsonSchema": {"title": "T"}}, "tools": [{"codeExecution": {}}]}
    await model.reply(asking(output=SCHEMA, settings={"extra": more}))
    await model.reply(asking(output=SCHEMA, tools=tools))
    assert server.asked[0]["generationConfig"]["responseJsonSchema"] == SCHEMA | {"title": "T"}
    assert [list(tool) for tool in server.asked[1]["tools"]] == [["functionDeclarations"]]


PLACES = [
    ("gemini-2.5-flash", "models/gemini-2.5-flash"),
    ("models/gemini-2.5-flash", "models/gemini-2.5-flash"),
    ("tunedModels/mine", "tunedModels/mine"),
]


@pytest.mark.parametrize(("model", "path"), PLACES)
async def test_where_a_model_is_asked(model: str, path: str) -> None:
    server = Server(answer({"text": "ok"}))
    await server.model(model).reply(asking())
    assert str(server.requests[0].url) == f"https://generativelanguage.googleapis.com/v1beta/{path}:generateContent"
