"""What a caller may set, under one name for all vendors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.errors import ConfigError

KNOWN = (
    "temperature", "top_p", "max_tokens", "stop", "tool_choice", "parallel_tool_calls", "seed", "reasoning", "timeout",
    "prompt_cache_key", "extra",
)  # fmt: skip


def merged(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model and those of a request, which win; `extra` is merged key by key."""
    settings = {**own, **asked}
    if unknown := [name for name in settings if name not in KNOWN]:
        text = f"unknown settings {', '.join(unknown)}: known are {', '.join(KNOWN)}; what only the vendor knows goes"
        raise ConfigError(f"{text} under 'extra'")
    settings["extra"] = {**(own.get("extra") or {}), **(asked.get("extra") or {})}
    return {name: value for name, value in settings.items() if value is not None}


def effort(reasoning: object) -> dict[str, Any]:
    """The setting `reasoning`, a word for the effort or the vendor's own mapping, as a mapping."""
    if isinstance(reasoning, Mapping):
        return dict(reasoning)
    return {"effort": reasoning} if isinstance(reasoning, str) else {}


_COUNTED = {"properties", "required", "additionalProperties", "type"}
_LOOSE = {"default", "oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "dependentRequired"}


def strict(schema: object) -> bool:
    """Whether a vendor that wants closed objects with nothing optional can promise to keep to a schema."""
    if isinstance(schema, list | tuple):
        return all(strict(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
        if not all(strict(item) for item in properties.values()):
            return False
    rest = {key: value for key, value in schema.items() if key not in _COUNTED}
    return not (_LOOSE & rest.keys()) and all(
        all(strict(item) for item in value.values()) if key == "$defs" else strict(value)
        for key, value in rest.items()
        if key not in ("enum", "const", "examples")
    )
