"""Encodes settings for Anthropic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.models.claude import BUDGETS, thinking

LACKS = ("presence_penalty", "frequency_penalty", "seed", "prompt_cache_key")
"""The common settings that the vendor does not have."""
_PLAIN = ("temperature", "top_p", "top_k", "service_tier")
MAX_TOKENS = 16_384
"""The default of `max_tokens`, which the vendor requires; older models accept only less."""
_OLDER = (
    (re.compile(r"claude-3-(opus|sonnet|haiku)"), 4096),
    (re.compile(r"claude-3-5|claude-opus-4-(0|1|2025)|claude-opus-4@|claude-4-opus|^(?!.*claude)"), 8192),
)
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


def encode_settings(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the body for these settings."""
    body: dict[str, Any] = {name: settings[name] for name in _PLAIN if name in settings}
    if stop := settings.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    body |= _reasoning(model, settings.get("reasoning"), settings.get("max_tokens"))
    budget: int = body.get("thinking", {}).get("budget_tokens", 0)
    body["max_tokens"] = settings.get("max_tokens", _longest(model) + budget)
    return body


def _longest(model: str) -> int:
    return next((tokens for older, tokens in _OLDER if older.search(model)), MAX_TOKENS)


def tool_choice(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The field that says which tools the model may or must use, if the settings say so."""
    choice, single = settings.get("tool_choice"), settings.get("parallel_tool_calls") is False
    if choice is None and not single:
        return {}
    if isinstance(choice, Mapping):
        return {"tool_choice": dict(choice)}
    name = choice or "auto"
    wire: dict[str, Any] = {"type": _CHOICES[name]} if name in _CHOICES else {"type": "tool", "name": name}
    if single and name != "none":
        wire["disable_parallel_tool_use"] = True
    return {"tool_choice": wire}


def _reasoning(model: str, reasoning: Any, room: int | None) -> dict[str, Any]:
    config, effort = thinking(model, reasoning, room)
    body: dict[str, Any] = {} if config is None else {"thinking": config}
    return body if effort is None else {**body, "output_config": {"effort": effort}}


__all__ = ["BUDGETS", "LACKS", "MAX_TOKENS", "encode_settings", "tool_choice"]
