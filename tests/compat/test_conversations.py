"""Conversations of other projects as the history of a session, and back."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import Agent, tool
from windlass.compat.conversations import (
    FORMATS,
    case_of_session,
    eval_lines,
    otel_events,
    read_conversation,
    write_conversation,
)
from windlass.errors import ConfigError
from windlass.evals import load_cases
from windlass.messages import DocumentPart, ImagePart, ThinkingPart, ToolResultPart
from windlass.testing import ScriptedModel, calls, says

OPENAI: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is on it?"},
                                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"name": "x"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"name": "y"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    {"role": "tool", "tool_call_id": "call_2", "content": "8"},
    {"role": "assistant", "content": "Seven and eight."},
]  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is it? 🜁"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0="},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look twice."}], "id": "rs_1",
        "encrypted_content": "gAAA"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"name": "x"}'},
    {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": '{"name": "y"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "7"},
    {"type": "function_call_output", "call_id": "call_2", "output": [
        {"type": "input_text", "text": "8"}, {"type": "input_image", "image_url": "https://example.org/8.png"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seven and eight."}]},
]  # fmt: skip
ANTHROPIC: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "document", "title": "a.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"name": "x"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "7"}],
             "is_error": True},
            {"type": "text", "text": "And?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Seven."}]},
    ],
}  # fmt: skip


@tool(effect="pure", inline=True)
def look(name: str) -> str:
    """Look something up."""
    return "7"


def langchain_messages() -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    return [
        SystemMessage("Be brief."),
        HumanMessage("What is x?"),
        AIMessage("", tool_calls=[{"name": "look", "args": {"name": "x"}, "id": "c1", "type": "tool_call"}]),
        ToolMessage("7", tool_call_id="c1", name="look"),
        AIMessage("Seven."),
    ]


@pytest.mark.parametrize("format", FORMATS)
async def test_a_conversation_goes_into_a_session_on_and_back(format: Any) -> None:
    given = {
        "openai": OPENAI,
        "openai_responses": RESPONSES,
        "anthropic": ANTHROPIC,
        "langchain": langchain_messages(),
    }[format]
    conversation = read_conversation(format, given)
    assert conversation.system == "Be brief."
    model = ScriptedModel(says("Still."))
    agent = Agent(model, tools=[look], system=conversation.system)
    await agent.import_history("s1", conversation.messages)
    result = await agent.run("Sure?", session="s1")
    back = write_conversation(format, result.messages, system=conversation.system)
    again = {
        "openai": [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Still."}],
        "openai_responses": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Still."}]},
        ],
        "anthropic": [
            {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Still."}]},
        ],
        "langchain": [
            {"type": "human", "data": {"type": "human", "content": "Sure?"}},
            {"type": "ai", "data": {"type": "ai", "content": "Still.", "tool_calls": []}},
        ],
    }
    assert back[-2:] == again[format]
    if format == "openai":
        assert back[:-2] == OPENAI
    if format == "openai_responses":
        assert back[:-2] == RESPONSES
    if format == "anthropic":
        assert back[:-2] == ANTHROPIC["messages"]


def test_langchain_reads_what_is_written_for_it() -> None:
    from langchain_core.messages import messages_from_dict, messages_to_dict

    given = langchain_messages()
    conversation = read_conversation("langchain", given)
    assert read_conversation("langchain", messages_to_dict(given)) == conversation
    back = messages_from_dict(write_conversation("langchain", conversation.messages, system=conversation.system))
    assert [(m.type, m.content, getattr(m, "tool_calls", None)) for m in back] == [
        (m.type, m.content, getattr(m, "tool_calls", None)) for m in given
    ]


def test_objects_of_the_sdks_are_read_like_what_they_stand_for() -> None:
    """Programs append the replies of an SDK to their lists as they are."""
    from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
    from openai.types.chat import ChatCompletionMessage
    from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

    said = ChatCompletionMessage.model_validate(OPENAI[2])
    assert read_conversation("openai", [*OPENAI[:2], said, *OPENAI[3:]]) == read_conversation("openai", OPENAI)
    blocks = [
        ThinkingBlock(type="thinking", thinking="hm", signature="sig"),
        TextBlock(type="text", text="I look."),
        ToolUseBlock(type="tool_use", id="toolu_1", name="look", input={"name": "x"}),
    ]
    [message] = read_conversation("anthropic", [{"role": "assistant", "content": blocks}]).messages
    assert message.parts[0] == ThinkingPart("hm", "sig", vendor="anthropic")
    assert (message.text, message.tool_calls[0].arguments) == ("I look.", {"name": "x"})
    reasoning = ResponseReasoningItem(type="reasoning", id="rs_1", summary=[], encrypted_content="gAAA")
    call = ResponseFunctionToolCall(type="function_call", call_id="call_1", name="look", arguments="{}")
    [message] = read_conversation("openai_responses", [reasoning, call]).messages
    assert message.parts[0] == ThinkingPart("", "gAAA", redacted=True, vendor="openai-responses")
    assert message.tool_calls[0].vendor_id == "call_1"


def test_parts_keep_what_they_are() -> None:
    image = read_conversation("openai", OPENAI).messages[0].parts[1]
    assert image == ImagePart(b"\x89PNG\r", media_type="image/png")
    messages = read_conversation("anthropic", ANTHROPIC).messages
    assert messages[0].parts[1] == DocumentPart(b"%PDF", name="a.pdf")
    assert messages[1].parts[0] == ThinkingPart("hm", "sig", vendor="anthropic")
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_items_of_one_reply_are_one_message() -> None:
    messages = read_conversation("openai_responses", RESPONSES).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [type(part).__name__ for part in messages[1].parts] == [
        "ThinkingPart", "OpaquePart", "TextPart", "ToolCallPart", "ToolCallPart"
    ]  # fmt: skip
    assert [part.name for part in messages[2].parts if isinstance(part, ToolResultPart)] == ["look", "look"]


def test_a_short_form_a_refusal_and_hidden_reasoning_are_read() -> None:
    items = [
        {"role": "user", "content": "Help me."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"role": "assistant", "content": "And I will not."},
    ]
    messages = read_conversation("openai_responses", items).messages
    assert [message.text for message in messages] == ["Help me.", "I cannot.", "And I will not."]
    assert messages[1].parts[0] == ThinkingPart("", "gAAA", redacted=True, vendor="openai-responses")
    assert write_conversation("openai_responses", messages)[1] == items[1]
    assert write_conversation("anthropic", messages)[1]["content"][0] == {"type": "text", "text": "I cannot."}


@pytest.mark.parametrize("via", FORMATS)
def test_calls_and_texts_survive_any_format(via: Any) -> None:
    messages = read_conversation("openai", OPENAI).messages
    there = read_conversation(via, write_conversation(via, messages)).messages
    back = write_conversation("openai", there)
    assert [one.get("tool_calls") for one in back if one["role"] == "assistant"] == [
        [{**call, "function": {**call["function"], "arguments": _canonical(call, via)}} for call in one["tool_calls"]]
        if one.get("tool_calls") else None for one in OPENAI if one["role"] == "assistant"
    ]  # fmt: skip
    assert [one["content"] for one in back if one["role"] == "tool"] == ["7", "8"]
    assert back[-1] == OPENAI[-1]
    assert back[0] == OPENAI[1]


def _canonical(call: Any, via: str) -> str:
    """The arguments as a format that keeps them as an object writes them again."""
    arguments: str = call["function"]["arguments"]
    return arguments if via.startswith("openai") else json.dumps(json.loads(arguments), separators=(",", ":"))


@pytest.mark.parametrize(
    ("format", "given", "problem"),
    [
        ("openai", [{"role": "user", "content": "a"}, {"role": "robot"}], "message 1 .* role 'robot'"),
        ("openai", [{"role": "assistant", "function_call": {"name": "f"}}], "function_call is not supported"),
        ("openai_responses", [{"type": 3}], "the type of an item must be a text"),
        ("openai_responses", [{"type": "function_call", "name": "f"}], "the id of a call must be a text"),
        ("openai_responses", [{"role": "robot"}], "role 'robot'"),
        ("openai", "text", "must be a list of messages, not a str"),
        ("anthropic", [{"role": "system", "content": "x"}], "the system text is no message here"),
        (
            "anthropic",
            [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "?"}}]}],
            "base64",
        ),
        ("langchain", [3], "it is a int, not a message of LangChain"),
        ("gemini", [], "'gemini' is not a format"),
    ],
)
def test_what_cannot_be_read_is_named(format: Any, given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_conversation(format, given)


BLOCKS = ["content", "text", "source", "image_url", "url", "media_type", "base64", "file", "file_data", "input"]
KEYS = ["role", "type", "tool_calls", "id", "function", "name", "arguments", "args", "data", "tool_call_id", *BLOCKS]
KINDS = ["text", "image_url", "tool_use", "tool_result", "image", "base64", "file", "data:,", "thinking"]
WORDS = ["user", "assistant", "tool", "system", "human", "ai", *KINDS]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=15,
)


@settings(max_examples=400)
@given(st.sampled_from(FORMATS), st.lists(JSON, max_size=4) | JSON)
def test_any_json_is_a_conversation_or_an_error_that_says_why(format: Any, given: Any) -> None:
    try:
        conversation = read_conversation(format, given)
    except ConfigError:
        return
    for other in FORMATS:
        json.dumps(write_conversation(other, conversation.messages, system=conversation.system))  # type: ignore[arg-type]


# ---------------------------------------------------------------- sessions


async def recorded() -> Any:
    model = ScriptedModel(calls("look", name="x"), says("Seven."), says("Yes."))
    agent = Agent(model, tools=[look], name="bot")
    await agent.run("What is x?", session="s1")
    await agent.run("Sure?", session="s1")
    return await agent.store.read("s1")


async def test_each_reply_of_a_model_is_an_event_of_opentelemetry() -> None:
    events = otel_events("s1", await recorded())
    assert {event["name"] for event in events} == {"gen_ai.client.inference.operation.details"}
    assert [len(event["attributes"]["gen_ai.input.messages"]) for event in events] == [1, 3, 5]
    last = events[-1]["attributes"]
    assert (last["gen_ai.conversation.id"], last["gen_ai.agent.name"]) == ("s1", "bot")
    assert last["gen_ai.output.messages"] == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Yes."}], "finish_reason": "stop"}
    ]
    assert json.loads(json.dumps(events)) == events


async def test_each_turn_is_a_line_for_eval_tools() -> None:
    first, second = eval_lines("s1", await recorded())
    assert first["input"] == [{"role": "user", "content": "What is x?"}]
    assert (first["output"], first["outcome"]) == ("Seven.", "completed")
    assert [message["role"] for message in first["messages"]] == ["assistant", "tool", "assistant"]
    assert second["input"] == [*first["input"], *first["messages"], {"role": "user", "content": "Sure?"}]
    assert second["usage"]["requests"] == 1


async def test_each_turn_is_a_sample_for_inspect() -> None:
    """Inspect has no place for the messages of OpenAI: `json_dataset` of inspect-ai 0.3 reads these."""
    first, second = eval_lines("s1", await recorded(), form="inspect")
    assert first["id"] == "s1/t1"
    assert first["input"] == [{"role": "user", "content": "What is x?"}]
    assert (first["target"], first["metadata"]["outcome"]) == ("Seven.", "completed")
    assert second["input"][1:3] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "function": "look", "arguments": {"name": "x"}, "type": "function"}],
        },
        {"role": "tool", "tool_call_id": "call_1", "function": "look", "content": "7"},
    ]


async def test_what_stopped_a_model_is_told_in_the_words_of_opentelemetry() -> None:
    [first, *_] = otel_events("s1", await recorded())
    assert first["attributes"]["gen_ai.output.messages"][0]["finish_reason"] == "tool_call"


async def test_a_session_is_a_case_that_can_be_run_again(tmp_path: Any) -> None:
    case = case_of_session("s1", await recorded())
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(case), encoding="utf-8")
    [loaded] = load_cases(file)
    assert (loaded.name, loaded.input, loaded.follow_ups) == ("s1", "What is x?", ("Sure?",))
