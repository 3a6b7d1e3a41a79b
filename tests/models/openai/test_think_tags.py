"""Thoughts between tags become thinking parts, whole and streamed, wherever the stream is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from tests.models.openai.serving import Server, asking, events, heard
from tests.models.openai.test_chat import answer, chunk

from windlass import Agent, TextPart, ThinkingPart
from windlass.errors import ConfigError
from windlass.messages import Message, Messages, ModelRequest, ToolCallPart, user
from windlass.models import open_model
from windlass.models.openai.chat.tags import TagSplitter, split_tags
from windlass.models.openai.dialects import DIALECTS, THINK_TAGS

ON = sorted({*DIALECTS} - {"xai"})
SPLIT: list[tuple[str, list[tuple[str, str]]]] = [
    ("<think>Hm.</think>Yes.", [("tagged", "Hm."), ("text", "Yes.")]),
    ("<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", [("tagged", "Hm.\n\nSo."), ("text", "Yes.\n")]),
    (" \n<think>Hm.</think> Yes.", [("tagged", "Hm."), ("text", "Yes.")]),
    ("<think>\n\n</think>\n\nYes.", [("text", "Yes.")]),
    ("<think>Hm.</think>", [("tagged", "Hm.")]),
    ("<think>Hm. a </thin", [("tagged", "Hm. a </thin")]),
    ("<think>Hm. ", [("tagged", "Hm.")]),
    ("<think>a < b </ c</think>Yes.", [("tagged", "a < b </ c"), ("text", "Yes.")]),
    ("Write <think>so</think>.", [("text", "Write <think>so</think>.")]),
    ("<think>a</think>b <think>c</think>", [("tagged", "a"), ("text", "b <think>c</think>")]),
    ("<thinking>", [("text", "<thinking>")]),
    ("<thi", [("text", "<thi")]),
    (" ", [("text", " ")]),
    ("", []),
]


def joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pieces, with neighbours of one kind joined."""
    found: list[tuple[str, str]] = []
    for kind, text in pieces:
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + text)
        else:
            found.append((kind, text))
    return found


@pytest.mark.parametrize(("text", "pieces"), SPLIT)
def test_only_an_answer_that_begins_with_the_tag_has_a_thought(text: str, pieces: Any) -> None:
    assert joined(split_tags(text, THINK_TAGS)) == pieces
    one_by_one = TagSplitter(THINK_TAGS)
    letters = [piece for letter in text for piece in one_by_one.feed(letter)]
    assert joined([*letters, *one_by_one.end()]) == pieces
    assert split_tags(text, None) == ([("text", text)] if text else [])


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "Hm", "Yes"])), st.data())
def test_it_does_not_matter_where_the_text_is_cut(words: list[str], data: Any) -> None:
    text = "".join(words)
    splitter, pieces, rest = TagSplitter(THINK_TAGS), [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces += [*splitter.feed(rest[:size])]
        rest = rest[size:]
    assert joined([*pieces, *splitter.end()]) == joined(split_tags(text, THINK_TAGS))


def opened(vendor: str, server: Server, **options: Any) -> Any:
    client = AsyncOpenAI(api_key="k", base_url="http://x.org/v1", http_client=server.http)
    return open_model(f"{vendor}:m", client=client, **options)


PARTS = (ThinkingPart("Hm. So."), TextPart("Yes."))


@pytest.mark.parametrize("vendor", [*ON, "openai"])
async def test_compatible_servers_show_thoughts_as_thinking_parts_whole_and_streamed(vendor: str) -> None:
    pieces = ["<thi", "nk>\nHm", ". So.", "\n</", "think>\n", "\nYe", "s."]
    server = Server(
        answer(content="<think>\nHm. So.\n</think>\n\nYes."), events(*[chunk(content=p) for p in pieces], chunk("stop"))
    )
    model = opened(vendor, server)
    reply = await model.reply(asking())
    assert reply.message.parts == PARTS
    assert reply.text == "Yes."
    deltas, streamed = await heard(model, asking())
    assert streamed.message.parts == PARTS
    assert [(type(delta).__name__, delta.text) for delta in deltas] == [
        ("ThinkingDelta", "Hm"), ("ThinkingDelta", ". So."), ("TextDelta", "Ye"), ("TextDelta", "s."),
    ]  # fmt: skip


async def test_openai_itself_and_the_option_decide() -> None:
    said = "<think>Hm. So.</think>Yes."
    server = Server(*[answer(content=said)] * 5, answer(content="[T]Hm. So.[/T]Yes."))
    assert (await open_model("openai:m", client=server.client).reply(asking())).text == said
    assert (await open_model("openai:m", client=server.client, think_tags=True).reply(asking())).text == "Yes."
    assert (await opened("groq", server, think_tags=False).reply(asking())).text == said
    assert (await opened("xai", server).reply(asking())).text == said
    assert (await opened("xai", server, think_tags=True).reply(asking())).message.parts == PARTS
    assert (await opened("vllm", server, think_tags=("[T]", "[/T]")).reply(asking())).message.parts == PARTS
    with pytest.raises(ConfigError, match=r"think_tags='<think>' must be True, False or a pair of tags"):
        opened("vllm", server, think_tags="<think>")


async def test_a_thought_between_tags_is_not_sent_back() -> None:
    server = Server(answer(content="<think>Hm. So.</think>Yes."), answer(content="Bye."))
    agent = Agent(opened("vllm", server))
    await agent.run("Hi", session="s")
    await agent.run("And?", session="s")
    assert server.asked[1]["messages"][1] == {"role": "assistant", "content": "Yes."}


async def test_a_thought_may_come_before_a_call_or_be_cut_off() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    server = Server(
        answer("tool_calls", content="<think>Hm.</think>", tool_calls=[call]),
        events(chunk(content="<think>Hm."), chunk(tool_calls=[{"index": 0, **call}]), chunk("tool_calls")),
        events(chunk(content="<think>Hm.\n"), chunk("length")),
        answer("length", content="<think>Hm.\n"),
    )
    model = opened("vllm", server)
    both = (ThinkingPart("Hm."), ToolCallPart("add", "{}", vendor_id="c"))
    assert (await model.reply(asking())).message.parts == both
    assert (await heard(model, asking()))[1].message.parts == both
    for reply in ((await heard(model, asking()))[1], await model.reply(asking())):
        assert (reply.message.parts, reply.finish) == ((ThinkingPart("Hm."),), "length")


async def test_json_after_a_thought_is_an_output() -> None:
    server = Server(answer(content='<think>Which one?</think>\n{"n": 4}'))
    assert (await Agent(opened("vllm", server), output=dict[str, int]).run("Hi")).output == {"n": 4}


async def test_reasoning_in_a_field_of_its_own_stays_apart() -> None:
    told = answer(content="<think>Hm.</think>Yes.", reasoning_content="First.")
    server = Server(told, answer(content="Bye."))
    model = opened("vllm", server)
    reply = await model.reply(asking())
    assert reply.message.parts == (ThinkingPart("First.", vendor="vllm"), ThinkingPart("Hm."), TextPart("Yes."))
    await model.reply(ModelRequest("", Messages([user("Hi"), Message("assistant", reply.message.parts), user("?")])))
    sent = server.asked[1]["messages"][1]
    assert sent == {"role": "assistant", "content": "Yes.", "reasoning_content": "First."}
