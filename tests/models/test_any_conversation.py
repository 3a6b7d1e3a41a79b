"""Whatever a conversation holds, and however it came to be: what is kept of it is what a fresh encoder would make."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Messages,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
)
from windlass.models.anthropic.requests import Requests as Anthropic
from windlass.models.bedrock.requests import Requests as Bedrock
from windlass.models.google.settings import Encoder as Google
from windlass.models.openai.chat.encode import ChatEncoder
from windlass.models.openai.dialects import COMPATIBLE, DIALECTS, OPENAI, RESPONSES
from windlass.models.openai.responses.encode import ResponsesEncoder

ENCODERS: dict[str, Callable[[], Any]] = {
    "chat": lambda: ChatEncoder("gpt-5", OPENAI),
    "compatible": lambda: ChatEncoder("kimi", COMPATIBLE.replace(wants_thinking=True)),
    "mistral": lambda: ChatEncoder("mistral-large", DIALECTS["mistral"]),
    "responses": lambda: ResponsesEncoder("gpt-5", RESPONSES),
    "anthropic": lambda: Anthropic("claude-sonnet-4-5"),
    "gemini 2": lambda: Google("gemini-2.5-flash"),
    "gemini 3": lambda: Google("gemini-3-pro"),
    "bedrock, claude": lambda: Bedrock("anthropic.claude-sonnet-4-5"),
    "bedrock, mistral": lambda: Bedrock("mistral.mistral-large-2402"),
    "bedrock, llama": lambda: Bedrock("meta.llama3"),
}
OPAQUE = [
    OpaquePart("openai-compatible", {"thinking_field": "reasoning"}),
    OpaquePart("openai", {"calls": {"v1": {"extra": 1}}}),
    OpaquePart("openai-responses", {"phase": "commentary"}),
    OpaquePart("openai-responses", {"type": "web_search_call", "id": "w"}),
    OpaquePart("anthropic", {"fields": {"citations": [1]}}),
    OpaquePart("anthropic", {"type": "server_tool_use", "id": "s", "name": "w", "input": {}}),
    OpaquePart("google", {"executableCode": {"code": "1"}}),
    OpaquePart("bedrock", {"citations": [{"title": "t"}]}),
]
VENDORS = ["openai-compatible", "openai-responses", "anthropic", "google", "bedrock", "mistral", None]
texts = st.sampled_from(["", " ", "a", "b"]).map(TextPart)
images = st.sampled_from(
    [
        ImagePart(b"x"), ImagePart(url="https://a/b.png"), DocumentPart(b"x"), DocumentPart(url="https://a/b.pdf"),
        DocumentPart(b"x", media_type="text/plain", name="n.txt"), AudioPart(b"x"), AudioPart(url="https://a/b.wav"),
        VideoPart(b"x"), FilePart("f1", "openai"), FilePart("f1", "anthropic", "image/png"),
    ]
)  # fmt: skip
thoughts = st.builds(
    ThinkingPart, st.sampled_from(["", "hm"]), st.sampled_from([None, "sealed", "shown:rs_1"]), st.booleans(),
    vendor=st.sampled_from(VENDORS),
)  # fmt: skip
said = texts | images | thoughts | st.sampled_from(OPAQUE)
shown = st.lists(texts | images | st.sampled_from(OPAQUE), max_size=2).map(tuple)
calls = st.tuples(
    st.sampled_from(["{}", '{"a":1}', "{", ""]),
    st.sampled_from([None, "v1", "toolu_1", "a b|" * 20, "shell_call:c1", "computer_call:c2"]),
)
steps = st.lists(st.tuples(st.lists(said, max_size=3), st.lists(calls, max_size=2), shown, st.booleans()), max_size=5)


def conversation(steps: Any) -> list[Message]:
    """Steps of a user, an answer with calls in the midst of it, and their results."""
    messages: list[Message] = []
    for at, (answer, made, told, asked) in enumerate(steps):
        if asked:
            messages.append(Message("user", told))
        called = [ToolCallPart("look", text, f"c{at}/{n}", vendor_id) for n, (text, vendor_id) in enumerate(made)]
        messages.append(Message("assistant", (*answer[:1], *called, *answer[1:])))
        if called:
            results = tuple(ToolResultPart(call.id, "look", told) for call in called)
            messages.append(Message("tool", results))
    return messages


def body(encoder: Any, messages: Messages) -> Any:
    return encoder.body(ModelRequest("Be kind.", messages), {"extra": {}})


@pytest.mark.parametrize("name", ENCODERS)
@given(steps=steps, changed=st.none() | st.integers(0, 10))
@settings(max_examples=30)
def test_each_step_is_sent_as_if_it_were_the_first(name: str, steps: Any, changed: int | None):
    """A message in the midst may be another at the end, and nothing that was sent before has changed by then."""
    kept, messages, items = ENCODERS[name](), conversation(steps), list[Message]()
    sent: list[tuple[Any, str]] = []

    def check(view: Messages) -> None:
        made = body(kept, view)
        sent.append((made, json.dumps(made)))
        assert sent[-1][1] == json.dumps(body(ENCODERS[name](), Messages(list(view))))

    for message in messages:
        items.append(message)
        check(Messages.sharing(items))
    if changed is not None and changed < len(messages):
        instead = Message(messages[changed].role, (TextPart("instead"),))
        check(Messages([*messages[:changed], instead, *messages[changed + 1 :]]))
        check(Messages.sharing(items))
    assert all(json.dumps(made) == before for made, before in sent)
