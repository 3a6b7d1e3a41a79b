"""Content other than text: made from files, given in a list, recorded, masked and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, AudioPart, DocumentPart, FilePart, ImagePart, Message, TextPart, TurnStarting, VideoPart
from windlass.context.budget import Counter
from windlass.masking import Mask
from windlass.messages import as_message
from windlass.records import MASK, MessageAdded, decode, encode
from windlass.testing import ScriptedModel, says

PNG = b"\x89PNG\r\n\x1a\nrest"
CONTENT: list[tuple[Any, str, bytes, str]] = [
    (ImagePart, "a.bin", PNG, "image/png"),
    (ImagePart, "a.png", b"\xff\xd8\xff\xe0", "image/jpeg"),  # the content counts, not the name
    (ImagePart, "a", b"GIF89a", "image/gif"),
    (ImagePart, "a", b"RIFF1234WEBPVP8", "image/webp"),
    (ImagePart, "a.svg", b"<svg/>", "image/svg+xml"),
    (DocumentPart, "a", b"%PDF-1.7", "application/pdf"),
    (DocumentPart, "a.md", b"# Hi", "text/markdown"),
    (DocumentPart, "a.unheard-of", b"plain words", "text/plain"),
    (DocumentPart, "a.docx", b"PK\x03\x04\0",
     "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    (AudioPart, "a", b"RIFF1234WAVEfmt", "audio/wav"),
    (AudioPart, "a.wav", b"raw", "audio/wav"),
    (AudioPart, "a", b"ID3\x04", "audio/mpeg"),
    (AudioPart, "a", b"fLaC", "audio/flac"),
    (AudioPart, "a.webm", b"\x1aE\xdf\xa3", "audio/webm"),
    (AudioPart, "a.m4a", b"0000ftypM4A ", "audio/mp4"),
    (VideoPart, "a", b"0000ftypisom", "video/mp4"),
    (VideoPart, "a.webm", b"\x1aE\xdf\xa3", "video/webm"),
]  # fmt: skip
PARTS = [
    ImagePart(PNG, origin="me"),
    DocumentPart(b"%PDF", name="a.pdf"),
    DocumentPart(url="https://x.org/a.pdf"),
    AudioPart(b"wav", media_type="audio/mpeg"),
    VideoPart(url="https://x.org/a.mp4", origin="me"),
    FilePart("file-1", "openai", "image/png", "a.png", "me"),
]


@pytest.mark.parametrize(("kind", "name", "data", "media_type"), CONTENT)
def test_a_part_is_made_from_a_file_and_its_type_is_guessed(
    kind: Any, name: str, data: bytes, media_type: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    part = kind.from_file(path)
    assert (part.data, part.media_type) == (data, media_type)
    assert kind.from_file(str(path)) == part == kind.from_bytes(data, name=name)
    assert getattr(part, "name", name) == name
    assert kind.from_bytes(b"?", media_type="x/y").media_type == "x/y"


def test_a_file_of_another_kind_is_refused_and_the_right_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "paper.pdf"
    path.write_bytes(b"%PDF-1.7")
    with pytest.raises(
        ValueError, match=r"'paper.pdf' is application/pdf, which is not the content of ImagePart: use DocumentPart"
    ):
        ImagePart.from_file(path)
    with pytest.raises(ValueError, match=r"a file of 11 bytes is image/png, .* of VideoPart: use ImagePart"):
        VideoPart.from_bytes(PNG[:11])
    with pytest.raises(ValueError, match=r"the media type of a file of 2 bytes cannot be guessed: pass media_type=…"):
        DocumentPart.from_bytes(b"\xfe\xff")
    with pytest.raises(FileNotFoundError):
        AudioPart.from_file(tmp_path / "none.wav")


def test_a_list_of_texts_and_parts_is_a_message() -> None:
    image = ImagePart(PNG)
    assert as_message(["Look:", image]) == as_message(("Look:", image)) == Message("user", (TextPart("Look:"), image))
    assert as_message([TextPart("a"), "b"]).text == "ab"
    for wrong, told in (
        ([], "needs at least one"),
        (5, "expected a str, a Message or a list of texts and content parts, got int"),
        (image, "got ImagePart: put it into a list"),
        ([5], "expected text or content parts, got int"),
        ([Message("user")], "expected text or content parts, got Message"),
    ):
        with pytest.raises(TypeError, match=told):
            as_message(wrong)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
async def test_every_way_of_running_takes_a_list(part: Any) -> None:
    given = ["Look:", part]
    opened = Message("user", (TextPart("Look:"), part))
    agent = Agent(ScriptedModel(*[says("Nice.")] * 6))
    assert (await agent.run(given)).messages[0].replace(id="") == opened
    async with agent.stream(given) as stream:
        async for _ in stream:
            pass
    assert stream.result.messages[0].replace(id="") == opened
    states = [state async for state in agent.iterate(given)]
    assert states[-1].messages[0].replace(id="") == opened
    async with agent.session("s") as session:
        await session.run(given)
        await agent.steer("s", given)
        await session.run("And?")
    assert [message.parts for message in (await agent.state("s")).messages].count(opened.parts) == 2
    with pytest.raises(TypeError, match="the list is empty"):
        await agent.run([])


def test_run_sync_takes_a_list() -> None:
    assert Agent(ScriptedModel("Nice.")).run_sync(["Look:", PARTS[0]]).text == "Nice."


async def test_a_side_call_takes_a_list() -> None:
    other = ScriptedModel("A cat.", name="other")
    agent = Agent(ScriptedModel("Nice."), models=[other])

    @agent.inject(TurnStarting)
    async def look(event: Any, turn: Any) -> str:
        return str((await turn.ask(other.name, ["What is it?", PARTS[0]])).text)

    assert (await agent.run("Hi")).text == "Nice."
    assert other.requests[0].messages[0].parts == (TextPart("What is it?"), PARTS[0])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_comes_back_from_a_log(part: Any) -> None:
    record = MessageAdded(Message("user", (TextPart("a"), part)))
    assert decode(encode(record)) == record
    assert record.message.text == "a"


def test_secrets_are_masked_in_names_addresses_and_texts_and_never_in_binary_content() -> None:
    mask = Mask(["s3cr3t"])
    binary = b"%PDF s3cr3t"
    parts = (
        DocumentPart(b"my s3cr3t", media_type="text/plain", name="s3cr3t.txt"),
        DocumentPart(binary),
        AudioPart(url="https://x.org/?key=s3cr3t"),
        FilePart("file-1", "openai", name="s3cr3t"),
    )
    masked = mask(MessageAdded(Message("user", parts)))
    assert masked.masked
    text, document, sound, file = masked.message.parts
    assert text == DocumentPart(f"my {MASK}".encode(), media_type="text/plain", name=f"{MASK}.txt")
    assert document == DocumentPart(binary)
    assert isinstance(sound, AudioPart)
    assert sound.url == f"https://x.org/?key={MASK}"
    assert isinstance(file, FilePart)
    assert file.name == MASK


def test_a_secret_that_the_base64_of_a_file_spells_by_chance_breaks_nothing() -> None:
    record = MessageAdded(Message("user", (TextPart("JVBERi is here"), DocumentPart(b"%PDF-1.7"))))
    masked = Mask(["JVBERi"])(record)
    assert masked.message.parts == (TextPart(f"{MASK} is here"), DocumentPart(b"%PDF-1.7"))


def test_every_part_has_an_estimated_size() -> None:
    count = Counter().part
    assert count(DocumentPart(b"four" * 100, media_type="text/plain")) == count(TextPart("four" * 100))
    assert count(DocumentPart(b"x" * 200_000)) == 10_001
    assert count(DocumentPart(url="https://x.org")) == count(FilePart("f", "openai")) == 3_000
    assert count(AudioPart(b"x" * 500_000)) == 1_001
    assert count(VideoPart(url="https://x.org")) == count(FilePart("f", "google", "video/mp4")) == 10_000
    assert count(ImagePart(PNG)) == count(FilePart("f", "openai", "image/png")) == 800
    assert count(FilePart("f", "google", "audio/wav")) == count(AudioPart(url="https://x.org")) == 1_000
