"""Anthropic's replies as ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windlass.errors import BadReply
from windlass.messages import Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage

from .encode import FIELDS, VENDOR

Block = Mapping[str, Any]

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "other",
}


def decode_reply(message: Any) -> ModelReply:
    """The reply that a message of the SDK is."""
    if getattr(message, "type", None) != "message":
        raise BadReply(f"expected a message, got {str(message)[:200]!r}")
    parts = [part for block in message.content or () for part in decode_block(block.to_dict())]
    return make_reply(parts, message, message.stop_reason, message.stop_details, usage_numbers(message.usage))


def make_reply(
    parts: Iterable[Part], message: Any, stop: str | None, details: Any, usage: Mapping[str, int]
) -> ModelReply:
    """A reply of its parts; `message` says who gave it."""
    parts = tuple(parts)
    finish = FINISHES.get(stop or "", "other")
    if finish == "refusal" and not any(type(part) is TextPart for part in parts):
        explanation = getattr(details, "explanation", None)
        parts += (TextPart(explanation),) if explanation else ()
    return ModelReply(
        Message("assistant", parts),
        decode_usage(usage),
        finish,
        model=message.model,
        raw_finish=stop,
        response_id=message.id,
    )


def usage_numbers(usage: Any) -> dict[str, int]:
    """The numbers that a usage of the SDK has; those it does not have are not zero but unknown."""
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    numbers = {name: getattr(usage, name, None) for name in names}
    numbers["thinking_tokens"] = getattr(getattr(usage, "output_tokens_details", None), "thinking_tokens", None)
    return {name: number for name, number in numbers.items() if number is not None}


def decode_usage(numbers: Mapping[str, int]) -> Usage:
    """What was spent. The vendor counts what its cache read and wrote beside the input; we count it in."""
    cached = numbers.get("cache_read_input_tokens", 0)
    written = numbers.get("cache_creation_input_tokens", 0)
    return Usage(
        input=numbers.get("input_tokens", 0) + cached + written,
        output=numbers.get("output_tokens", 0),
        cached=cached,
        cache_written=written,
        reasoning=numbers.get("thinking_tokens", 0),
    )


def decode_block(block: Block, written: str | None = None) -> list[Part]:
    """The parts of one block. `written` is the JSON of its input as the model wrote it, where that is known."""
    kind = str(block.get("type"))
    if kind in CODECS:
        return CODECS[kind](block, written)
    executed = kind.endswith(("tool_use", "tool_result"))
    return [OpaquePart(VENDOR, dict(block), mediated=not executed)]


def _text(block: Block, written: str | None) -> list[Part]:
    return [TextPart(block.get("text") or ""), *_rest(block, "text")]


def _thinking(block: Block, written: str | None) -> list[Part]:
    part = ThinkingPart(block.get("thinking") or "", block.get("signature") or None, vendor=VENDOR)
    return [part, *_rest(block, "thinking", "signature")]


def _redacted(block: Block, written: str | None) -> list[Part]:
    return [ThinkingPart("", block.get("data"), redacted=True, vendor=VENDOR), *_rest(block, "data")]


def _call(block: Block, written: str | None) -> list[Part]:
    text = written or json.dumps(block.get("input") or {}, ensure_ascii=False, separators=(",", ":"))
    call = ToolCallPart(block.get("name") or "", text, vendor_id=block.get("id"))
    rest = _rest(block, "id", "name", "input")
    return [call] if rest and rest[0].data == {FIELDS: {"caller": {"type": "direct"}}} else [call, *rest]


def _rest(block: Block, *known: str) -> list[OpaquePart]:
    """What a block has beyond what our part can hold (citations, for one), to go back with it."""
    rest = {key: value for key, value in block.items() if key not in ("type", *known) and value is not None}
    return [OpaquePart(VENDOR, {FIELDS: rest})] if rest else []


CODECS: dict[str, Callable[[Block, str | None], list[Part]]] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _call,
}

__all__ = ["CODECS", "FINISHES", "decode_block", "decode_reply", "decode_usage", "make_reply", "usage_numbers"]
