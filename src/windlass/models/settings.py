"""The settings of a request, under the same names for all vendors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from windlass.errors import ConfigError
from windlass.messages import ModelRequest, ToolSpec, thawed

COMMON = (
    "temperature", "top_p", "top_k", "max_tokens", "stop", "presence_penalty", "frequency_penalty", "seed",
    "tool_choice", "parallel_tool_calls", "reasoning", "service_tier", "cache", "prompt_cache_key", "timeout",
    "headers", "output_mode",
)  # fmt: skip

Settings: TypeAlias = Mapping[str, Any]
Wire: TypeAlias = dict[str, Any]


def merged(own: Settings, asked: Settings) -> dict[str, Any]:
    """Merge the settings of a model and of a request, which win; `extra` is merged key by key."""
    settings = {**_mapping("settings", own), **_mapping("settings", asked)}
    if unknown := [name for name in settings if name not in _KNOWN]:
        text = f"unknown settings {', '.join(map(str, unknown))}: the settings are {', '.join(_KNOWN)}"
        hints = [did_you_mean(name, _KNOWN) for name in unknown]
        raise ConfigError(f"{text}{''.join(hints)}; put the vendor's own settings under 'extra'")
    _check_choice(settings.get("tool_choice"))
    extra, headers = _merge_extra(own, asked)
    settings |= {"extra": extra, "headers": headers or None}
    return {name: value for name, value in settings.items() if value is not None}


_KNOWN = (*COMMON, "extra")


def refuse_lacking(model: str, lacking: Collection[str], settings: Settings) -> None:
    """Raise for settings that a vendor does not have. This is for the creation of models and agents: a request may have
    such settings, because another model may answer it instead, and then they are left out."""
    for name in lacking:
        if settings.get(name) is not None and settings[name] is not True:
            text = f"model={model!r} does not support the setting {name!r}, because its vendor does not have it"
            raise ConfigError(f"{text}: leave it out")


def _merge_extra(*all_settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """The vendor's own settings, and the headers of the request. As with SDKs, `extra` may have `extra_headers`, and
    `extra_body`, whose fields go into the body like all others of `extra`."""
    extra: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for settings in all_settings:
        own = dict(_mapping("extra", settings.get("extra") or {}))
        headers |= _mapping("headers", settings.get("headers") or {})
        headers |= _mapping("extra_headers", own.pop("extra_headers", None) or {})
        extra |= {**_mapping("extra_body", own.pop("extra_body", None) or {}), **own}
    return extra, headers


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A hint for an unknown name, if a known one is similar."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_choice(choice: Any) -> None:
    names = choice if isinstance(choice, list | tuple | set | frozenset) else None
    if choice is None or isinstance(choice, str | Mapping):
        return
    if not names or not all(isinstance(name, str) for name in names):
        text = "'auto', 'required', 'none', the name of a tool, a list of names or the vendor's own mapping"
        raise ConfigError(f"tool_choice={choice!r} must be {text}")


def narrow_tools(request: ModelRequest, settings: dict[str, Any]) -> tuple[ModelRequest, dict[str, Any]]:
    """Replace a list as `tool_choice`, for a vendor that does not accept lists: the request then has only the tools on
    the list, and the model must call one."""
    choice = settings.get("tool_choice")
    if choice is None or isinstance(choice, str | Mapping):
        check_choice(request.tools, settings)
        return request, settings
    return request.replace(tools=choose_tools(request.tools, choice)), {**settings, "tool_choice": "required"}


def check_choice(tools: tuple[ToolSpec, ...], settings: Settings) -> None:
    """Raise if `tool_choice` is the name of a tool that the request does not have; `extra` may have tools, too."""
    choice = settings.get("tool_choice")
    named = isinstance(choice, str) and choice not in ("auto", "required", "none")
    if named and tools and not settings["extra"].get("tools") and all(tool.name != choice for tool in tools):
        known = [tool.name for tool in tools]
        text = f"tool_choice={choice!r} is neither 'auto', 'required' or 'none' nor a tool of this request"
        raise ConfigError(f"{text}; its tools are {', '.join(known)}{did_you_mean(choice, known)}")


def choose_tools(tools: tuple[ToolSpec, ...], names: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools with these names; raises if there is none."""
    found = tuple(tool for tool in tools if tool.name in names)
    if tools and not found:
        known = ", ".join(tool.name for tool in tools)
        raise ConfigError(f"tool_choice={list(names)!r} names no tool of this request; its tools are {known}")
    return found


def _mapping(name: str, value: Any) -> Settings:
    if isinstance(value, Mapping):
        return value
    raise ConfigError(f"{name} must be a mapping of names to values, not {value!r:.100}")


def system_with_schema(output: Settings, system: str) -> str:
    """The system text with the schema of the answer, for a model that takes the schema in no other way."""
    schema = json.dumps(thawed(output), ensure_ascii=False)
    return f"{system}\n\nYour final answer is JSON that fits this schema, and nothing else:\n{schema}".lstrip()


def merge_extra(ours: Wire, extra: Settings) -> Wire:
    """Our body with the user's extra fields: mappings are merged, tools are appended, other values replace ours."""
    both = dict(ours)
    for key, value in extra.items():
        present = ours.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            both[key] = merge_extra(present, value)
        elif key == "tools" and present:
            both[key] = [*present, *value]
        else:
            both[key] = value
    return both


__all__ = [
    "COMMON",
    "Settings",
    "check_choice",
    "choose_tools",
    "did_you_mean",
    "merge_extra",
    "merged",
    "narrow_tools",
    "refuse_lacking",
    "system_with_schema",
]
