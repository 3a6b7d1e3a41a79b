"""Documents, sound, video and uploaded files: what each vendor is sent, what is refused, and what becomes a note."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from windlass import Agent, AudioPart, DocumentPart, FilePart, ImagePart, VideoPart, tool
from windlass.errors import ConnectionFailed, UnsupportedPart
from windlass.messages import Message, Messages, ModelRequest, TextPart, ToolCallPart, ToolResultPart, user
from windlass.models import open_model
from windlass.outcomes import Failed
from windlass.testing import Cassette, ScriptedModel, calls, says
from windlass.testing.scenes import said

from .test_costs import bedrock, chat, claude, gemini, responses
from .wires import CHAT, CLAUDE, Vendor, _exchange

PDF = DocumentPart(b"pdf", name="a_paper.pdf")
NOTES = DocumentPart(b"a note", media_type="text/plain", name="notes.txt")
REMOTE = DocumentPart(url="https://x.org/p.pdf")
SOUND = AudioPart(b"wav")
FILM = VideoPart(b"mp4")
B64 = {PDF: "cGRm", SOUND: "d2F2", FILM: "bXA0"}


def mistral(http: Any, model: str) -> Any:
    return open_model(
        f"mistral:{model}", client=AsyncOpenAI(api_key="k", base_url="https://api.mistral.ai/v1", http_client=http)
    )


def vllm(http: Any, model: str) -> Any:
    client = AsyncOpenAI(api_key="k", base_url="http://localhost:8000/v1", http_client=http)
    return open_model(f"openai:{model}", client=client)


OPENED: dict[str, tuple[Any, str]] = {
    "openai": (chat, "gpt-5"),
    "openai-responses": (responses, "gpt-5"),
    "anthropic": (claude, "claude-sonnet-4-5"),
    "google": (gemini, "gemini-2.5-flash"),
    "bedrock": (bedrock, CLAUDE),
    "mistral": (mistral, "m"),
    "compatible": (vllm, "qwen"),
}


async def sent(vendor: str, *messages: Message) -> Any:
    """The body that a model sends."""
    bodies: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        raise httpx2.ConnectError("there is no server")

    opened, model = OPENED[vendor]
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        with pytest.raises(ConnectionFailed):
            await opened(http, model).reply(ModelRequest("", Messages(messages)))
    return bodies[0]


def content(body: Any) -> list[Any]:
    """The content of the last message."""
    row = body.get("messages") or body.get("contents") or body.get("input")
    last = row[-1]
    found: list[Any] = last.get("content") or last.get("parts")
    return [
        {name: item[name] for name in item if name != "cache_control"} for item in found if "cachePoint" not in item
    ]


def base64_source(media_type: str, data: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": data}


# By vendor: the block of each part, or None if it is refused.
BLOCKS: dict[str, dict[Any, Any]] = {
    "openai": {
        PDF: {"type": "file", "file": {"filename": "a_paper.pdf", "file_data": "data:application/pdf;base64,cGRm"}},
        REMOTE: None,
        SOUND: {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
        AudioPart(b"wav", media_type="audio/mpeg"): {
            "type": "input_audio", "input_audio": {"data": "d2F2", "format": "mp3"},
        },
        AudioPart(b"wav", media_type="audio/flac"): None,
        AudioPart(url="https://x.org/a.wav"): None,
        FILM: None,
        FilePart("file-1", "openai"): {"type": "file", "file": {"file_id": "file-1"}},
        FilePart("file-1", "openai", "image/png"): None,
        FilePart("file-1", "anthropic"): None,
    },
    "openai-responses": {
        PDF: {"type": "input_file", "filename": "a_paper.pdf", "file_data": "data:application/pdf;base64,cGRm"},
        REMOTE: {"type": "input_file", "file_url": "https://x.org/p.pdf"},
        SOUND: None,
        FILM: None,
        FilePart("file-1", "openai"): {"type": "input_file", "file_id": "file-1"},
        FilePart("file-1", "openai", "image/png"): {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        FilePart("file-1", "google"): None,
    },
    "anthropic": {
        PDF: {"type": "document", "source": base64_source("application/pdf", "cGRm"), "title": "a_paper.pdf"},
        NOTES: {
            "type": "document", "title": "notes.txt",
            "source": {"type": "text", "media_type": "text/plain", "data": "a note"},
        },
        REMOTE: {"type": "document", "source": {"type": "url", "url": "https://x.org/p.pdf"}},
        DocumentPart(b"doc", media_type="application/msword"): None,
        SOUND: None,
        FILM: None,
        FilePart("file_1", "anthropic"): {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        FilePart("f", "anthropic", "image/png"): {"type": "image", "source": {"type": "file", "file_id": "f"}},
        FilePart("file_1", "openai"): None,
    },
    "google": {
        PDF: {"inlineData": {"mimeType": "application/pdf", "data": "cGRm"}},
        REMOTE: {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x.org/p.pdf"}},
        SOUND: {"inlineData": {"mimeType": "audio/wav", "data": "d2F2"}},
        FILM: {"inlineData": {"mimeType": "video/mp4", "data": "bXA0"}},
        VideoPart(url="https://x.org/v.webm"): {
            "fileData": {"mimeType": "video/webm", "fileUri": "https://x.org/v.webm"},
        },
        FilePart("https://g.org/files/1", "google", "video/mp4"): {
            "fileData": {"mimeType": "video/mp4", "fileUri": "https://g.org/files/1"},
        },
        FilePart("file-1", "openai"): None,
    },
    "bedrock": {
        PDF: {"document": {"format": "pdf", "name": "a paper", "source": {"bytes": "cGRm"}}},
        NOTES: {"document": {"format": "txt", "name": "notes", "source": {"bytes": "YSBub3Rl"}}},
        REMOTE: None,
        DocumentPart(url="s3://b/p.pdf"): {
            "document": {"format": "pdf", "source": {"s3Location": {"uri": "s3://b/p.pdf"}}, "name": "document"},
        },
        ImagePart(url="https://x.org/y.png"): None,
        SOUND: {"audio": {"format": "wav", "source": {"bytes": "d2F2"}}},
        FILM: {"video": {"format": "mp4", "source": {"bytes": "bXA0"}}},
        VideoPart(b"mp4", media_type="video/unheard-of"): None,
        FilePart("file-1", "bedrock"): None,
    },
    "mistral": {
        PDF: {"type": "document_url", "document_url": "data:application/pdf;base64,cGRm"},
        REMOTE: {"type": "document_url", "document_url": "https://x.org/p.pdf"},
        SOUND: {"type": "input_audio", "input_audio": "d2F2"},
        FILM: None,
        FilePart("f1", "mistral"): {"type": "file", "file_id": "f1"},
    },
    "compatible": {
        SOUND: {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
        AudioPart(url="https://x.org/a.wav"): {"type": "audio_url", "audio_url": {"url": "https://x.org/a.wav"}},
        FILM: {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,bXA0"}},
        FilePart("f1", "openai"): None,
    },
}  # fmt: skip
CASES = [
    pytest.param(vendor, part, block, id=f"{vendor}-{type(part).__name__}-{at}")
    for vendor, blocks in BLOCKS.items()
    for at, (part, block) in enumerate(blocks.items())
]


@pytest.mark.parametrize(("vendor", "part", "block"), CASES)
async def test_each_vendor_is_sent_a_part_in_its_own_form_or_it_is_refused(vendor: str, part: Any, block: Any) -> None:
    message = Message("user", (TextPart("Look:"), part))
    if block is not None:
        assert content(await sent(vendor, message))[1] == block
        return
    opened, name = OPENED[vendor]
    model = opened(httpx2.AsyncClient(), name)  # nothing is sent, so nothing is answered
    with pytest.raises(UnsupportedPart, match=f"model={model.name!r} does not accept this part: ") as caught:
        await model.reply(ModelRequest("", Messages([message])))
    assert type(part).__name__ in str(caught.value)
    assert "; it accepts images as bytes" in str(caught.value)
    assert (caught.value.model, caught.value.part, caught.value.retryable) == (model.name, part, False)
    with pytest.raises(UnsupportedPart):
        [_ async for _ in model.stream(ModelRequest("", Messages([message])))]


@pytest.mark.parametrize("vendor", OPENED)
async def test_a_part_of_an_older_message_that_a_vendor_does_not_accept_becomes_a_note(vendor: str) -> None:
    part = FilePart("file-1", "elsewhere", name="paper.pdf")
    call = Message("assistant", (TextPart("I see."), ToolCallPart("look", "{}", "s/1/1")))
    result = Message("tool", (ToolResultPart("s/1/1", "look", (TextPart("Here:"), part)),))
    body = await sent(vendor, Message("user", (TextPart("Look:"), part)), call, result, user("And?"))
    text = json.dumps(body)
    assert text.count("(A document that is not shown here: paper.pdf, application/pdf)") == 2
    assert "file-1" not in text


@pytest.mark.parametrize("vendor", OPENED)
async def test_a_document_in_a_result_reaches_the_model(vendor: str) -> None:
    call = Message("assistant", (ToolCallPart("read", "{}", "s/1/1"),))
    result = Message("tool", (ToolResultPart("s/1/1", "read", (PDF,)),))
    assert "cGRm" in json.dumps(await sent(vendor, user("Read."), call, result))


async def test_audio_in_a_result_comes_after_it_at_bedrock() -> None:
    call = Message("assistant", (ToolCallPart("hear", "{}", "s/1/1"),))
    result = Message("tool", (ToolResultPart("s/1/1", "hear", (TextPart("Hear:"), SOUND)),))
    row = (await sent("bedrock", user("Hear."), call, result))["messages"]
    [told] = [block["toolResult"]["content"] for block in row[2]["content"] if "toolResult" in block]
    assert told == [{"text": "Hear:"}, {"text": "(It is shown below.)"}]
    assert {"audio": {"format": "wav", "source": {"bytes": "d2F2"}}} in row[-1]["content"]


@pytest.mark.parametrize("vendor", ["anthropic", "bedrock", "google"])
async def test_what_another_model_made_is_shown_by_the_user(vendor: str) -> None:
    body = await sent(vendor, user("Write."), Message("assistant", (TextPart("Here:"), PDF)), user("Thanks."))
    assert "cGRm" in json.dumps(body)


def replay(vendor: Vendor, text: str) -> Any:
    scene: Any = type("Scene", (), {"streamed": False, "ending": "ends"})
    return _exchange(vendor, scene, vendor.path(False), said(TextPart(text)))


async def test_a_turn_with_a_part_that_the_vendor_does_not_accept_fails_and_the_session_goes_on() -> None:
    with Cassette([replay(CHAT, "Hello.")]) as cassette:
        agent = Agent(chat(cassette.client(), "m"))
        result = await agent.run(["Watch this:", FILM], session="s")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.type == "UnsupportedPart"
        with pytest.raises(UnsupportedPart, match="does not accept this part: VideoPart"):
            _ = result.text
        assert not cassette.requests
        assert (await agent.run("Never mind. Hello!", session="s")).text == "Hello."
    assert "A video that is not shown here: video/mp4" in str(cassette.requests[0].body.json)


async def test_a_tool_may_return_any_content() -> None:
    @tool(effect="pure")
    def record() -> list[Any]:
        return [TextPart("Listen:"), SOUND, NOTES]

    result = await Agent(ScriptedModel(calls("record"), says("Nice.")), tools=[record]).run("Go.")
    part = result.messages[2].parts[0]
    assert isinstance(part, ToolResultPart)
    assert part.content == (TextPart("Listen:"), SOUND, NOTES)
