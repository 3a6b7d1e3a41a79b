"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import (
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
    arguments_object,
    call_of,
    decoded,
    encoded,
    items,
    kept_fields,
    mapping,
    note,
    put_back,
    succeeded,
    text,
)

VENDOR = "anthropic"
INVALID = "INVALID_JSON"
"""The field that stands for arguments that are not a JSON object, as the vendor advises."""


def read(given: Any, reading: Reading) -> str | list[Message]:
    """The messages that one entry stands for. Results of tools come before what the user says beside them."""
    entry = mapping(given, "a message")
    role, content = entry.get("role"), entry.get("content")
    if role not in ("user", "assistant"):
        raise BadConversation(f"the role {role!r} is not one of user, assistant; the system text is no message here")
    more = reading.kept(VENDOR, entry, "role", "content", key=MESSAGE)
    if isinstance(content, str):
        return [Message(role, (TextPart(content), *more) if content else tuple(more))]
    parts = [part for one in items(content, "the content") for part in _parts(mapping(one, "a block"), reading)]
    results = tuple([part for part in parts if type(part) is ToolResultPart])
    rest = (*[part for part in parts if type(part) is not ToolResultPart], *more)
    found = [Message("tool", results)] if results else []
    return [*found, Message(role, rest)] if rest or not found else found


def _parts(block: Mapping[str, Any], reading: Reading) -> list[Part]:
    """The part that a block stands for, and what the format says beside it."""
    kind = text(block.get("type"), "the type of a block")
    if kind == "text":
        return [TextPart(text(block.get("text"), "a text")), *reading.kept(VENDOR, block, "type", "text")]
    if kind in ("thinking", "redacted_thinking"):
        return [_thinking(block), *reading.kept(VENDOR, block, "type", "thinking", "signature", "data")]
    if kind in ("image", "document") and (media := _media(kind, block)) is not None:
        return [media, *reading.kept(VENDOR, block, "type", "source", "title")]
    if kind == "tool_use":
        call = call_of(block.get("id"), block.get("name"), _arguments(block.get("input")), reading)
        return [call, *reading.kept(VENDOR, block, "type", "id", "name", "input")]
    if kind == "tool_result":
        return [_result(block, reading)]
    ran = kind.endswith(("tool_use", "tool_result")) or kind == "container_upload"
    return [*reading.opaque(VENDOR, block, mediated=not ran)]


def _arguments(given: Any) -> Any:
    """Arguments that are not a JSON object as the model wrote them."""
    wrong = given.get(INVALID) if isinstance(given, Mapping) and len(given) == 1 else None
    return wrong if isinstance(wrong, str) and arguments_object(wrong) is None else given


def _result(block: Mapping[str, Any], reading: Reading) -> ToolResultPart:
    id, content = text(block.get("tool_use_id"), "tool_use_id"), block.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else items(content, "a result")
    shown: list[Any] = [part for one in blocks for part in _parts(mapping(one, "a block"), reading)]
    if any(isinstance(part, ToolCallPart | ToolResultPart | ThinkingPart) for part in shown):
        raise BadConversation("a result may contain texts, images and documents only")
    more = reading.kept(VENDOR, block, "type", "tool_use_id", "content", "is_error", key=RESULT)
    return ToolResultPart(id, reading.names.get(id, ""), (*shown, *more), "error" if block.get("is_error") else "ok")


def _thinking(block: Any) -> ThinkingPart:
    if block.get("type") == "redacted_thinking":
        return ThinkingPart("", text(block.get("data"), "data"), redacted=True, vendor=VENDOR)
    signature = block.get("signature")
    signed = None if signature is None else text(signature, "a signature")
    return ThinkingPart(text(block.get("thinking"), "thinking"), signed, vendor=VENDOR)


def _media(kind: str, block: Any) -> Part | None:
    """An image or a document; None if its source is of another kind."""
    source = mapping(block.get("source"), "source")
    where, name = source.get("type"), block.get("title")
    if where == "file":
        media_type = "image/png" if kind == "image" else "application/pdf"
        return FilePart(text(source.get("file_id"), "file_id"), VENDOR, media_type, name)
    if where == "url":
        url = text(source.get("url"), "a URL")
        return ImagePart(url=url) if kind == "image" else DocumentPart(url=url, name=name)
    if where == "text":
        data = text(source.get("data"), "data").encode("utf-8", "surrogatepass")
        return DocumentPart(data, media_type="text/plain", name=name)
    if where != "base64":
        return None
    data, media_type = decoded(source.get("data")), text(source.get("media_type"), "media_type")
    if kind == "image":
        return ImagePart(data, media_type=media_type)
    return DocumentPart(data, media_type=media_type, name=name)


def system(text: str) -> list[Wire]:
    """Nothing: the system text is no message here."""
    return []


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list. Roles alternate, so neighbours of one role become one message."""
    role = "assistant" if message.role == "assistant" else "user"
    entry: Wire = {"role": role, "content": []}
    for part in message.parts:
        if type(part) is OpaquePart and (fields := kept_fields(part, VENDOR, MESSAGE)) is not None:
            put_back(entry, fields)
        else:
            _add(entry["content"], part, ids)
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] += entry.pop("content")
        put_back(wire[-1], entry)
    elif entry["content"]:
        wire.append(entry)


def _add(blocks: list[Wire], part: Part, ids: Ids) -> None:
    if type(part) is OpaquePart:
        own = part.vendor == VENDOR and isinstance(part.data, Mapping)
        if (fields := kept_fields(part, VENDOR, FIELDS)) is not None and blocks:
            put_back(blocks[-1], fields)
        elif own and "type" in part.data:
            blocks.append(thawed(part.data))
        else:
            ids.leave_out_part(part)
    elif (block := _block(part, ids)) is not None:
        blocks.append(block)


def _block(part: Part, ids: Ids) -> Wire | None:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text} if part.text else None
    if type(part) is ThinkingPart:
        return _thought(part, ids)
    if type(part) is ToolCallPart:
        arguments = arguments_object(part.json)
        given = {INVALID: part.json} if arguments is None else arguments
        return {"type": "tool_use", "id": ids.call(part), "name": part.name, "input": given}
    if type(part) is ToolResultPart:
        return _told(part, ids)
    if type(part) is FilePart and part.vendor == VENDOR:
        kind = "image" if part.media_type.startswith("image/") else "document"
        title = {"title": part.name} if part.name else {}
        return {"type": kind, "source": {"type": "file", "file_id": part.id}, **title}
    if isinstance(part, ImagePart | DocumentPart):
        return _picture(part)
    ids.leave_out(f"the content of {note(part)}")
    return {"type": "text", "text": note(part)}


def _told(part: ToolResultPart, ids: Ids) -> Wire:
    result: Wire = {"type": "tool_result", "tool_use_id": ids.result(part), "content": []}
    for one in part.content:
        if (fields := kept_fields(one, VENDOR, RESULT)) is not None:
            put_back(result, fields)
        else:
            _add(result["content"], one, ids)
    return result if succeeded(part) else {**result, "is_error": True}


def _thought(part: ThinkingPart, ids: Ids) -> Wire | None:
    if part.vendor != VENDOR or not part.signature:
        ids.leave_out_part(part)
        return None
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _picture(part: ImagePart | DocumentPart) -> Wire:
    kind, name = ("document", part.name) if isinstance(part, DocumentPart) else ("image", None)
    source: Wire = {"type": "base64", "media_type": part.media_type, "data": encoded(part.data or b"")}
    if part.url:
        source = {"type": "url", "url": part.url}
    elif kind == "document" and part.media_type.startswith("text/"):
        data = (part.data or b"").decode("utf-8", "replace")
        source = {"type": "text", "media_type": "text/plain", "data": data}
    return {"type": kind, "source": source, **({"title": name} if name else {})}
