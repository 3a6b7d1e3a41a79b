"""What the wires of several vendors have in common: texts that must be texts, arguments, and images by their bytes."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from math import isfinite
from typing import Any
from urllib.parse import unquote_to_bytes

from windlass.messages import ImagePart

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def text_in(data: Mapping[str, Any], field: str) -> str:
    """A text that a vendor says; one that it leaves out, or says is null, is empty."""
    value = data.get(field)
    if value is None:
        return ""
    return value if type(value) is str else refuse_text(field, value)


def refuse_text(field: str, value: object) -> str:
    """A server that says something else where a text belongs does not keep to the protocol."""
    raise TypeError(f"{field!r} is no text: {value!r:.100}")


def called_name(name: str, longest: int) -> str:
    """The name in a call, be it one that no tool can have: some vendors would refuse all that comes after it."""
    return _NO_NAME.sub("_", name)[:longest] or "_"


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as an object. What is none is wrapped in one, as Anthropic advises."""
    try:
        value = json.loads(text or "{}", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def object_text(text: str) -> str:
    """The arguments of a call as JSON of an object: as they were written, if that is what they are."""
    told = arguments(text)
    return json.dumps(told, ensure_ascii=False) if told == {"INVALID_JSON": text} else text or "{}"


def _finite(number: str) -> float:
    """A number that JSON can say; Python reads some more."""
    if isfinite(value := float(number)):
        return value
    raise ValueError(f"{number} is no number of JSON's")


def readable(value: Any) -> Any:
    """A plain value in whose texts no half of a character is left: two that belong together are joined."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list | tuple) else value


def inlined(part: ImagePart) -> tuple[str, str] | None:
    """The media type and the bytes, in base64, of an image; None of one that has an address elsewhere."""
    if part.data is not None:
        return part.media_type, b64encode(part.data).decode()
    url = part.url or ""
    if not url.startswith("data:"):
        return None
    kind, _, data = url.removeprefix("data:").partition(",")
    if not kind.endswith(";base64"):
        data = b64encode(unquote_to_bytes(data)).decode()
    return kind.partition(";")[0] or part.media_type, data


__all__ = ["arguments", "called_name", "inlined", "object_text", "readable", "refuse_text", "text_in"]
