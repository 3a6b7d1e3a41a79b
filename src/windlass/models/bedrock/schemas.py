"""The schema of an answer as Bedrock takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
"""What Bedrock refuses: the model reads it in the description instead."""
_NAMED = ("properties", "$defs", "definitions")


def taken(schema: Any) -> Any:
    """The schema as far as Bedrock takes it; what it refuses becomes description, and objects are closed."""
    if isinstance(schema, list | tuple):
        return [taken(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    told = {key: _taken(key, value) for key, value in schema.items() if key not in UNKNOWN}
    if "properties" in told or told.get("type") == "object":
        told["additionalProperties"] = False
    if limits := ", ".join([f"{key}: {value}" for key, value in schema.items() if key in UNKNOWN]):
        told["description"] = f"{told.get('description') or ''} ({limits})".strip()
    return told


def _taken(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: taken(item) for name, item in value.items()}
    return value if key in ("enum", "const", "default", "examples") else taken(value)


__all__ = ["taken"]
