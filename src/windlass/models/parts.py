"""Helpers for the wires of several vendors: texts, and names and arguments of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

_INVALID = re.compile(r"[^a-zA-Z0-9_-]")


def text_in(data: Mapping[str, Any], field: str) -> str:
    """The text in a field of the vendor's data; empty if it is missing or null."""
    value = data.get(field)
    if value is None:
        return ""
    return value if type(value) is str else refuse_text(field, value)


def refuse_text(field: str, value: object) -> str:
    """Raise because a field does not contain a text: the server does not follow the protocol."""
    raise TypeError(f"{field!r} must be a string, not {value!r:.100}")


def valid_name(name: str, longest: int) -> str:
    """The name in a call, made valid: some vendors would reject the whole conversation otherwise."""
    return _INVALID.sub("_", name)[:longest] or "_"


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as an object. Invalid JSON is wrapped in an object, as Anthropic advises."""
    try:
        value = json.loads(text or "{}", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def object_text(text: str) -> str:
    """The arguments of a call as the JSON of an object, unchanged if they are one."""
    decoded = arguments(text)
    return json.dumps(decoded, ensure_ascii=False) if decoded == {"INVALID_JSON": text} else text or "{}"


def _finite(number: str) -> float:
    """A number that is valid JSON; Python accepts more."""
    if isfinite(value := float(number)):
        return value
    raise ValueError(f"{number} is not a valid JSON number")


def readable(value: Any) -> Any:
    """A plain value without lone surrogates in its texts; pairs of them are joined."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list | tuple) else value


__all__ = ["arguments", "object_text", "readable", "refuse_text", "text_in", "valid_name"]
