"""OpenAI's Chat Completions."""

from __future__ import annotations

from typing import Any

from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

from .parts import (
    BadConversation,
    Ids,
    Wire,
    call_of,
    decoded,
    described,
    encoded,
    image,
    items,
    mapping,
    note,
    spoken_parts,
    text,
    texts,
    url_of,
)

_SOUNDS = {"mp3": "audio/mpeg", "wav": "audio/wav"}


def read(given: Any, names: dict[str, str]) -> str | list[Message]:
    """The messages that one entry stands for, or system text. `names` has the tools by the id of the call."""
    entry = mapping(given, "a message")
    role = entry.get("role")
    if role in ("system", "developer"):
        return texts(entry.get("content"), "the system text")
    if role == "user":
        return [Message("user", _content(entry.get("content")))]
    if role == "assistant":
        return [Message("assistant", (*_answer(entry), *_calls(entry, names)))]
    if role == "tool":
        id = text(entry.get("tool_call_id"), "tool_call_id")
        return [Message("tool", (ToolResultPart(id, names.get(id, ""), _content(entry.get("content"))),))]
    raise BadConversation(f"the role {role!r} is not one of system, developer, user, assistant, tool")


def _answer(entry: Any) -> list[Part]:
    parts: list[Part] = [*_content(entry.get("content"))]
    if entry.get("refusal"):
        parts.append(TextPart(text(entry["refusal"], "a refusal")))
    return parts


def _calls(entry: Any, names: dict[str, str]) -> list[ToolCallPart]:
    if entry.get("function_call"):
        raise BadConversation("function_call is not supported; write it as one of tool_calls")
    calls: list[ToolCallPart] = []
    for one in items(entry.get("tool_calls"), "tool_calls"):
        call = mapping(one, "a call")
        function = mapping(call.get("function"), "the function of a call")
        calls.append(call_of(call.get("id"), function.get("name"), function.get("arguments"), names))
    return calls


def _content(content: Any) -> tuple[Any, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple([part_of(mapping(one, "a part of the content")) for one in items(content, "the content")])


def part_of(part: Any) -> Part:
    """A part of the content of Chat Completions, or of an item of Responses."""
    kind = part.get("type")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return TextPart(text(part.get("text", part.get("refusal")), "a text"))
    if kind == "image_url":
        return image(mapping(part.get("image_url"), "image_url").get("url"))
    if kind == "input_image":
        return image(part.get("image_url"))
    if kind == "input_file":
        return _file(part)
    if kind == "input_audio":
        sound = mapping(part.get("input_audio"), "input_audio")
        name = text(sound.get("format", "wav"), "the format of audio")
        return AudioPart(decoded(sound.get("data")), media_type=_SOUNDS.get(name, f"audio/{name}"))
    if kind == "file":
        return _file(mapping(part.get("file"), "file"))
    raise BadConversation(f"a part of the type {kind!r} is not supported")


def _file(file: Any) -> Part:
    if file.get("file_id"):
        return FilePart(text(file["file_id"], "file_id"), "openai", name=file.get("filename"))
    if file.get("file_url"):
        return DocumentPart(url=text(file["file_url"], "file_url"), name=file.get("filename"))
    head, _, data = text(file.get("file_data"), "file_data").partition(",")
    media_type = head.removeprefix("data:").partition(";")[0] if data else "application/pdf"
    return DocumentPart(decoded(data or head), media_type=media_type, name=file.get("filename"))


def system(text: str) -> list[Wire]:
    """The system text as messages."""
    return [{"role": "system", "content": text}]


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list."""
    results = [part for part in message.parts if type(part) is ToolResultPart]
    wire += [{"role": "tool", "tool_call_id": ids.result(r), "content": described(r.content)} for r in results]
    if message.role == "tool":
        return
    shown = spoken_parts(message)
    entry: Wire = {"role": message.role, "content": [_wire(part) for part in shown]}
    if all(type(part) is TextPart for part in shown):
        entry["content"] = message.text
    if message.tool_calls:
        entry["content"] = entry["content"] or None
        entry["tool_calls"] = [
            {"id": ids.call(call), "type": "function", "function": {"name": call.name, "arguments": call.json}}
            for call in message.tool_calls
        ]
    wire.append(entry)


def _wire(part: Part) -> Wire:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text}
    if type(part) is ImagePart:
        return {"type": "image_url", "image_url": {"url": url_of(part)}}
    if type(part) is AudioPart and part.data is not None:
        kind = next((name for name, known in _SOUNDS.items() if known == part.media_type), None)
        sound = {"data": encoded(part.data), "format": kind or part.media_type.rpartition("/")[2]}
        return {"type": "input_audio", "input_audio": sound}
    if type(part) is FilePart and part.vendor == "openai":
        return {"type": "file", "file": {"file_id": part.id, **({"filename": part.name} if part.name else {})}}
    if type(part) is DocumentPart and part.data is not None:
        return {"type": "file", "file": {"filename": part.name or "document", "file_data": url_of(part)}}
    return {"type": "text", "text": note(part)}
