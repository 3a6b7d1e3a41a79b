"""What MCP servers send as content, as our parts: within limits, whatever it is."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from windlass.messages import AudioPart, ContentPart, DocumentPart, ImagePart, TextPart, ToolResult, VideoPart

_MEDIA: tuple[tuple[str, type[ImagePart] | type[AudioPart] | type[VideoPart] | type[DocumentPart]], ...] = (
    ("image/", ImagePart),
    ("audio/", AudioPart),
    ("video/", VideoPart),
    ("application/pdf", DocumentPart),
)
_PARTS = 200
"""How many parts of one result are taken."""


class Limits(Struct, frozen=True):
    """How much of a result is taken: `text` in characters, over all its parts; `media` in bytes, for each part."""

    text: int = 100_000
    media: int = 5_000_000


def tool_result(given: Any, limits: Limits) -> ToolResult:
    """The result of a call: a `CallToolResult`."""
    parts = content_parts(given.content, limits)
    data = clean(given.structured_content)
    encoded = b"" if data is None else msgspec.json.encode(data)
    if len(encoded) > limits.text:
        data = None
    if encoded and not parts:
        parts = _within((TextPart(encoded.decode()),), limits)
    return ToolResult(parts or (TextPart("(no content)"),), "error" if given.is_error else "ok", data)


def content_parts(blocks: Iterable[Any], limits: Limits) -> tuple[ContentPart, ...]:
    """The parts for some blocks of content."""
    listed = list(blocks)
    parts = [_part(block, limits) for block in listed[:_PARTS]]
    if len(listed) > _PARTS:
        parts.append(TextPart(f"[{len(listed) - _PARTS} further parts were left out]"))
    return _within(parts, limits)


def resource_parts(contents: Iterable[Any], limits: Limits) -> tuple[ContentPart, ...]:
    """The parts for the contents of a resource."""
    listed = list(contents)
    return _within([_resource(one, limits) for one in listed[:_PARTS]], limits) or (TextPart("(no content)"),)


def _part(block: Any, limits: Limits) -> ContentPart:
    kind = getattr(block, "type", None)
    if kind == "text":
        return TextPart(clean(block.text))
    if kind in ("image", "audio"):
        return _media(block.data, block.mime_type, limits)
    if kind == "resource":
        return _resource(block.resource, limits)
    if kind == "resource_link":
        about = f": {block.description}" if block.description else ""
        return TextPart(clean(f"[resource {block.uri} ({block.name}){about}]"))
    return TextPart(f"[content of an unknown kind: {str(kind)[:40]}]")


def _resource(contents: Any, limits: Limits) -> ContentPart:
    if (text := getattr(contents, "text", None)) is not None:
        return TextPart(clean(text))
    return _media(getattr(contents, "blob", ""), contents.mime_type or "", limits, contents.uri)


def _media(data: str, media_type: str, limits: Limits, name: str = "") -> ContentPart:
    """Binary content, or a text that says why it is left out."""
    kind = media_type.partition(";")[0].strip().lower()
    label = clean(f"{name} {kind}".strip())[:200] or "binary content"
    if len(data) * 3 // 4 > limits.media:
        return TextPart(f"[{label}: left out, because it has more than {limits.media:,} bytes]")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextPart(f"[{label}: left out, because it is not valid base64]")
    for start, part in _MEDIA:
        if kind.startswith(start) and content:
            return part(data=content, media_type=kind)
    return TextPart(f"[{label}: {len(content):,} bytes, left out]")


def _within(parts: Iterable[ContentPart], limits: Limits) -> tuple[ContentPart, ...]:
    """The parts with their texts cut where they are too long together."""
    left, kept, cut = limits.text, list[ContentPart](), 0
    for part in parts:
        if isinstance(part, TextPart):
            cut += max(len(part.text) - left, 0)
            part = TextPart(part.text[:left])
            left -= len(part.text)
            if not part.text:
                continue
        kept.append(part)
    return (*kept, TextPart(f"[cut: {cut:,} further characters]")) if cut else tuple(kept)


def clean(value: Any) -> Any:
    """A JSON value that any store can hold: no lone surrogates, no numbers that JSON does not have."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float) and value - value != 0:  # infinite, or not a number
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


__all__ = ["Limits", "clean", "content_parts", "resource_parts", "tool_result"]
