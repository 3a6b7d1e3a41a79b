"""Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from windlass.messages import (
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

from .parts import (
    BadConversation,
    Ids,
    Wire,
    arguments_object,
    call_of,
    decoded,
    encoded,
    items,
    mapping,
    note,
    succeeded,
    text,
)


def read(given: Any, names: dict[str, str]) -> str | list[Message]:
    """The messages that one entry stands for. Results of tools come before what the user says beside them."""
    entry = mapping(given, "a message")
    role, content = entry.get("role"), entry.get("content")
    if role not in ("user", "assistant"):
        raise BadConversation(f"the role {role!r} is not one of user, assistant; the system text is no message here")
    if isinstance(content, str):
        return [Message(role, (TextPart(content),) if content else ())]
    parts = [_part(mapping(one, "a block"), names) for one in items(content, "the content")]
    results = tuple([part for part in parts if type(part) is ToolResultPart])
    rest = tuple([part for part in parts if type(part) is not ToolResultPart])
    found = [Message("tool", results)] if results else []
    return [*found, Message(role, rest)] if rest or not found else found


def _part(block: Any, names: dict[str, str]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return TextPart(text(block.get("text"), "a text"))
    if kind in ("thinking", "redacted_thinking"):
        return _thinking(block)
    if kind in ("image", "document"):
        return _media(kind, block)
    if kind == "tool_use":
        return call_of(block.get("id"), block.get("name"), block.get("input"), names)
    if kind == "tool_result":
        id, content = text(block.get("tool_use_id"), "tool_use_id"), block.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else items(content, "a result")
        shown: Any = tuple([_part(mapping(one, "a block"), names) for one in blocks])
        if any(isinstance(part, ToolCallPart | ToolResultPart | ThinkingPart) for part in shown):
            raise BadConversation("a result may contain texts, images and documents only")
        return ToolResultPart(id, names.get(id, ""), shown, "error" if block.get("is_error") else "ok")
    raise BadConversation(f"a block of the type {kind!r} is not supported")


def _thinking(block: Any) -> ThinkingPart:
    if block.get("type") == "redacted_thinking":
        return ThinkingPart("", text(block.get("data"), "data"), redacted=True, vendor="anthropic")
    signature = block.get("signature")
    signed = None if signature is None else text(signature, "a signature")
    return ThinkingPart(text(block.get("thinking"), "thinking"), signed, vendor="anthropic")


def _media(kind: str, block: Any) -> Part:
    source = mapping(block.get("source"), "source")
    where, name = source.get("type"), block.get("title")
    if where == "file":
        return FilePart(text(source.get("file_id"), "file_id"), "anthropic", name=name)
    if where == "url":
        url = text(source.get("url"), "a URL")
        return ImagePart(url=url) if kind == "image" else DocumentPart(url=url, name=name)
    if where == "text":
        data = text(source.get("data"), "data").encode("utf-8", "surrogatepass")
        return DocumentPart(data, media_type="text/plain", name=name)
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
    blocks = [block for part in message.parts if (block := _block(part, ids)) is not None]
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] += blocks
    elif blocks:
        wire.append({"role": role, "content": blocks})


def _block(part: Part, ids: Ids) -> Wire | None:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text} if part.text else None
    if type(part) is ThinkingPart:
        return _thought(part)
    if type(part) is ToolCallPart:
        return {"type": "tool_use", "id": ids.call(part), "name": part.name, "input": arguments_object(part.json)}
    if type(part) is ToolResultPart:
        content = [block for one in part.content if (block := _block(one, ids)) is not None]
        result: Wire = {"type": "tool_result", "tool_use_id": ids.result(part), "content": content}
        return result if succeeded(part) else {**result, "is_error": True}
    if type(part) is FilePart and part.vendor == "anthropic":
        return {"type": "document", "source": {"type": "file", "file_id": part.id}}
    if isinstance(part, ImagePart | DocumentPart):
        return _picture(part)
    return {"type": "text", "text": note(part)}


def _thought(part: ThinkingPart) -> Wire | None:
    if part.vendor != "anthropic" or not part.signature:
        return None
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _picture(part: ImagePart | DocumentPart) -> Wire:
    kind, name = ("document", part.name) if isinstance(part, DocumentPart) else ("image", None)
    source: Wire = {"type": "base64", "media_type": part.media_type, "data": encoded(part.data or b"")}
    if part.url:
        source = {"type": "url", "url": part.url}
    return {"type": kind, "source": source, **({"title": name} if name else {})}
