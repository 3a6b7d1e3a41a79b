"""OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    thawed,
)

from .parts import (
    FIELDS,
    MESSAGE,
    RESULT,
    BadConversation,
    Ids,
    Reading,
    Wire,
    call_of,
    decoded,
    described,
    encoded,
    image,
    items,
    kept_fields,
    mapping,
    note,
    put_back,
    succeeded,
    text,
    texts,
    url_of,
)

VENDOR = "openai"
REFUSAL = "refusal"
"""The key of an opaque part that marks the text before it as a refusal, in a field of the message or as a part."""

_SOUNDS = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_SENT_BACK = ("audio", "reasoning_details", "annotations")
"""Fields of a reply that the vendor's own encoder knows."""


def read(given: Any, reading: Reading) -> str | list[Message]:
    """The messages that one entry stands for, or system text."""
    entry = mapping(given, "a message")
    role = entry.get("role")
    if role in ("system", "developer"):
        leave_out_fields(entry, reading, "role", "content")
        return texts(entry.get("content"), "the system text")
    if role == "user":
        more = reading.kept(VENDOR, entry, "role", "content", key=MESSAGE)
        return [Message("user", (*content_of(entry.get("content"), reading, VENDOR), *more))]
    if role == "assistant":
        return [Message("assistant", (*_answer(entry, reading), *_calls(entry, reading), *_beside(entry, reading)))]
    if role == "tool":
        id = text(entry.get("tool_call_id"), "tool_call_id")
        content = content_of(entry.get("content"), reading, VENDOR)
        more = reading.kept(VENDOR, entry, "role", "content", "tool_call_id", key=RESULT)
        return [Message("tool", (ToolResultPart(id, reading.names.get(id, ""), (*content, *more)),))]
    raise BadConversation(f"the role {role!r} is not one of system, developer, user, assistant, tool")


def leave_out_fields(entry: Mapping[str, Any], reading: Reading, *known: str) -> None:
    """Name the fields of a system text that are not kept."""
    for name in entry:
        if name not in known and entry[name] is not None:
            reading.leave_out(f"{name!r} of a system text")


def _answer(entry: Mapping[str, Any], reading: Reading) -> list[Part]:
    parts: list[Part] = []
    if entry.get("reasoning_content"):
        parts.append(ThinkingPart(text(entry["reasoning_content"], "reasoning_content")))
    parts += content_of(entry.get("content"), reading, VENDOR)
    if entry.get("refusal"):
        parts += [TextPart(text(entry["refusal"], "a refusal")), OpaquePart(VENDOR, {REFUSAL: "message"})]
    return parts


def _calls(entry: Mapping[str, Any], reading: Reading) -> list[Part]:
    if entry.get("function_call"):
        raise BadConversation("function_call is not supported; write it as one of tool_calls")
    calls: list[Part] = []
    fields: dict[str, Any] = {}
    for one in items(entry.get("tool_calls"), "tool_calls"):
        call = mapping(one, "a call")
        if call.get("type") == "custom":
            custom = mapping(call.get("custom"), "the custom tool of a call")
            calls.append(call_of(call.get("id"), custom.get("name"), {"input": custom.get("input")}, reading))
        else:
            function = mapping(call.get("function"), "the function of a call")
            calls.append(call_of(call.get("id"), function.get("name"), function.get("arguments"), reading))
        [*more] = reading.kept(VENDOR, call, "id", "type", "function", "index")
        if more:
            fields[str(call["id"])] = more[0].data[FIELDS]
    return [*calls, OpaquePart(VENDOR, {"calls": fields})] if fields else calls


def _beside(entry: Mapping[str, Any], reading: Reading) -> list[Part]:
    known = ("role", "content", "refusal", "tool_calls", "function_call", "reasoning_content")
    parts: list[Part] = []
    for name in _SENT_BACK:
        found = reading.kept(VENDOR, {name: entry.get(name)})
        parts += [OpaquePart(VENDOR, kept.data[FIELDS], mediated=name != "annotations") for kept in found]
    return [*parts, *reading.kept(VENDOR, entry, *known, *_SENT_BACK, key=MESSAGE)]


def content_of(content: Any, reading: Reading, vendor: str) -> tuple[Any, ...]:
    """The parts of some content of Chat Completions, or of an item of Responses."""
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        [
            part
            for one in items(content, "the content")
            for part in _parts(mapping(one, "a part of the content"), reading, vendor)
        ]
    )


def _parts(block: Mapping[str, Any], reading: Reading, vendor: str) -> Iterator[Part]:
    """A part of the content, and what the format says beside it."""
    kind = text(block.get("type"), "the type of a part")
    if kind == "refusal":
        yield TextPart(text(block.get("refusal"), "a refusal"))
        yield OpaquePart(vendor, {REFUSAL: "part"})
        yield from reading.kept(vendor, block, "type", "refusal")
    elif kind in ("text", "input_text", "output_text"):
        yield TextPart(text(block.get("text"), "a text"))
        yield from reading.kept(vendor, block, "type", "text")
    elif kind == "image_url":
        where = mapping(block.get("image_url"), "image_url")
        yield image(where.get("url"))
        inner = [{"image_url": part.data[FIELDS]} for part in reading.kept(vendor, where, "url")]
        rest = {name: value for name, value in block.items() if name not in ("type", "image_url")}
        yield from reading.kept(vendor, {**rest, **(inner[0] if inner else {})})
    elif kind == "input_image":
        id = block.get("file_id")
        yield image(block.get("image_url")) if not id else FilePart(text(id, "file_id"), VENDOR, "image/png")
        yield from reading.kept(vendor, block, "type", "image_url", "file_id")
    elif kind == "input_file":
        yield _file(block)
        yield from reading.kept(vendor, block, "type", "file_id", "file_url", "file_data", "filename")
    elif kind == "input_audio" and isinstance(block.get("input_audio"), Mapping):
        sound = block["input_audio"]
        name = text(sound.get("format", "wav"), "the format of audio")
        yield AudioPart(decoded(sound.get("data")), media_type=_SOUNDS.get(name, f"audio/{name}"))
    elif kind == "file":
        yield _file(mapping(block.get("file"), "file"))
        yield from reading.kept(vendor, block, "type", "file")
    else:
        yield from reading.opaque(vendor, block)


def _file(file: Any) -> Part:
    if file.get("file_id"):
        return FilePart(text(file["file_id"], "file_id"), VENDOR, name=file.get("filename"))
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
    wire += [_result(part, ids) for part in message.parts if type(part) is ToolResultPart]
    if message.role == "tool":
        return
    entry: Wire = {"role": message.role, "content": None}
    blocks: list[Wire] = []
    calls: dict[str, Wire] = {}
    for part in message.parts:
        if type(part) is ToolCallPart:
            function = {"name": part.name, "arguments": part.json}
            calls[part.vendor_id or part.id] = {"id": ids.call(part), "type": "function", "function": function}
        elif type(part) is ThinkingPart and part.vendor is None and not part.redacted:
            entry["reasoning_content"] = entry.get("reasoning_content", "") + part.text
        elif type(part) is OpaquePart or type(part) is ThinkingPart:
            _put_back(part, entry, blocks, calls, ids)
        elif type(part) is not ToolResultPart:
            blocks.append(_wire(part, ids))
    entry["content"] = _plain(blocks)
    if calls:
        entry["tool_calls"] = list(calls.values())
    if calls or "refusal" in entry:
        entry["content"] = entry["content"] or None
    wire.append(entry)


def _put_back(part: Part, entry: Wire, blocks: list[Wire], calls: dict[str, Wire], ids: Ids) -> None:
    """Put back what the format says beside a part, or leave the part out."""
    if type(part) is not OpaquePart or part.vendor != VENDOR or not isinstance(part.data, Mapping):
        return ids.leave_out_part(part)
    if (fields := kept_fields(part, VENDOR, FIELDS)) is not None and blocks:
        put_back(blocks[-1], fields)
    elif (fields := kept_fields(part, VENDOR, MESSAGE)) is not None:
        put_back(entry, fields)
    elif REFUSAL in part.data and blocks:
        said = blocks.pop()
        if part.data[REFUSAL] == "message":
            entry["refusal"] = said["text"]
        else:
            blocks.append({"type": "refusal", "refusal": said.get("text", "")})
    elif isinstance(part.data.get("calls"), Mapping):
        for id, more in part.data["calls"].items():
            if (call := calls.get(id)) is not None:
                put_back(call, thawed(more))
                if "custom" in call:
                    call["type"] = "custom"
                    call.pop("function", None)
    elif "type" in part.data:
        blocks.append(thawed(part.data))
    elif shown := {name: thawed(part.data[name]) for name in _SENT_BACK if name in part.data}:
        entry.update(shown)
    else:
        ids.leave_out_part(part)
    return None


def _plain(blocks: list[Wire]) -> Any:
    """Content as a plain text if it is no more than one."""
    if not blocks:
        return ""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def _result(part: ToolResultPart, ids: Ids) -> Wire:
    content: Any = described(part.content)
    shown = [one for one in part.content if type(one) is not OpaquePart]
    fields = [found for one in part.content if (found := kept_fields(one, VENDOR, FIELDS)) is not None]
    if all(type(one) is TextPart for one in shown) and (len(shown) > 1 or fields):
        content = []
        for one in part.content:
            if type(one) is TextPart:
                content.append({"type": "text", "text": one.text})
            elif content and (more := kept_fields(one, VENDOR, FIELDS)) is not None:
                put_back(content[-1], more)
    result = {"role": "tool", "tool_call_id": ids.result(part), "content": content}
    for one in part.content:
        if type(one) is OpaquePart and (more := kept_fields(one, VENDOR, RESULT)) is not None:
            put_back(result, more)
        elif type(one) is OpaquePart and kept_fields(one, VENDOR, FIELDS) is None:
            ids.leave_out_part(one)
    for one in shown:
        if type(one) is not TextPart:
            ids.leave_out(f"the content of {note(one)}")
    if not succeeded(part):
        ids.leave_out(f"that the result of {part.name!r} is {part.status!r}")
    return result


def _wire(part: Any, ids: Ids) -> Wire:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text}
    if type(part) is ImagePart:
        return {"type": "image_url", "image_url": {"url": url_of(part)}}
    if type(part) is AudioPart and part.data is not None:
        kind = next((name for name, known in _SOUNDS.items() if known == part.media_type), None)
        sound = {"data": encoded(part.data), "format": kind or part.media_type.rpartition("/")[2]}
        return {"type": "input_audio", "input_audio": sound}
    if type(part) is FilePart and part.vendor == VENDOR:
        return {"type": "file", "file": {"file_id": part.id, **({"filename": part.name} if part.name else {})}}
    if type(part) is DocumentPart and part.data is not None:
        return {"type": "file", "file": {"filename": part.name or "document", "file_data": url_of(part)}}
    ids.leave_out(f"the content of {note(part)}")
    return {"type": "text", "text": note(part)}
