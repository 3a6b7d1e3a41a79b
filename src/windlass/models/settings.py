"""What a caller may set, under one name for all vendors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from windlass.errors import ConfigError

COMMON = (
    "temperature", "top_p", "max_tokens", "stop", "tool_choice", "parallel_tool_calls", "seed", "reasoning", "timeout",
)  # fmt: skip

Settings: TypeAlias = Mapping[str, Any]


def merging(*more: str) -> Callable[[Settings, Settings], dict[str, Any]]:
    """What merges settings for a vendor that knows some more than all do."""
    known = (*COMMON, *more, "extra")

    def merged(own: Settings, asked: Settings) -> dict[str, Any]:
        """The settings of a model and those of a request, which win; `extra` is merged key by key."""
        settings = {**own, **asked}
        if unknown := [name for name in settings if name not in known]:
            text = f"unknown settings {', '.join(unknown)}: known are {', '.join(known)}"
            raise ConfigError(f"{text}; what only the vendor knows goes under 'extra'")
        settings["extra"] = {**(own.get("extra") or {}), **(asked.get("extra") or {})}
        return {name: value for name, value in settings.items() if value is not None}

    return merged


__all__ = ["COMMON", "Settings", "merging"]
