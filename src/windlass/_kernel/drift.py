"""Drift: the differences between an agent and the one that recorded a turn."""

from __future__ import annotations

from typing import Any

import msgspec


def differences(recorded: bytes | None, current: bytes) -> tuple[str, ...]:
    """The differences between two descriptions of an agent, one line each."""
    if recorded is None:
        return ("the log does not describe the agent that recorded the turn",)
    old, new = msgspec.json.decode(recorded), msgspec.json.decode(current)
    return (
        *_changes("hook", _hooks_by_label(old), _hooks_by_label(new)),
        *_changes("tool", _tools_by_name(old), _tools_by_name(new)),
        *_changes("criterion", dict.fromkeys(old["criteria"]), dict.fromkeys(new["criteria"])),
        *(_prompt_changes(old["prompt"], new["prompt"]) if "prompt" in old else ()),
    )


def _prompt_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The differences in system text, model and output schema. Tools are compared elsewhere."""
    lines = _changes("system text", _sections_by_origin(old), _sections_by_origin(new))
    if old["model"] != new["model"]:
        lines.append(f"model {old['model']!r} is {new['model']!r} now")
    if old.get("output_schema") != new.get("output_schema"):
        lines.append("the schema of the output has changed")
    return lines


def _sections_by_origin(prompt: dict[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for section in prompt.get("sections", ()):
        origin = section.get("origin")
        label = "of the agent" if origin is None else f"of {origin!r}"
        sections.setdefault(label, []).append(section["text"])
    return sections


def _changes(what: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = [f"{what} {name} is gone" for name in old if name not in new]
    lines += [f"{what} {name} is new" for name in new if name not in old]
    for name in [name for name in old if name in new and old[name] != new[name]]:
        lines.append(f"{what} {name} has changed" + _field_changes(old[name], new[name]))
    return lines


def _field_changes(old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ""
    changed = [key for key in new if old.get(key) != new.get(key)]
    texts = [f"{key} {old.get(key)!r} is {new.get(key)!r} now" for key in changed]
    return f": {', '.join(texts)}"


def _hooks_by_label(description: dict[str, Any]) -> dict[str, Any]:
    """The hooks by name, kind and event. Equal labels are numbered."""
    hooks: dict[str, Any] = {}
    for row in description["hooks"]:
        name = label = f"{row['name']!r} ({row['kind']} on {row['event']})"
        number = 1
        while name in hooks:
            number += 1
            name = f"{label} no. {number}"
        hooks[name] = {key: row[key] for key in ("band", "priority")}
    return hooks


def _tools_by_name(description: dict[str, Any]) -> dict[str, Any]:
    return {repr(row["name"]): row["digest"] for row in description["tools"]}
