"""The body of a request: the messages, the tools, and our settings in Anthropic's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.errors import ConfigError
from windlass.messages import ModelRequest, ToolSpec, thawed

from .encode import Block, Encoded, Encoder

SETTINGS = frozenset(
    [
        "temperature",
        "top_p",
        "max_tokens",
        "stop",
        "tool_choice",
        "parallel_tool_calls",
        "seed",
        "reasoning",
        "timeout",
        "cache",
        "extra",
    ]
)
MAX_TOKENS = 8192
"""How long a reply may be unless `max_tokens` says; the vendor wants to be told."""

_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_UNCACHEABLE = ("thinking", "redacted_thinking")


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, if all of them are known."""
    if unknown := sorted(set(settings) - SETTINGS):
        known = ", ".join(sorted(SETTINGS))
        raise ConfigError(f"settings {unknown} are not known; known: {known}. What only the vendor knows goes in extra")
    return dict(settings)


def merged_settings(ours: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a request on top of those of the model."""
    merged = {**ours, **asked}
    merged["extra"] = {**(ours.get("extra") or {}), **(asked.get("extra") or {})}
    return merged


def encode_body(encoder: Encoder, request: ModelRequest, settings: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """All that the vendor is told, but for the name of the model. `schema` is that of the output, if there is one."""
    extra = dict(settings["extra"])
    encoded = encoder.encode(request.messages)
    body: dict[str, Any] = {"messages": encoded.messages, "max_tokens": _max_tokens(settings)}
    if request.system:
        body["system"] = [{"type": "text", "text": request.system}]
    if tools := [*map(_tool, request.tools), *extra.pop("tools", ())]:
        body["tools"] = tools
        body |= _tool_choice(settings)
    for name in ("temperature", "top_p"):
        if settings.get(name) is not None:
            body[name] = settings[name]
    if stop := settings.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    body |= _reasoning(settings.get("reasoning"))
    if schema is not None:
        body["output_config"] = {**body.get("output_config", {}), "format": {"type": "json_schema", "schema": schema}}
    cache = settings.get("cache", True)
    if cache and "cache_control" not in extra:
        _set_breakpoints(body, encoded, {"type": "ephemeral"} | ({"ttl": cache} if isinstance(cache, str) else {}))
    if isinstance(config := extra.pop("output_config", None), Mapping):
        body["output_config"] = {**body.get("output_config", {}), **config}
    return body | extra


def _max_tokens(settings: Mapping[str, Any]) -> int:
    """A budget for reasoning comes on top of the room for the answer, where nobody says how much that is all in all."""
    budget = settings.get("reasoning")
    thought = budget if isinstance(budget, int) and not isinstance(budget, bool) else 0
    return settings.get("max_tokens") or MAX_TOKENS + thought


def _tool(spec: ToolSpec) -> Block:
    schema = thawed(spec.schema)
    schema.setdefault("type", "object")
    return {"name": spec.name, "description": spec.description, "input_schema": schema}


def _tool_choice(settings: Mapping[str, Any]) -> dict[str, Any]:
    choice, parallel = settings.get("tool_choice"), settings.get("parallel_tool_calls")
    if choice is None and parallel is not False:
        return {}
    name = choice or "auto"
    told: Block = {"type": _CHOICES[name]} if name in _CHOICES else {"type": "tool", "name": name}
    if parallel is not None and told["type"] != "none":
        told["disable_parallel_tool_use"] = not parallel
    return {"tool_choice": told}


def _reasoning(reasoning: Any) -> dict[str, Any]:
    """A budget in tokens, an effort in a word, yes or no, or the vendor's own words."""
    if reasoning is None:
        return {}
    if isinstance(reasoning, Mapping):
        return {"thinking": dict(reasoning)}
    if reasoning is False or reasoning == "none":
        return {"thinking": {"type": "disabled"}}
    if reasoning is True:
        return {"thinking": {"type": "adaptive"}}
    if isinstance(reasoning, int):
        return {"thinking": {"type": "enabled", "budget_tokens": reasoning}}
    effort = "low" if reasoning == "minimal" else reasoning
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}


def _set_breakpoints(body: dict[str, Any], encoded: Encoded, mark: Block) -> None:
    """Say where the vendor's cache may end: after what stays for the session, for the turn, and for the next step."""
    for name in ("tools", "system"):
        if name in body:
            _mark_last(body[name], mark)
    for place in {encoded.turn - 1, encoded.settled}:
        if place >= 0:
            message = body["messages"][place]
            content = list(message["content"])
            _mark_last(content, mark)
            body["messages"][place] = {**message, "content": content}


def _mark_last(blocks: list[Block], mark: Block) -> None:
    """Mark the last block that may be marked; the block itself is shared, so a copy is."""
    for place in range(len(blocks) - 1, -1, -1):
        if blocks[place].get("type") not in _UNCACHEABLE:
            blocks[place] = {**blocks[place], "cache_control": mark}
            return


def betas(body: dict[str, Any]) -> dict[str, str]:
    """The headers that switch on the betas of `extra`."""
    named: Sequence[str] = body.pop("betas", ())
    return {"anthropic-beta": ",".join(named)} if named else {}


__all__ = ["MAX_TOKENS", "SETTINGS", "betas", "checked_settings", "encode_body", "merged_settings"]
