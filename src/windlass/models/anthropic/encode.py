"""Encodes messages for Anthropic."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

from windlass.messages import (
    MEDIA_PARTS,
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
    thawed,
)
from windlass.models.claude import calls_last
from windlass.models.history import Encode, History, IdOf, Wire
from windlass.models.media import IMAGES, form_of, inline_data, kind_of, media_type_of, note
from windlass.models.parts import arguments, valid_name

VENDOR = "anthropic"
FIELDS = "fields"
"""The only key of an opaque part with the fields of the previous block that our part has no place for."""
CONTAINER = "container"
"""The only key of an opaque part with the container in which the vendor ran code, so that it can be used again."""

_OWN_ID = re.compile(r"toolu_[a-zA-Z0-9_-]{1,80}")
_VALID_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def history(encode: Encode) -> History:
    """The cache of encoded messages; `encode` is `encode_message`, or wraps it."""
    return History(encode, wire_id, join)


def encode_message(message: Message, id_of: IdOf) -> list[Wire]:
    """A message on the wire; empty if nothing of it can be sent. Files of an assistant follow in a user message."""
    if message.role != "assistant":
        return _wire("user", _encode_parts(message.parts, id_of))
    media = [part for part in message.parts if type(part) in MEDIA_PARTS]
    blocks = _encode_parts([part for part in message.parts if type(part) not in MEDIA_PARTS], id_of)
    pictures = [{"type": "text", "text": "The assistant showed:"}, *_encode_parts(media, id_of)] if media else []
    return [*_wire("assistant", calls_last(blocks, _is_call, _is_thought)), *_wire("user", pictures)]


def _is_call(block: Wire) -> bool:
    return bool(block["type"] == "tool_use")


def _is_thought(block: Wire) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


def _wire(role: str, blocks: list[Wire]) -> list[Wire]:
    return [{"role": role, "content": blocks}] if blocks else []


def join(row: list[Wire], wire: list[Wire]) -> None:
    """Add messages to a row. Roles must alternate, and results must come first in a message."""
    for one in wire:
        if not row or row[-1]["role"] != one["role"]:
            row.append(one)
            continue
        content = [*row[-1]["content"], *one["content"]]
        if one["role"] == "user":
            content.sort(key=lambda block: block.get("type") != "tool_result")
        row[-1] = {"role": one["role"], "content": content}


def wire_id(ours: str, theirs: str | None) -> str:
    """The vendor's id of a call; for a call of another vendor, an id derived from it."""
    id = theirs or ""
    if _OWN_ID.fullmatch(id) or (not ours and _VALID_ID.fullmatch(id)):
        return id
    return "toolu_" + blake2b((ours or id).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def attachment(part: Part, key: str) -> Any:
    """The value of an opaque part with only this key, which is not a block but belongs to one; None for other parts."""
    if type(part) is not OpaquePart or part.vendor != VENDOR or not isinstance(part.data, Mapping):
        return None
    return part.data.get(key) if len(part.data) == 1 else None


def _encode_parts(parts: Iterable[Part], id_of: IdOf) -> list[Wire]:
    blocks: list[Wire] = []
    sent = False
    for part in parts:
        if (fields := attachment(part, FIELDS)) is not None:
            if sent:
                blocks[-1].update(thawed(fields))
            continue
        block = CODECS[type(part)](part, id_of)
        sent = block is not None
        if block is not None:
            blocks.append(block)
    return blocks


def _text(part: TextPart, id_of: IdOf) -> Wire | None:
    """The vendor rejects blank text."""
    return {"type": "text", "text": part.text} if part.text.strip() else None


def _thinking(part: ThinkingPart, id_of: IdOf) -> Wire | None:
    """Only signed thinking may be sent back to the vendor."""
    if part.vendor != VENDOR or not part.signature:
        return None
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


MEDIA = (*IMAGES, "image_file", "document", "document_url", "document_file")


def accepts(part: MediaPart) -> bool:
    """Whether the vendor accepts a part: images, and documents that are PDFs or texts."""
    form = form_of(part, VENDOR)
    if form == "document":
        return media_type_of(part).startswith(("application/pdf", "text/"))
    return form in MEDIA and (form != "document_url" or part.media_type == "application/pdf")


def _media(part: MediaPart, id_of: IdOf) -> Wire | None:
    if not accepts(part):
        return {"type": "text", "text": note(part)}
    block: Wire = {"type": kind_of(part), "source": _source(part)}
    return {**block, "title": part.name} if type(part) is DocumentPart and part.name else block


def _source(part: MediaPart) -> Wire:
    if isinstance(part, FilePart):
        return {"type": "file", "file_id": part.id}
    found = inline_data(part)
    if found is None:
        return {"type": "url", "url": part.url or ""}
    media_type, data = found
    if media_type.startswith("text/"):
        return {"type": "text", "media_type": "text/plain", "data": b64decode(data).decode(errors="replace")}
    return {"type": "base64", "media_type": media_type, "data": data}


def _call(part: ToolCallPart, id_of: IdOf) -> Wire | None:
    return {"type": "tool_use", "id": id_of(part), "name": valid_name(part.name, 128), "input": arguments(part.json)}


def _result(part: ToolResultPart, id_of: IdOf) -> Wire | None:
    """The content of an error may only be text."""
    block: Wire = {"type": "tool_result", "tool_use_id": id_of(part)}
    content = _encode_parts(part.content, id_of)
    if content:
        block["content"] = content
    failed = part.status not in ("ok", "answered", "responded")
    if failed and all(item["type"] == "text" for item in content):
        block["is_error"] = True
    return block


def _opaque(part: OpaquePart, id_of: IdOf) -> Wire | None:
    """A block of the vendor itself, which has a type."""
    own = part.vendor == VENDOR and isinstance(part.data, Mapping) and "type" in part.data
    return thawed(part.data) if own else None


CODECS: dict[type, Callable[[Any, IdOf], Wire | None]] = {
    TextPart: _text,
    ThinkingPart: _thinking,
    ImagePart: _media,
    DocumentPart: _media,
    AudioPart: _media,
    VideoPart: _media,
    FilePart: _media,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}

__all__ = [
    "CODECS",
    "CONTAINER",
    "FIELDS",
    "MEDIA",
    "VENDOR",
    "accepts",
    "attachment",
    "encode_message",
    "history",
    "wire_id",
]
