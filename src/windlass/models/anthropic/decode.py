"""Decodes Anthropic's replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windlass.errors import BadReply
from windlass.messages import Message, ModelReply, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from windlass.models.parts import text_in
from windlass.models.usage import positive_counts, tier

from .encode import CONTAINER, FIELDS, VENDOR

Block = Mapping[str, Any]

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "paused",
    "compaction": "paused",
}
DETAILS = ("cache_write_1h_tokens", "web_searches", "other_iterations", "priority_requests", "fast_requests")
FALLBACK = "fallback"
"""The type of the block after which another model continues, because the previous one declined."""


def decode_reply(answer: Any) -> ModelReply:
    """Decode a whole answer."""
    if not isinstance(answer, Mapping) or answer.get("type", "message") != "message" or "content" not in answer:
        raise BadReply(f"expected a message, got {str(answer)[:200]!r}")
    parts = [part for block in answer["content"] or () for part in decode_block(block)]
    return make_reply(parts, answer, answer, usage_numbers(answer.get("usage")))


def make_reply(parts: Iterable[Part], message: Block, ending: Block, usage: Mapping[str, int]) -> ModelReply:
    """A reply made of these parts; `message` has its model and id, `ending` the reason why it ends."""
    parts = _without_declined_calls(list(parts))
    stop = text_in(ending, "stop_reason") or None
    finish = FINISHES.get(stop or "", "other")
    if finish == "stop" and any(type(part) is ToolCallPart for part in parts):
        finish = "tool_calls"
    if (explanation := refusal(ending)) and not any(type(part) is TextPart for part in parts):
        parts.append(TextPart(explanation))
    if (container := ending.get(CONTAINER) or message.get(CONTAINER)) is not None:
        parts.append(OpaquePart(VENDOR, {CONTAINER: container}))
    return ModelReply(
        Message("assistant", tuple(parts)),
        decode_usage(usage),
        finish,
        model=text_in(message, "model") or None,
        raw_finish=stop,
        response_id=text_in(message, "id") or None,
    )


def _without_declined_calls(parts: list[Part]) -> list[Part]:
    """The parts without calls of a model that then declined: such calls may be cut off, and need no result."""
    fallbacks = [at for at, part in enumerate(parts) if type(part) is OpaquePart and part.data.get("type") == FALLBACK]
    before = fallbacks[-1] if fallbacks else 0
    declined = [
        OpaquePart(VENDOR, {"declined": {"name": part.name, "json": part.json}}) if type(part) is ToolCallPart else part
        for part in parts[:before]
    ]
    return [*declined, *parts[before:]]


def refusal(ending: Block) -> str | None:
    """The vendor's explanation of a refusal, if there is one."""
    if ending.get("stop_reason") != "refusal":
        return None
    return (ending.get("stop_details") or {}).get("explanation")


def usage_numbers(usage: Block | None) -> dict[str, int]:
    """The numbers in a usage. A missing number is unknown, not zero."""
    usage = usage or {}
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    numbers = {name: usage.get(name) for name in names}
    numbers["thinking_tokens"] = (usage.get("output_tokens_details") or {}).get("thinking_tokens")
    numbers["cache_write_1h_tokens"] = (usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens")
    numbers["web_searches"] = (usage.get("server_tool_use") or {}).get("web_search_requests")
    numbers["other_iterations"] = _other_iterations(usage.get("iterations"))
    numbers |= {**tier(usage.get("service_tier")), **tier(usage.get("speed"))}
    return {name: number for name, number in numbers.items() if number is not None}


def _other_iterations(iterations: Any) -> int | None:
    """How many model calls are not counted in the reply's tokens, such as calls for compaction or advice."""
    return sum(one.get("type") != "message" for one in iterations) if iterations else None


def decode_usage(numbers: Mapping[str, int]) -> Usage:
    """The usage. The vendor counts cache reads and writes separately from the input; we include them."""
    cached = numbers.get("cache_read_input_tokens", 0)
    written = numbers.get("cache_creation_input_tokens", 0)
    return Usage(
        input=numbers.get("input_tokens", 0) + cached + written,
        output=numbers.get("output_tokens", 0),
        cached=cached,
        cache_written=written,
        reasoning=numbers.get("thinking_tokens", 0),
        details=positive_counts(**{kind: numbers.get(kind) for kind in DETAILS}),
    )


def decode_block(block: Block, written: str | None = None) -> list[Part]:
    """The parts of one block. `written` is the JSON of its input as the model wrote it, if it is known."""
    kind = str(block.get("type"))
    if kind in CODECS:
        return CODECS[kind](block, written)
    executed = kind.endswith(("tool_use", "tool_result")) or kind == "container_upload"
    return [OpaquePart(VENDOR, dict(block), mediated=not executed)]


def _text(block: Block, written: str | None) -> list[Part]:
    return [TextPart(text_in(block, "text")), *_rest(block, "text")]


def _thinking(block: Block, written: str | None) -> list[Part]:
    part = ThinkingPart(text_in(block, "thinking"), text_in(block, "signature") or None, vendor=VENDOR)
    return [part, *_rest(block, "thinking", "signature")]


def _redacted(block: Block, written: str | None) -> list[Part]:
    return [ThinkingPart("", text_in(block, "data"), redacted=True, vendor=VENDOR), *_rest(block, "data")]


def _call(block: Block, written: str | None) -> list[Part]:
    arguments = {} if block.get("input") is None else block["input"]
    text = written or json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    call = ToolCallPart(text_in(block, "name"), text, vendor_id=text_in(block, "id") or None)
    direct = block.get("caller") == {"type": "direct"}
    return [call, *_rest(block, "id", "name", "input", *(("caller",) if direct else ()))]


def _rest(block: Block, *known: str) -> list[OpaquePart]:
    """The fields of a block that our part has no place for, such as citations; they are sent back with it."""
    rest = {key: value for key, value in block.items() if key not in ("type", *known) and value is not None}
    return [OpaquePart(VENDOR, {FIELDS: rest})] if rest else []


CODECS: dict[str, Callable[[Block, str | None], list[Part]]] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _call,
}

__all__ = [
    "CODECS",
    "FINISHES",
    "decode_block",
    "decode_reply",
    "decode_usage",
    "make_reply",
    "refusal",
    "usage_numbers",
]
