"""Encodes messages for Bedrock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
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
from windlass.models.media import file_name, form_of, inline_data, kind_of, media_type_of, note
from windlass.models.parts import arguments, valid_name

from .families import Family

VENDOR = "bedrock"
CITATIONS = "citations"
"""The only key of an opaque part with the citations of the text before it."""
REMARKS = ("trace", "additionalModelResponseFields")
"""Fields about a whole answer, which cannot be sent in a request."""
EMPTY_RESULT = "(nothing)"
"""Placeholder for an empty result; Bedrock rejects empty ones."""

PLACEHOLDER: Wire = {"text": "."}
"""Placeholder for an empty message; Bedrock rejects blank ones."""


def history(family: Family, encode: Encode) -> History:
    """The cache of encoded messages for models of a family; `encode` wraps `encode_message`."""
    return History(encode, partial(wire_id, family), partial(join, family))


def encode_message(family: Family, message: Message, id_of: IdOf) -> list[Wire]:
    """A message on the wire; empty if nothing of it can be sent. Files of an assistant follow in a user message.

    Content that the model does not accept inside a result comes after all results.
    """
    if message.role != "assistant":
        blocks = _with_introduction(_encode_parts(family, message.parts, id_of))
        moved = _extract(family.inside, blocks)
        return [*_wire("user", blocks), *_wire("user", [{"text": "The tools showed:"}, *moved] if moved else [])]
    media = [part for part in message.parts if type(part) in MEDIA_PARTS]
    blocks = _encode_parts(family, [part for part in message.parts if type(part) not in MEDIA_PARTS], id_of)
    pictures = [{"text": "The assistant showed:"}, *_encode_parts(family, media, id_of)] if media else []
    return [*_wire("assistant", calls_last(blocks, _is_call, _is_thought)), *_wire("user", pictures)]


def _is_call(block: Wire) -> bool:
    return "toolUse" in block and "type" not in block["toolUse"]


def _is_thought(block: Wire) -> bool:
    return "reasoningContent" in block


def _wire(role: str, blocks: list[Wire]) -> list[Wire]:
    return [{"role": role, "content": blocks}] if blocks else []


def _extract(inside: tuple[str, ...] | None, blocks: list[Wire]) -> list[Wire]:
    """Remove from results the content that they must not contain, and return it; audio may be in none."""
    removed: list[Wire] = []
    for block in blocks:
        if (result := block.get("toolResult")) is not None:
            content = result["content"]
            allowed = [item.keys() & {"text", "json", *(inside or ())} or inside is None for item in content]
            out = [item for item, fits in zip(content, allowed, strict=True) if not fits or "audio" in item]
            rest = [item for item in result["content"] if item not in out]
            result["content"] = [*rest, {"text": "(It is shown below.)"}] if out else rest
            removed += out
    return removed


def _with_introduction(blocks: list[Wire]) -> list[Wire]:
    """Add a text to a message with a document and no text, which Bedrock rejects."""
    alone = any("document" in block for block in blocks) and not any("text" in block for block in blocks)
    return [{"text": "(A document:)"}, *blocks] if alone else blocks


def join(family: Family, row: list[Wire], wire: list[Wire]) -> None:
    """Add messages to a row. Roles must alternate, and the results of a step come first, in one message.

    Blocks that a model does not accept beside results go into a separate message, after a placeholder answer.
    """
    for one in wire:
        if not row or row[-1]["role"] != one["role"]:
            row.append(one)
            continue
        content = [*row[-1]["content"], *one["content"]]
        if one["role"] == "user":
            content.sort(key=_is_not_result)
            if not _may_join(family, content):
                results, other = sorted((row[-1], one), key=lambda message: _is_not_result(message["content"][0]))
                row[-1:] = [results, {"role": "assistant", "content": [PLACEHOLDER]}, other]
                continue
        row[-1] = {"role": one["role"], "content": content}


def _is_not_result(block: Wire) -> bool:
    return "toolResult" not in block


def _may_join(family: Family, content: list[Wire]) -> bool:
    """Whether these blocks, results first, may be in one message."""
    if family.beside is None or _is_not_result(content[0]):
        return True
    return all(block.keys() & {"toolResult", "cachePoint", *family.beside} for block in content)


def wire_id(family: Family, ours: str, theirs: str | None) -> str:
    """The vendor's id of a call; for one that it would reject, an id derived from it."""
    if re.fullmatch(family.ids, theirs or ""):
        return theirs or ""
    made = blake2b((ours or theirs or "").encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"tooluse_{made}" if re.fullmatch(family.ids, f"tooluse_{made}") else made[:9]


def _encode_parts(family: Family, parts: Iterable[Part], id_of: IdOf) -> list[Wire]:
    blocks: list[Wire] = []
    for part in parts:
        if (citations := _citations_of(part)) is not None:
            if blocks and "text" in blocks[-1]:
                blocks[-1] = {"citationsContent": {"content": [blocks[-1]], CITATIONS: thawed(citations)}}
            continue
        block = CODECS[type(part)](family, part, id_of)
        if block is not None:
            blocks.append(block)
    return blocks


def _citations_of(part: Part) -> Any:
    if type(part) is not OpaquePart or part.vendor != VENDOR or not isinstance(part.data, Mapping):
        return None
    return part.data.get(CITATIONS) if len(part.data) == 1 else None


def _text(family: Family, part: TextPart, id_of: IdOf) -> Wire | None:
    """The vendor rejects blank text."""
    return {"text": part.text} if part.text.strip() else None


def _thinking(family: Family, part: ThinkingPart, id_of: IdOf) -> Wire | None:
    """Only signed thinking may be sent back, and only to a model that signs."""
    if part.vendor != VENDOR or not part.signature or not family.signed:
        return None
    if part.redacted:
        return {"reasoningContent": {"redactedContent": part.signature}}
    return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}


MEDIA = ("image", "document", "audio", "video")
FORMATS = {
    "image": {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"},
    "document": {
        "pdf": "pdf", "csv": "csv", "msword": "doc", "html": "html", "plain": "txt", "markdown": "md",
        "vnd.openxmlformats-officedocument.wordprocessingml.document": "docx", "vnd.ms-excel": "xls",
        "vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    },
    "audio": {
        "mpeg": "mp3", "mp3": "mp3", "opus": "opus", "wav": "wav", "x-wav": "wav", "aac": "aac", "flac": "flac",
        "mp4": "mp4", "ogg": "ogg", "webm": "webm",
    },
    "video": {
        "mp4": "mp4", "quicktime": "mov", "x-matroska": "mkv", "webm": "webm", "x-flv": "flv", "mpeg": "mpeg",
        "x-ms-wmv": "wmv", "3gpp": "three_gp",
    },
}  # fmt: skip
"""The vendor's names of formats, by kind and by the second half of the media type."""
_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9\s()\[\]-]+")


def accepts(part: MediaPart) -> bool:
    """Whether the vendor accepts a part: a known format, as bytes or in the vendor's own storage (`s3://…`)."""
    if isinstance(part, FilePart) or _format(part) is None:
        return False
    return form_of(part, VENDOR) in MEDIA or (part.url or "").startswith("s3://")


def _media(family: Family, part: MediaPart, id_of: IdOf) -> Wire | None:
    """The vendor fetches files only from its own storage; otherwise the model gets a note."""
    if isinstance(part, FilePart) or not accepts(part):
        return {"text": note(part)}
    found = inline_data(part)
    source: Wire = {"s3Location": {"uri": part.url}} if found is None else {"bytes": found[1]}
    block: Wire = {"format": _format(part), "source": source}
    if type(part) is DocumentPart:
        name = " ".join(_INVALID_IN_NAMES.sub(" ", file_name(part).rpartition(".")[0] or file_name(part)).split())
        block["name"] = name or "document"
    return {kind_of(part): block}


def _format(part: MediaPart) -> str | None:
    return FORMATS[kind_of(part)].get(media_type_of(part).rpartition("/")[2])


def _call(family: Family, part: ToolCallPart, id_of: IdOf) -> Wire | None:
    name = valid_name(part.name, 64)
    return {"toolUse": {"toolUseId": id_of(part), "name": name, "input": arguments(part.json)}}


def _result(family: Family, part: ToolResultPart, id_of: IdOf) -> Wire | None:
    content = _encode_parts(family, part.content, id_of) or [{"text": EMPTY_RESULT}]
    result: Wire = {"toolUseId": id_of(part), "content": content}
    if family.objects:
        result["content"] = [_as_object(block) for block in content]
    if family.failing:
        result["status"] = "success" if part.status in ("ok", "answered", "responded") else "error"
    return {"toolResult": result}


def _as_object(block: Wire) -> Wire:
    """The text of a result as an object: its decoded JSON if that is an object, or an object that contains it."""
    if "text" not in block:
        return block
    try:
        value = json.loads(block["text"])
    except (ValueError, RecursionError):
        value = None
    return {"json": value if isinstance(value, dict) else {"result": block["text"]}}


def _opaque(family: Family, part: OpaquePart, id_of: IdOf) -> Wire | None:
    """A block of the vendor itself."""
    own = part.vendor == VENDOR and isinstance(part.data, Mapping) and not any(name in part.data for name in REMARKS)
    return thawed(part.data) if own else None


CODECS: dict[type, Callable[[Family, Any, IdOf], Wire | None]] = {
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
    "CITATIONS",
    "CODECS",
    "MEDIA",
    "PLACEHOLDER",
    "REMARKS",
    "VENDOR",
    "accepts",
    "encode_message",
    "history",
    "wire_id",
]
