"""Our messages as Bedrock wants them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from windlass.messages import (
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
from windlass.models.claude import calls_last
from windlass.models.history import Encode, History, IdOf, Wire
from windlass.models.parts import arguments, called_name, inlined

from .families import Family

VENDOR = "bedrock"
CITATIONS = "citations"
"""The only key of an opaque part that holds what the text before it cites."""
REMARKS = ("trace", "additionalModelResponseFields")
"""Said about a whole answer; there is no place for it in a request."""
NOTHING = "(nothing)"
"""What a result says that says nothing: Bedrock refuses empty ones."""

WORDLESS: Wire = {"text": "."}
"""What is said where somebody must speak who has said nothing; Bedrock refuses blanks."""


def history(family: Family, encode: Encode) -> History:
    """What keeps the messages for models of a family; `encode` wraps `encode_message`."""
    return History(encode, partial(wire_id, family), partial(join, family))


def encode_message(family: Family, message: Message, id_of: IdOf) -> list[Wire]:
    """A message on the wire: none if nothing of it can be sent, and the images of an assistant after it as a user's.

    What a result shows and the model does not take inside one comes after all results.
    """
    if message.role != "assistant":
        blocks = _introduced(_encode_parts(family, message.parts, id_of))
        shown = [] if family.inside is None else _taken_out(family.inside, blocks)
        return [*_said("user", blocks), *_said("user", [{"text": "The tools showed:"}, *shown] if shown else [])]
    images = [part for part in message.parts if type(part) is ImagePart]
    blocks = _encode_parts(family, [part for part in message.parts if type(part) is not ImagePart], id_of)
    shown = [{"text": "The assistant showed:"}, *_encode_parts(family, images, id_of)] if images else []
    return [*_said("assistant", calls_last(blocks, _is_call, _is_thought)), *_said("user", shown)]


def _is_call(block: Wire) -> bool:
    return "toolUse" in block and "type" not in block["toolUse"]


def _is_thought(block: Wire) -> bool:
    return "reasoningContent" in block


def _said(role: str, blocks: list[Wire]) -> list[Wire]:
    return [{"role": role, "content": blocks}] if blocks else []


def _taken_out(inside: tuple[str, ...], blocks: list[Wire]) -> list[Wire]:
    """Take out of results what may not be inside them."""
    shown: list[Wire] = []
    for block in blocks:
        if (result := block.get("toolResult")) is not None:
            out = [item for item in result["content"] if not item.keys() & {"text", "json", *inside}]
            kept = [item for item in result["content"] if item not in out]
            result["content"] = [*kept, {"text": "(It is shown below.)"}] if out else kept
            shown += out
    return shown


def _introduced(blocks: list[Wire]) -> list[Wire]:
    """A document must not come without a word."""
    alone = any("document" in block for block in blocks) and not any("text" in block for block in blocks)
    return [{"text": "(A document:)"}, *blocks] if alone else blocks


def join(family: Family, row: list[Wire], wire: list[Wire]) -> None:
    """Add messages to those before; roles alternate, and the results of a step come first, in one message.

    What a model does not take beside results is in a message of its own, behind them and an answer without a word.
    """
    for one in wire:
        if not row or row[-1]["role"] != one["role"]:
            row.append(one)
            continue
        content = [*row[-1]["content"], *one["content"]]
        if one["role"] == "user":
            content.sort(key=_behind_results)
            if not _go_together(family, content):
                results, other = sorted((row[-1], one), key=lambda message: _behind_results(message["content"][0]))
                row[-1:] = [results, {"role": "assistant", "content": [WORDLESS]}, other]
                continue
        row[-1] = {"role": one["role"], "content": content}


def _behind_results(block: Wire) -> bool:
    return "toolResult" not in block


def _go_together(family: Family, content: list[Wire]) -> bool:
    """Whether blocks, of which results come first, may be in one message."""
    if family.beside is None or _behind_results(content[0]):
        return True
    return all(block.keys() & {"toolResult", "cachePoint", *family.beside} for block in content)


def wire_id(family: Family, ours: str, theirs: str | None) -> str:
    """The vendor's id of a call; for one that it would refuse another that is always the same."""
    if re.fullmatch(family.ids, theirs or ""):
        return theirs or ""
    made = blake2b((ours or theirs or "").encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"tooluse_{made}" if re.fullmatch(family.ids, f"tooluse_{made}") else made[:9]


def _encode_parts(family: Family, parts: Iterable[Part], id_of: IdOf) -> list[Wire]:
    blocks: list[Wire] = []
    for part in parts:
        if (cited := _cited(part)) is not None:
            if blocks and "text" in blocks[-1]:
                blocks[-1] = {"citationsContent": {"content": [blocks[-1]], CITATIONS: thawed(cited)}}
            continue
        block = CODECS[type(part)](family, part, id_of)
        if block is not None:
            blocks.append(block)
    return blocks


def _cited(part: Part) -> Any:
    if type(part) is not OpaquePart or part.vendor != VENDOR or not isinstance(part.data, Mapping):
        return None
    return part.data.get(CITATIONS) if len(part.data) == 1 else None


def _text(family: Family, part: TextPart, id_of: IdOf) -> Wire | None:
    """The vendor refuses text of blanks only."""
    return {"text": part.text} if part.text.strip() else None


def _thinking(family: Family, part: ThinkingPart, id_of: IdOf) -> Wire | None:
    """Only what a model has signed may go back, and only to one that signs."""
    if part.vendor != VENDOR or not part.signature or not family.signed:
        return None
    if part.redacted:
        return {"reasoningContent": {"redactedContent": part.signature}}
    return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}


def _image(family: Family, part: ImagePart, id_of: IdOf) -> Wire | None:
    """The vendor fetches from its own storage only: of a picture elsewhere the model is told the address."""
    if (found := inlined(part)) is not None:
        media_type, data = found
        return {"image": {"format": _format(media_type), "source": {"bytes": data}}}
    url = part.url or ""
    if not url.startswith("s3://"):
        return {"text": f"(A picture that is not shown here: {url})"}
    return {"image": {"format": _format(part.media_type), "source": {"s3Location": {"uri": url}}}}


def _format(media_type: str) -> str:
    name = media_type.rpartition("/")[2]
    return "jpeg" if name == "jpg" else name


def _call(family: Family, part: ToolCallPart, id_of: IdOf) -> Wire | None:
    name = called_name(part.name, 64)
    return {"toolUse": {"toolUseId": id_of(part), "name": name, "input": arguments(part.json)}}


def _result(family: Family, part: ToolResultPart, id_of: IdOf) -> Wire | None:
    content = _encode_parts(family, part.content, id_of) or [{"text": NOTHING}]
    result: Wire = {"toolUseId": id_of(part), "content": content}
    if family.objects:
        result["content"] = [_as_object(block) for block in content]
    if family.failing:
        result["status"] = "success" if part.status in ("ok", "answered", "responded") else "error"
    return {"toolResult": result}


def _as_object(block: Wire) -> Wire:
    """The text of a result as an object: the one that it is the JSON of, or one that holds it."""
    if "text" not in block:
        return block
    try:
        value = json.loads(block["text"])
    except (ValueError, RecursionError):
        value = None
    return {"json": value if isinstance(value, dict) else {"result": block["text"]}}


def _opaque(family: Family, part: OpaquePart, id_of: IdOf) -> Wire | None:
    """A block of the vendor's own."""
    own = part.vendor == VENDOR and isinstance(part.data, Mapping) and not any(name in part.data for name in REMARKS)
    return thawed(part.data) if own else None


CODECS: dict[type, Callable[[Family, Any, IdOf], Wire | None]] = {
    TextPart: _text,
    ThinkingPart: _thinking,
    ImagePart: _image,
    ToolCallPart: _call,
    ToolResultPart: _result,
    OpaquePart: _opaque,
}

__all__ = ["CITATIONS", "CODECS", "REMARKS", "VENDOR", "WORDLESS", "encode_message", "history", "wire_id"]
