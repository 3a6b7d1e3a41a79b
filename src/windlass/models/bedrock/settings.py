"""Encodes settings for Bedrock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LACKS = ("presence_penalty", "frequency_penalty", "seed", "parallel_tool_calls", "prompt_cache_key")
"""The common settings that the vendor does not have."""
INFERENCE = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxTokens"}


def inference(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the body with the sampling settings and the service tier."""
    config: dict[str, Any] = {theirs: settings[ours] for ours, theirs in INFERENCE.items() if ours in settings}
    if stop := settings.get("stop"):
        config["stopSequences"] = [stop] if isinstance(stop, str) else list(stop)
    wire: dict[str, Any] = {"inferenceConfig": config} if config else {}
    if "service_tier" in settings:
        wire["serviceTier"] = {"type": settings["service_tier"]}
    return wire


def tool_choice(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The field that says which tools the model must use, if the settings say so. It cannot express "none"."""
    choice = settings.get("tool_choice")
    if choice is None or choice == "none":
        return {}
    if isinstance(choice, Mapping):
        return {"toolChoice": dict(choice)}
    known: dict[str, Any] = {"auto": {"auto": {}}, "required": {"any": {}}}
    return {"toolChoice": known.get(choice, {"tool": {"name": choice}})}


__all__ = ["LACKS", "inference", "tool_choice"]
