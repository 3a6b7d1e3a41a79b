"""Reduces the schema of an answer to what Bedrock supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
"""Keywords that Bedrock rejects; they go into the description instead."""
_NAMED = ("properties", "$defs", "definitions")


def supported(schema: Any) -> Any:
    """The part of a schema that Bedrock supports; rejected keywords become description, and objects are closed."""
    if isinstance(schema, list | tuple):
        return [supported(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    reduced = {key: _supported_value(key, value) for key, value in schema.items() if key not in UNKNOWN}
    if "properties" in reduced or reduced.get("type") == "object":
        reduced["additionalProperties"] = False
    if limits := ", ".join([f"{key}: {value}" for key, value in schema.items() if key in UNKNOWN]):
        reduced["description"] = f"{reduced.get('description') or ''} ({limits})".strip()
    return reduced


def _supported_value(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: supported(item) for name, item in value.items()}
    return value if key in ("enum", "const", "default", "examples") else supported(value)


__all__ = ["supported"]
