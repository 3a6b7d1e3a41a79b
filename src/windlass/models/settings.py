"""What a caller may set, under one name for all vendors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

from windlass.errors import ConfigError
from windlass.messages import ModelRequest, ToolSpec, thawed

COMMON = (
    "temperature", "top_p", "max_tokens", "stop", "tool_choice", "parallel_tool_calls", "seed", "reasoning", "timeout",
    "headers",
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
            text = f"unknown settings {', '.join(map(str, unknown))}: known are {', '.join(known)}"
            hints = [did_you_mean(name, known) for name in unknown]
            raise ConfigError(f"{text}{''.join(hints)}; what only the vendor knows goes under 'extra'")
        _check_choice(settings.get("tool_choice"))
        extra, headers = _merged_extra(own, asked)
        settings |= {"extra": extra, "headers": headers or None}
        return {name: value for name, value in settings.items() if value is not None}

    return merged


def _merged_extra(*given: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """What only the vendor knows, and the headers of the request. `extra` says headers as SDKs do (`extra_headers`),
    and what is for the body (`extra_body`) is for it anyway."""
    extra: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for settings in given:
        told = dict(_mapping("extra", settings.get("extra") or {}))
        headers |= _mapping("headers", settings.get("headers") or {})
        headers |= _mapping("extra_headers", told.pop("extra_headers", None) or {})
        extra |= {**_mapping("extra_body", told.pop("extra_body", None) or {}), **told}
    return extra, headers


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What to say of a name that is not known, if one that is known is close to it."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_choice(choice: Any) -> None:
    names = choice if isinstance(choice, list | tuple | set | frozenset) else None
    if choice is None or isinstance(choice, str | Mapping):
        return
    if not names or not all(isinstance(name, str) for name in names):
        text = "it is 'auto', 'required', 'none', the name of a tool, a list of names or the vendor's own mapping"
        raise ConfigError(f"tool_choice={choice!r}: {text}")


def narrowed(request: ModelRequest, settings: dict[str, Any]) -> tuple[ModelRequest, dict[str, Any]]:
    """The same for a vendor that takes no list as `tool_choice`: the model must call one of the tools on the list, so
    it is told of no others."""
    choice = settings.get("tool_choice")
    if choice is None or isinstance(choice, str | Mapping):
        return request, settings
    return request.replace(tools=chosen(request.tools, choice)), {**settings, "tool_choice": "required"}


def chosen(tools: tuple[ToolSpec, ...], names: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools with these names; names of which none is a tool are refused."""
    found = tuple(tool for tool in tools if tool.name in names)
    if tools and not found:
        known = ", ".join(tool.name for tool in tools)
        raise ConfigError(f"tool_choice={list(names)!r} has no tool of this request; those are {known}")
    return found


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


__all__ = ["COMMON", "Settings", "asking_for", "chosen", "did_you_mean", "joined", "merging", "narrowed"]
