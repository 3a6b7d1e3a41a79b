"""OpenAI's Responses: a list of items, each a message, a call, a result or a piece of reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

from .openai import REFUSAL, content_of, leave_out_fields
from .parts import (
    FIELDS,
    RESULT,
    BadConversation,
    Ids,
    Reading,
    Wire,
    call_of,
    described,
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

VENDOR = "openai-responses"
"""Whose reasoning it is: that of the adapter for Responses."""
SHOWN = "shown:"
"""The prefix of a signature of reasoning that is shown instead of encrypted."""
ITEM = "item"
"""The key of what the format says beside an item; it follows the parts of the item as an opaque part."""


def read(given: Any, reading: Reading) -> str | list[Message]:
    """The messages that one item stands for, or system text."""
    item = mapping(given, "an item")
    kind = text(item.get("type") or "message", "the type of an item")
    if kind == "message":
        return _message(item, reading)
    if kind == "function_call":
        call = call_of(item.get("call_id"), item.get("name"), item.get("arguments"), reading)
        more = reading.kept(VENDOR, item, "type", "call_id", "name", "arguments", key=ITEM)
        return [Message("assistant", (call, *more))]
    if kind == "function_call_output":
        id = text(item.get("call_id"), "call_id")
        content = content_of(item.get("output"), reading, VENDOR)
        more = reading.kept(VENDOR, item, "type", "call_id", "output", key=RESULT)
        return [Message("tool", (ToolResultPart(id, reading.names.get(id, ""), (*content, *more)),))]
    if kind == "reasoning":
        return [Message("assistant", tuple(_reasoning(item, reading)))]
    role: Any = "user" if kind.endswith(("_output", "_response")) else "assistant"
    ran = "_call" in kind or kind.startswith(("mcp_", "tool_search"))
    return [Message(role, tuple(reading.opaque(VENDOR, item, mediated=not ran)))]


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
    return message.role == "assistant" and spoken and any(isinstance(part, _SAID) for part in before.parts)


_SAID = (TextPart, ToolCallPart)


def _message(item: Any, reading: Reading) -> str | list[Message]:
    role = item.get("role")
    if role in ("system", "developer"):
        leave_out_fields(item, reading, "type", "role", "content")
        return texts(item.get("content"), "the system text")
    if role not in ("user", "assistant"):
        raise BadConversation(f"the role {role!r} is not one of system, developer, user, assistant")
    parts = [*content_of(item.get("content"), reading, VENDOR)]
    if item.get("phase"):
        parts.append(OpaquePart(VENDOR, {"phase": text(item["phase"], "a phase")}))
    return [Message(role, (*parts, *reading.kept(VENDOR, item, "type", "role", "content", "phase", key=ITEM)))]


def _reasoning(item: Any, reading: Reading) -> list[Part]:
    """Reasoning, each piece a part. What OpenAI needs to read it again is the signature of the last."""
    shown = items(item.get("content"), "content")
    pieces = [mapping(one, "reasoning").get("text") for one in [*shown, *items(item.get("summary"), "summary")]]
    told = [text(one, "a piece of reasoning") for one in pieces] or [""]
    encrypted, id = item.get("encrypted_content"), item.get("id")
    signature = None if encrypted is None else text(encrypted, "encrypted_content")
    known = ["type", "summary", "content", "encrypted_content"]
    if signature is None and shown and id:
        signature = f"{SHOWN}{text(id, 'the id of reasoning')}"
        known.append("id")
    first = [ThinkingPart(one, vendor=VENDOR) for one in told[:-1]]
    last = ThinkingPart(told[-1], signature, redacted=not any(told), vendor=VENDOR)
    return [*first, last, *reading.kept(VENDOR, item, *known, key=ITEM)]


def system(text: str) -> list[Wire]:
    """The system text as an item."""
    return [{"type": "message", "role": "developer", "content": text}]


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list: one item for what is said, one for each call and result."""
    items = _Items(message.role, ids)
    for part in message.parts:
        items.add(part)
    items.end_thoughts()
    wire += items.made


class _Items:
    """The items of one message, while they are written."""

    def __init__(self, role: str, ids: Ids) -> None:
        self.made: list[Wire] = []
        self._role = role
        self._ids = ids
        self._spoken: list[Wire] = []
        """The content of the open item with text."""
        self._thoughts: list[str] = []
        """The pieces of reasoning that are not signed yet."""

    def add(self, part: Part) -> None:
        """Add a part."""
        if type(part) is OpaquePart:
            self._put_back(part)
        elif type(part) is ThinkingPart:
            self._think(part)
        elif type(part) is ToolCallPart:
            call = {"call_id": self._ids.call(part), "name": part.name, "arguments": part.json}
            self._item({"type": "function_call", **call})
        elif type(part) is ToolResultPart:
            self._item(_result(part, self._ids))
        else:
            self.end_thoughts()
            self._say(_wire(part, self._role, self._ids))

    def end_thoughts(self) -> None:
        """Leave out reasoning that nothing signs: it cannot be sent back."""
        if self._thoughts:
            self._ids.leave_out("thinking")
            self._thoughts = []

    def _item(self, item: Wire) -> None:
        self.end_thoughts()
        self._spoken = []
        self.made.append(item)

    def _say(self, block: Wire) -> None:
        if not self._spoken:
            self.made.append({"type": "message", "role": self._role, "content": self._spoken})
        self._spoken.append(block)

    def _think(self, part: ThinkingPart) -> None:
        """Add reasoning that OpenAI can read again. Its pieces are one item, which the last one signs."""
        if part.vendor != VENDOR:
            self._ids.leave_out_part(part)
            return
        self._thoughts.append(part.text)
        if part.signature is not None:
            self._reason(part.signature)

    def _reason(self, signature: str | None) -> None:
        kind = "reasoning_text" if signature is not None and signature.startswith(SHOWN) else "summary_text"
        told = [{"type": kind, "text": text} for text in self._thoughts if text]
        self._thoughts = []
        item: Wire = {"type": "reasoning", "summary": told}
        if kind == "reasoning_text":
            item |= {"summary": [], "content": told, "id": str(signature).removeprefix(SHOWN)}
        elif signature is not None:
            item["encrypted_content"] = signature
        self._item(item)

    def _put_back(self, part: OpaquePart) -> None:
        """Put back what the format says beside a part or an item, or leave the part out."""
        data = part.data if part.vendor == VENDOR and isinstance(part.data, Mapping) else {}
        if "type" in data:
            block = thawed(data)
            if str(block["type"]).startswith(("input_", "output_")):
                self._say(block)
            else:
                self._item(block)
        elif (fields := kept_fields(part, VENDOR, ITEM)) is not None and (self.made or self._thoughts):
            if self._thoughts:
                self._reason(None)
            put_back(self.made[-1], fields)
            self._spoken = []
        elif (fields := kept_fields(part, VENDOR, FIELDS)) is not None and self._spoken:
            put_back(self._spoken[-1], fields)
        elif REFUSAL in data and self._spoken:
            self._spoken[-1] = {"type": "refusal", "refusal": self._spoken[-1].get("text", "")}
        elif isinstance(data.get("calls"), Mapping):
            for item in self.made:
                put_back(item, thawed(data["calls"].get(item.get("call_id"), {})))
        elif data and self._spoken:
            put_back(self._spoken[-1], {name: thawed(data[name]) for name in _OF_A_TEXT if name in data})
            if "phase" in data:
                self.made[-1]["phase"] = data["phase"]
        else:
            self._ids.leave_out_part(part)


_OF_A_TEXT = ("annotations", "logprobs")


def _result(part: ToolResultPart, ids: Ids) -> Wire:
    shown = [one for one in part.content if type(one) is not OpaquePart]
    content: list[Wire] = []
    result: Wire = {"type": "function_call_output", "call_id": ids.result(part)}
    for one in part.content:
        if (fields := kept_fields(one, VENDOR, RESULT)) is not None:
            put_back(result, fields)
        elif (fields := kept_fields(one, VENDOR, FIELDS)) is not None and content:
            put_back(content[-1], fields)
        elif type(one) is OpaquePart:
            ids.leave_out_part(one)
        else:
            content.append(_wire(one, "user", ids))
    plain = len(shown) < 2 and all(block.keys() == {"type", "text"} for block in content)
    result["output"] = described(part.content) if plain else content
    if not succeeded(part):
        ids.leave_out(f"that the result of {part.name!r} is {part.status!r}")
    return result


def _wire(part: Part, role: str, ids: Ids) -> Wire:
    written = "output_text" if role == "assistant" else "input_text"
    if isinstance(part, TextPart):
        return {"type": written, "text": part.text}
    if isinstance(part, ImagePart) and role == "user":
        return {"type": "input_image", "image_url": url_of(part)}
    if isinstance(part, FilePart) and part.vendor == "openai" and role == "user":
        kind = "input_image" if part.media_type.startswith("image/") else "input_file"
        return {"type": kind, "file_id": part.id}
    if isinstance(part, DocumentPart) and role == "user":
        if part.url:
            return {"type": "input_file", "file_url": part.url, **({"filename": part.name} if part.name else {})}
        return {"type": "input_file", "filename": part.name or "document", "file_data": url_of(part)}
    ids.leave_out(f"the content of {note(part)}")
    return {"type": written, "text": note(part)}
