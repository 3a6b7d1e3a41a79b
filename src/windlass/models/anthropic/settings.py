"""Our settings in Anthropic's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.models.claude import BUDGETS, thinking
from windlass.models.settings import merging

merged = merging("cache")
MAX_TOKENS = 16_384
"""How long a reply may be unless `max_tokens` says; the vendor wants to be told, and older models refuse that much."""
_OLDER = (
    (re.compile(r"claude-3-(opus|sonnet|haiku)"), 4096),
    (re.compile(r"claude-3-5|claude-opus-4-(0|1|2025)|claude-opus-4@|claude-4-opus|^(?!.*claude)"), 8192),
)
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


def encode_settings(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the body that the settings say."""
    body: dict[str, Any] = {name: settings[name] for name in ("temperature", "top_p") if name in settings}
    if stop := settings.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    body |= _reasoning(model, settings.get("reasoning"), settings.get("max_tokens"))
    thought: int = body.get("thinking", {}).get("budget_tokens", 0)
    body["max_tokens"] = settings.get("max_tokens", _longest(model) + thought)
    return body


def _longest(model: str) -> int:
    return next((tokens for older, tokens in _OLDER if older.search(model)), MAX_TOKENS)


def tool_choice(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which tools the model may or must use, as far as that is said."""
    choice, single = settings.get("tool_choice"), settings.get("parallel_tool_calls") is False
    if choice is None and not single:
        return {}
    if isinstance(choice, Mapping):
        return {"tool_choice": dict(choice)}
    name = choice or "auto"
    told: dict[str, Any] = {"type": _CHOICES[name]} if name in _CHOICES else {"type": "tool", "name": name}
    if single and name != "none":
        told["disable_parallel_tool_use"] = True
    return {"tool_choice": told}


def _reasoning(model: str, reasoning: Any, room: int | None) -> dict[str, Any]:
    told, effort = thinking(model, reasoning, room)
    body: dict[str, Any] = {} if told is None else {"thinking": told}
    return body if effort is None else {**body, "output_config": {"effort": effort}}


__all__ = ["BUDGETS", "MAX_TOKENS", "encode_settings", "merged", "tool_choice"]
