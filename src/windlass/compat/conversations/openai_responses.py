"""OpenAI's Responses: a list of items, each a message, a call, a result or a piece of reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterable
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

from .openai import part_of
from .parts import (
    BadConversation,
    Ids,
    Wire,
    call_of,
    described,
    items,
    mapping,
    note,
    text,
    texts,
    url_of,
)


def read(given: Any, names: dict[str, str]) -> str | list[Message]:
    """The messages that one item stands for, or system text."""
    item = mapping(given, "an item")
    kind = item.get("type") or "message"
    if kind == "message":
        return _message(item)
    if kind == "function_call":
        return [Message("assistant", (call_of(item.get("call_id"), item.get("name"), item.get("arguments"), names),))]
    if kind == "function_call_output":
        id = text(item.get("call_id"), "call_id")
        return [Message("tool", (ToolResultPart(id, names.get(id, ""), _content(item.get("output"))),))]
    if kind == "reasoning":
        return [Message("assistant", (_reasoning(item),))]
    raise BadConversation(f"an item of the type {kind!r} is not supported")


def joined(messages: Iterable[Message]) -> list[Message]:
    """The messages with those in one that belong to one reply, or to the calls of one: items have only a part each."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else None
        if before is not None and before.role == message.role != "user" and not _ends(before, message):
            found[-1] = before.replace(parts=(*before.parts, *message.parts))
        else:
            found.append(message)
    return found


def _ends(before: Message, message: Message) -> bool:
    """Whether a reply was over before this part: text after text, or after calls, is another reply."""
    spoken = any(isinstance(part, TextPart) for part in message.parts)
    return message.role == "assistant" and spoken and any(not isinstance(part, ThinkingPart) for part in before.parts)


def _message(item: Any) -> str | list[Message]:
    role = item.get("role")
    if role in ("system", "developer"):
        return texts(item.get("content"), "the system text")
    if role not in ("user", "assistant"):
        raise BadConversation(f"the role {role!r} is not one of system, developer, user, assistant")
    return [Message(role, _content(item.get("content")))]


def _content(content: Any) -> tuple[Any, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple([part_of(mapping(one, "a part of the content")) for one in items(content, "the content")])


def _reasoning(item: Any) -> ThinkingPart:
    """Reasoning. What OpenAI needs to read it again is kept as its signature."""
    told = [mapping(one, "a summary").get("text") for one in items(item.get("summary"), "summary")]
    told = told or [mapping(one, "reasoning").get("text") for one in items(item.get("content"), "content")]
    shown = "\n\n".join([text(one, "a summary") for one in told])
    kept = {key: text(item[key], key) for key in ("id", "encrypted_content") if item.get(key)}
    signature = json.dumps(kept) if "encrypted_content" in kept else None
    return ThinkingPart(shown, signature, redacted=not shown, vendor="openai")


def system(text: str) -> list[Wire]:
    """The system text as an item."""
    return [{"type": "message", "role": "developer", "content": text}]


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list: one item for what is said, one for each call and result."""
    spoken: list[Wire] = []

    def end() -> None:
        if spoken:
            wire.append({"type": "message", "role": message.role, "content": [*spoken]})
            spoken.clear()

    for part in message.parts:
        if isinstance(part, ToolCallPart):
            end()
            call = {"call_id": ids.call(part), "name": part.name, "arguments": part.json}
            wire.append({"type": "function_call", **call})
        elif isinstance(part, ToolResultPart):
            output: Any = described(part.content)
            if any(not isinstance(one, TextPart) for one in part.content):
                output = [_wire(one, "user") for one in part.content]
            wire.append({"type": "function_call_output", "call_id": ids.result(part), "output": output})
        elif isinstance(part, ThinkingPart):
            wire += _thought(part)
        else:
            spoken.append(_wire(part, message.role))
    end()


def _thought(part: ThinkingPart) -> list[Wire]:
    """Reasoning that OpenAI can read again; any other is left out."""
    if part.vendor != "openai" or not part.signature:
        return []
    try:
        kept = json.loads(part.signature)
    except ValueError:
        return []
    if not isinstance(kept, dict) or "encrypted_content" not in kept:
        return []
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return [{"type": "reasoning", "summary": summary, **kept}]


def _wire(part: Part, role: str) -> Wire:
    written = "output_text" if role == "assistant" else "input_text"
    if isinstance(part, TextPart):
        return {"type": written, "text": part.text}
    if isinstance(part, ImagePart) and role == "user":
        return {"type": "input_image", "image_url": url_of(part)}
    if isinstance(part, FilePart) and part.vendor == "openai" and role == "user":
        return {"type": "input_file", "file_id": part.id}
    if isinstance(part, DocumentPart) and role == "user":
        if part.url:
            return {"type": "input_file", "file_url": part.url}
        return {"type": "input_file", "filename": part.name or "document", "file_data": url_of(part)}
    return {"type": written, "text": note(part)}
