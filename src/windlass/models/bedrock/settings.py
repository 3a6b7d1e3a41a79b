"""Encodes settings for Bedrock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.models.settings import make_merge

merged = make_merge("cache")
INFERENCE = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxTokens"}


def inference(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The field of the body with the sampling settings."""
    config: dict[str, Any] = {theirs: settings[ours] for ours, theirs in INFERENCE.items() if ours in settings}
    if stop := settings.get("stop"):
        config["stopSequences"] = [stop] if isinstance(stop, str) else list(stop)
    return {"inferenceConfig": config} if config else {}


def tool_choice(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The field that says which tools the model must use, if the settings say so. It cannot express "none"."""
    choice = settings.get("tool_choice")
    if choice is None or choice == "none":
        return {}
    if isinstance(choice, Mapping):
        return {"toolChoice": dict(choice)}
    known: dict[str, Any] = {"auto": {"auto": {}}, "required": {"any": {}}}
    return {"toolChoice": known.get(choice, {"tool": {"name": choice}})}


__all__ = ["inference", "merged", "tool_choice"]
