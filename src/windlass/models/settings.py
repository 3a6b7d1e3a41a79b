"""What a caller may set, under one name for all vendors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from windlass.errors import ConfigError
from windlass.messages import thawed

COMMON = (
    "temperature", "top_p", "max_tokens", "stop", "tool_choice", "parallel_tool_calls", "seed", "reasoning", "timeout",
)  # fmt: skip

Settings: TypeAlias = Mapping[str, Any]
Wire: TypeAlias = dict[str, Any]


def merging(*more: str) -> Callable[[Settings, Settings], dict[str, Any]]:
    """What merges settings for a vendor that knows some more than all do."""
    known = (*COMMON, *more, "extra")

    def merged(own: Settings, asked: Settings) -> dict[str, Any]:
        """The settings of a model and those of a request, which win; `extra` is merged key by key."""
        settings = {**_mapping("settings", own), **_mapping("settings", asked)}
        if unknown := [name for name in settings if name not in known]:
            text = f"unknown settings {', '.join(unknown)}: known are {', '.join(known)}"
            raise ConfigError(f"{text}; what only the vendor knows goes under 'extra'")
        extras = [_mapping("extra", given.get("extra") or {}) for given in (own, asked)]
        settings["extra"] = {**extras[0], **extras[1]}
        return {name: value for name, value in settings.items() if value is not None}

    return merged


def _mapping(name: str, given: Any) -> Settings:
    if isinstance(given, Mapping):
        return given
    raise ConfigError(f"{name} is a mapping of names to values, not {given!r:.100}")


def asking_for(output: Settings, system: str) -> str:
    """The system text for a model that takes no schema for its answer: it is asked for it in words."""
    schema = json.dumps(thawed(output), ensure_ascii=False)
    return f"{system}\n\nYour final answer is JSON that fits this schema, and nothing else:\n{schema}".lstrip()


def joined(ours: Wire, said: Settings) -> Wire:
    """What we say and what the user says: mappings are joined, tools come behind ours, all else replaces."""
    both = dict(ours)
    for key, value in said.items():
        present = ours.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            both[key] = joined(present, value)
        elif key == "tools" and present:
            both[key] = [*present, *value]
        else:
            both[key] = value
    return both


__all__ = ["COMMON", "Settings", "asking_for", "joined", "merging"]
