"""LangChain's messages: objects, or what `messages_to_dict` makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    Status,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
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
    arguments_object,
    call_of,
    decoded,
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

VENDOR = "langchain"

_ROLES = {"human": "user", "ai": "assistant", "HumanMessageChunk": "user", "AIMessageChunk": "assistant"}
_SYSTEM = ("system", "SystemMessageChunk")
_TOOL = ("tool", "ToolMessageChunk")
_FIELDS = (
    "content", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "artifact", "name", "id",
    "additional_kwargs", "response_metadata", "usage_metadata",
)  # fmt: skip
_KNOWN = ("type", "content", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "tool_call_chunks")
THOUGHT = "reasoning_content"
"""The field of `additional_kwargs` in which some chat models put their thinking."""
_ELSEWHERE = ("tool_calls", "function_call", THOUGHT)
"""Fields of `additional_kwargs` that are parts of a message here: older versions repeat the calls in them."""
_CALLS = ("tool_use", "tool_call", "function_call", "tool_call_chunk", "invalid_tool_call", "input_json_delta")
_OF_A_CALL = {"id", "name", "args", "type", "error", "index"}
_MEDIA: dict[str, Any] = {"image": ImagePart, "file": DocumentPart, "audio": AudioPart, "video": VideoPart}
_TYPES = {"image": "image/png", "file": "application/pdf", "audio": "audio/wav", "video": "video/mp4"}


def read(given: Any, reading: Reading) -> str | list[Message]:
    """The messages that one entry stands for, or system text."""
    kind, data = _kind_and_data(given)
    content = data.get("content")
    if kind in _SYSTEM:
        _leave_out(data, reading)
        return texts(content, "the system text")
    if kind in _TOOL:
        return [Message("tool", (_result(data, reading),))]
    if kind not in _ROLES:
        raise BadConversation(f"the type {kind!r} is not one of system, human, ai, tool")
    role: Any = _ROLES[kind]
    calls: list[ToolCallPart] = []
    for field in ("tool_calls", "invalid_tool_calls"):
        for one in items(data.get(field), field):
            call = mapping(one, "a call")
            calls.append(call_of(call.get("id"), call.get("name"), call.get("args"), reading))
            for name in call.keys() - _OF_A_CALL:
                reading.leave_out(f"{name!r} of a call")
    known = {call.vendor_id for call in calls}
    spoken, more = _content(content, reading), _more(data, reading)
    beside = _beside(data, reading, MESSAGE)
    extra = data.get("additional_kwargs")
    if role == "assistant" and isinstance(extra, Mapping) and extra.get(THOUGHT):
        spoken = (ThinkingPart(text(extra[THOUGHT], THOUGHT), vendor=VENDOR), *spoken)
    unlisted = [call for call in more if call.vendor_id not in known] if role == "assistant" else []
    return [Message(role, (*spoken, *calls, *unlisted, *beside))]


def _kind_and_data(given: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(given, Mapping):
        if "type" not in given and "role" in given:
            raise BadConversation("it has a role and no type: read it with the format 'openai'")
        inner = given.get("data")
        return text(given.get("type"), "the type of a message"), inner if isinstance(inner, Mapping) else given
    kind = getattr(given, "type", None)
    if not isinstance(kind, str):
        raise BadConversation(f"it is a {type(given).__name__}, not a message of LangChain")
    return kind, {name: getattr(given, name, None) for name in _FIELDS}


def _leave_out(data: Mapping[str, Any], reading: Reading) -> None:
    """Name what is not kept of a system message."""
    content = data.get("content")
    blocks = content if isinstance(content, list) else []
    fields = {name for one in blocks if isinstance(one, Mapping) for name in one if name not in ("type", "text")}
    fields |= {name for name in ("name", "id", "additional_kwargs", "response_metadata") if data.get(name)}
    for name in sorted(fields):
        reading.leave_out(f"{name!r} of a system text")


def _result(data: Mapping[str, Any], reading: Reading) -> ToolResultPart:
    id = text(data.get("tool_call_id"), "tool_call_id")
    status: Status = "error" if data.get("status") == "error" else "ok"
    known = reading.names.get(id, "")
    name = text(data.get("name") or known, "the name of a tool")
    beside = _beside(data, reading, RESULT, "name")
    return ToolResultPart(id, name, (*_content(data.get("content"), reading), *beside), status)


def _beside(data: Mapping[str, Any], reading: Reading, key: str, *known: str) -> list[OpaquePart]:
    """What the message says beside its content and calls."""
    given = {name: value for name, value in data.items() if value not in ({}, [], False)}
    if isinstance(extra := given.get("additional_kwargs"), Mapping):
        more = {name: value for name, value in extra.items() if name not in _ELSEWHERE}
        given["additional_kwargs"] = more or None
    return reading.kept(VENDOR, given, *_KNOWN, "chunk_position", *known, key=key)


def _content(content: Any, reading: Reading) -> tuple[Any, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        [
            part
            for one in items(content, "content")
            for part in ([TextPart(one)] if isinstance(one, str) else _parts(mapping(one, "a block"), reading))
        ]
    )


def _more(data: Mapping[str, Any], reading: Reading) -> list[ToolCallPart]:
    """The calls in the content; those that are not among `tool_calls` would be lost."""
    content = data.get("content")
    blocks = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []
    return [
        call_of(block.get("call_id") or block.get("id"), block.get("name"), _arguments(block), reading)
        for block in blocks
        if block.get("type") in ("tool_use", "tool_call", "function_call")
    ]


def _arguments(block: Mapping[str, Any]) -> Any:
    return next((block[name] for name in ("input", "args", "arguments") if block.get(name) is not None), {})


def _parts(block: Mapping[str, Any], reading: Reading) -> list[Part]:
    """The part that a block stands for, and what the format says beside it."""
    kind = text(block.get("type"), "the type of a block")
    if kind == "text":
        return [TextPart(text(block.get("text"), "a text")), *reading.kept(VENDOR, block, "type", "text")]
    if kind in ("thinking", "redacted_thinking"):
        signature = block.get("signature") if kind == "thinking" else block.get("data")
        signed = None if signature is None else text(signature, "a signature")
        told = text(block.get("thinking", ""), "thinking")
        thought = ThinkingPart(told, signed, redacted=kind != "thinking", vendor="anthropic")
        return [thought, *reading.kept(VENDOR, block, "type", "thinking", "signature", "data")]
    if kind == "reasoning":
        return _reasoning(block, reading)
    if kind == "image_url":
        where = block.get("image_url")
        if not isinstance(where, Mapping):
            return [image(where), *reading.kept(VENDOR, block, "type", "image_url")]
        inner = {name: value for name, value in where.items() if name != "url"}
        beside = {**block, "image_url": inner or None}
        return [image(where.get("url")), *reading.kept(VENDOR, beside, "type")]
    if kind in _MEDIA and (media := _media(kind, block)) is not None:
        known = ("type", "base64", "url", "file_id", "mime_type", "data", "source_type", "filename")
        return [media, *reading.kept(VENDOR, {**block, "extras": _extras(block)}, *known)]
    if kind == "text-plain" and isinstance(block.get("text"), str):
        data = block["text"].encode("utf-8", "surrogatepass")
        part = DocumentPart(data, media_type="text/plain", name=block.get("title"))
        return [part, *reading.kept(VENDOR, block, "type", "text", "mime_type", "title")]
    if kind in _CALLS:
        return []  # it is among the calls, too
    ran = kind.startswith("server_tool") or kind.endswith(("_call", "_tool_result"))
    return [*reading.opaque(VENDOR, block, mediated=not ran)]


def _reasoning(block: Mapping[str, Any], reading: Reading) -> list[Part]:
    """Reasoning: LangChain's own block, or the item of OpenAI's Responses."""
    if "reasoning" in block:
        thought = ThinkingPart(text(block["reasoning"], "reasoning"))
        return [thought, *reading.kept(VENDOR, block, "type", "reasoning")]
    told = [texts([one], "a summary") for one in items(block.get("summary"), "a summary")] or [""]
    encrypted = block.get("encrypted_content")
    signed = None if encrypted is None else text(encrypted, "encrypted_content")
    first: list[Part] = [ThinkingPart(one, vendor=RESPONSES) for one in told[:-1]]
    last = ThinkingPart(told[-1], signed, redacted=not any(told), vendor=RESPONSES)
    return [*first, last, *reading.kept(VENDOR, block, "type", "summary", "encrypted_content")]


RESPONSES = "openai-responses"
"""Whose reasoning a block with a summary is."""


def _extras(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """The extras of a block without the name of a file, which a part has."""
    given = block.get("extras")
    rest = {name: value for name, value in given.items() if name != "filename"} if isinstance(given, Mapping) else {}
    return rest or None


def _media(kind: str, block: Mapping[str, Any]) -> Part | None:
    """An image, a file, a sound or a video; None if it is not in a form of LangChain."""
    of, media_type = _MEDIA[kind], block.get("mime_type") or _TYPES[kind]
    media_type = text(media_type, "mime_type")
    name = block.get("filename")
    if isinstance(block.get("extras"), Mapping):
        name = name or block["extras"].get("filename")
    named = {"name": name} if of is DocumentPart and isinstance(name, str) else {}
    if isinstance(
        data := block.get("base64") or (block.get("data") and block.get("source_type") and block["data"]), str
    ):
        if block.get("source_type") == "text":
            return DocumentPart(data.encode("utf-8", "surrogatepass"), media_type="text/plain", **named)
        return of(decoded(data), media_type=media_type, **named)  # type: ignore[no-any-return]
    if isinstance(url := block.get("url"), str):
        if url.startswith("data:"):
            head, _, data = url.partition(",")
            return of(decoded(data), media_type=head[5:].partition(";")[0] or media_type, **named)  # type: ignore[no-any-return]
        return of(url=url, media_type=media_type, **named)  # type: ignore[no-any-return]
    if isinstance(id := block.get("file_id"), str):
        return FilePart(id, VENDOR, media_type, name if isinstance(name, str) else None)
    return None


def system(text: str) -> list[Wire]:
    """The system text as messages."""
    return [{"type": "system", "data": {"type": "system", "content": text}}]


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list."""
    wire += [_told(part, ids) for part in message.parts if type(part) is ToolResultPart]
    if message.role == "tool":
        return
    data: Wire = {"content": _blocks(message.parts, ids)}
    if message.role == "assistant":
        data["tool_calls"] = []
        for call in message.tool_calls:
            _add_call(data, call, ids)
        own = [part.text for part in message.parts if type(part) is ThinkingPart and part.vendor == VENDOR]
        if own:
            data["additional_kwargs"] = {THOUGHT: "".join(own)}
    for part in message.parts:
        if (fields := kept_fields(part, VENDOR, MESSAGE)) is not None:
            put_back(data, fields)
    wire.append(_entry("human" if message.role == "user" else "ai", data))


def _add_call(data: Wire, call: ToolCallPart, ids: Ids) -> None:
    """Add a call; one whose arguments are not a JSON object is an invalid one."""
    arguments = arguments_object(call.json)
    one = {"name": call.name, "args": call.json if arguments is None else arguments, "id": ids.call(call)}
    if arguments is None:
        wrong = {**one, "error": "the arguments are not a JSON object", "type": "invalid_tool_call"}
        data.setdefault("invalid_tool_calls", []).append(wrong)
    else:
        data["tool_calls"].append({**one, "type": "tool_call"})


def _told(part: ToolResultPart, ids: Ids) -> Wire:
    data: Wire = {
        "content": _blocks(part.content, ids),
        "tool_call_id": ids.result(part),
        "name": part.name,
        "status": "success" if succeeded(part) else "error",
    }
    for one in part.content:
        if (fields := kept_fields(one, VENDOR, RESULT)) is not None:
            put_back(data, fields)
    return _entry("tool", data)


def _entry(kind: str, data: Wire) -> Wire:
    return {"type": kind, "data": {"type": kind, **data}}


def _blocks(parts: tuple[Any, ...], ids: Ids) -> Any:
    """Content: a plain text if it is no more than one."""
    blocks: list[Wire] = []
    thoughts: list[ThinkingPart] = []
    for part in parts:
        if type(part) is ThinkingPart and part.vendor == VENDOR:
            continue
        if type(part) is ThinkingPart and part.vendor == RESPONSES:
            thoughts.append(part)
            if part.signature is None:
                continue
        if thoughts:  # the pieces of one item of reasoning
            blocks.append(_item(thoughts))
            thoughts = []
        elif type(part) is ThinkingPart:
            blocks.append(_thought(part))
        if type(part) is OpaquePart:
            _put_back(part, blocks, ids)
        elif type(part) in _SPOKEN:
            blocks.append(_wire(part, ids))
    if thoughts:
        blocks.append(_item(thoughts))
    if not blocks:
        return ""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def _put_back(part: OpaquePart, blocks: list[Wire], ids: Ids) -> None:
    """Put back what the format says beside a part, or leave the part out."""
    own = part.vendor == VENDOR and isinstance(part.data, Mapping)
    if (fields := kept_fields(part, VENDOR, FIELDS)) is not None and blocks:
        put_back(blocks[-1], fields)
    elif own and "type" in part.data:
        blocks.append(thawed(part.data))
    elif kept_fields(part, VENDOR, MESSAGE) is None and kept_fields(part, VENDOR, RESULT) is None:
        ids.leave_out_part(part)


def _thought(part: ThinkingPart) -> Wire:
    """Thinking in the form that the chat model of its vendor knows, or LangChain's own."""
    if part.vendor != "anthropic":
        return {"type": "reasoning", "reasoning": part.text}
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, **({"signature": part.signature} if part.signature else {})}


def _item(pieces: list[ThinkingPart]) -> Wire:
    """An item of reasoning of OpenAI's Responses."""
    summary = [{"type": "summary_text", "text": part.text} for part in pieces if part.text]
    signed = {"encrypted_content": pieces[-1].signature} if pieces[-1].signature else {}
    return {"type": "reasoning", "summary": summary, **signed}


_SPOKEN = (TextPart, ImagePart, DocumentPart, AudioPart, VideoPart, FilePart)


def _wire(part: Part, ids: Ids) -> Wire:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text}
    if type(part) is ImagePart:
        return {"type": "image_url", "image_url": {"url": url_of(part)}}
    if isinstance(part, DocumentPart | AudioPart | VideoPart):
        kind = next(name for name, of in _MEDIA.items() if type(part) is of)
        where = {"url": part.url} if part.url else {"base64": encoded(part.data or b"")}
        name = part.name if type(part) is DocumentPart else None
        return {"type": kind, **where, "mime_type": part.media_type, **({"extras": {"filename": name}} if name else {})}
    if type(part) is FilePart and part.vendor == VENDOR:
        kind = part.media_type.partition("/")[0]
        return {"type": kind if kind in _MEDIA else "file", "file_id": part.id, "mime_type": part.media_type}
    ids.leave_out(f"the content of {note(part)}")
    return {"type": "text", "text": note(part)}
