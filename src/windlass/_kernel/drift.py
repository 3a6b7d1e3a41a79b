"""Drift: how an agent differs from the one that a turn was recorded with."""

from __future__ import annotations

from typing import Any

import msgspec


def differences(recorded: bytes | None, current: bytes) -> tuple[str, ...]:
    """What was added, removed or changed since, one line each, from the two descriptions."""
    if recorded is None:
        return ("it is not known what the turn was recorded with",)
    old, new = msgspec.json.decode(recorded), msgspec.json.decode(current)
    return (
        *_changes("hook", _hooks(old), _hooks(new)),
        *_changes("tool", _tools(old), _tools(new)),
        *_changes("criterion", dict.fromkeys(old["criteria"]), dict.fromkeys(new["criteria"])),
        *(_said(old["prompt"], new["prompt"]) if "prompt" in old else ()),
    )


def _said(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """How what a model is told, whatever the conversation, has changed; its tools are compared elsewhere."""
    lines = _changes("system text", _sections(old), _sections(new))
    if old["model"] != new["model"]:
        lines.append(f"model {old['model']!r} is {new['model']!r} now")
    return (
        lines
        if old.get("output_schema") == new.get("output_schema")
        else [*lines, "the schema of the output has changed"]
    )


def _sections(prompt: dict[str, Any]) -> dict[str, Any]:
    """The sections of the system text by who put them there."""
    found: dict[str, Any] = {}
    for section in prompt.get("sections", ()):
        origin = section.get("origin")
        found.setdefault("of the agent" if origin is None else f"of {origin!r}", []).append(section["text"])
    return found


def _changes(what: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = [f"{what} {name} is gone" for name in old if name not in new]
    lines += [f"{what} {name} is new" for name in new if name not in old]
    for name in [name for name in old if name in new and old[name] != new[name]]:
        lines.append(f"{what} {name} has changed" + _how(old[name], new[name]))
    return lines


def _how(old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ""
    changed = [f"{key} {old.get(key)!r} is {new.get(key)!r} now" for key in new if old.get(key) != new.get(key)]
    return f": {', '.join(changed)}"


def _hooks(described: dict[str, Any]) -> dict[str, Any]:
    """The hooks by what they are; several of one name are numbered."""
    found: dict[str, Any] = {}
    for row in described["hooks"]:
        name = label = f"{row['name']!r} ({row['kind']} on {row['event']})"
        number = 1
        while name in found:
            number += 1
            name = f"{label} no. {number}"
        found[name] = {key: value for key, value in row.items() if key not in ("kind", "event", "name")}
    return found


def _tools(described: dict[str, Any]) -> dict[str, Any]:
    return {repr(row["name"]): row["digest"] for row in described["tools"]}
