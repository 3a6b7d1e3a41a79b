"""LangChain's messages: objects, or what `messages_to_dict` makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import ImagePart, Message, Part, Status, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

from .parts import (
    BadConversation,
    Ids,
    Wire,
    arguments_object,
    call_of,
    described,
    image,
    items,
    mapping,
    note,
    spoken_parts,
    succeeded,
    text,
    texts,
    url_of,
)

_ROLES = {"human": "user", "ai": "assistant", "HumanMessageChunk": "user", "AIMessageChunk": "assistant"}
_FIELDS = ("content", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "name", "id")


def read(given: Any, names: dict[str, str]) -> str | list[Message]:
    """The messages that one entry stands for, or system text."""
    kind, data = _kind_and_data(given)
    content = data.get("content")
    if kind in ("system", "SystemMessageChunk"):
        return texts(content, "the system text")
    if kind in ("tool", "ToolMessageChunk"):
        id = text(data.get("tool_call_id"), "tool_call_id")
        status: Status = "error" if data.get("status") == "error" else "ok"
        name = data.get("name") or names.get(id, "")
        return [Message("tool", (ToolResultPart(id, text(name, "the name of a tool"), _content(content), status),))]
    if kind not in _ROLES:
        raise BadConversation(f"the type {kind!r} is not one of system, human, ai, tool")
    calls: list[ToolCallPart] = []
    for one in [
        *items(data.get("tool_calls"), "tool_calls"),
        *items(data.get("invalid_tool_calls"), "invalid_tool_calls"),
    ]:
        call = mapping(one, "a call")
        calls.append(call_of(call.get("id"), call.get("name"), call.get("args"), names))
    role: Any = _ROLES[kind]
    return [Message(role, (*_content(content), *calls))]


def _kind_and_data(given: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(given, Mapping):
        inner = given.get("data")
        return text(given.get("type"), "the type of a message"), inner if isinstance(inner, Mapping) else given
    kind = getattr(given, "type", None)
    if not isinstance(kind, str):
        raise BadConversation(f"it is a {type(given).__name__}, not a message of LangChain")
    return kind, {name: getattr(given, name, None) for name in _FIELDS}


def _content(content: Any) -> tuple[Any, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    parts = [
        TextPart(one) if isinstance(one, str) else _part(mapping(one, "a block")) for one in items(content, "content")
    ]
    return tuple([part for part in parts if part is not None])


def _part(block: Any) -> Part | None:
    kind = block.get("type")
    if kind == "text":
        return TextPart(text(block.get("text"), "a text"))
    if kind in ("thinking", "reasoning"):
        summary = "\n\n".join([texts([one], "a summary") for one in items(block.get("summary"), "a summary")])
        return ThinkingPart(text(block.get("thinking", block.get("reasoning", summary)), "thinking"))
    if kind == "image_url":
        where = block.get("image_url")
        return image(where.get("url") if isinstance(where, Mapping) else where)
    if kind == "image":
        data, url = block.get("base64"), block.get("url")
        return image(url if data is None else f"data:{block.get('mime_type') or 'image/png'};base64,{data}")
    if kind in ("tool_use", "tool_call", "function_call"):
        return None  # it is among `tool_calls`, too
    raise BadConversation(f"a block of the type {kind!r} is not supported")


def system(text: str) -> list[Wire]:
    """The system text as messages."""
    return [{"type": "system", "data": {"type": "system", "content": text}}]


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list."""
    for part in message.parts:
        if type(part) is ToolResultPart:
            fine = succeeded(part)
            result = {"content": described(part.content), "tool_call_id": ids.result(part), "name": part.name}
            wire.append(_entry("tool", {**result, "status": "success" if fine else "error"}))
    if message.role == "tool":
        return
    shown = spoken_parts(message)
    plain = all(type(part) is TextPart for part in shown)
    data: Wire = {"content": message.text if plain else [_wire(part) for part in shown]}
    if message.role == "assistant":
        data["tool_calls"] = [
            {"name": call.name, "args": arguments_object(call.json), "id": ids.call(call), "type": "tool_call"}
            for call in message.tool_calls
        ]
    wire.append(_entry("human" if message.role == "user" else "ai", data))


def _entry(kind: str, data: Wire) -> Wire:
    return {"type": kind, "data": {"type": kind, **data}}


def _wire(part: Part) -> Wire:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text}
    if type(part) is ImagePart:
        return {"type": "image_url", "image_url": {"url": url_of(part)}}
    return {"type": "text", "text": note(part)}
