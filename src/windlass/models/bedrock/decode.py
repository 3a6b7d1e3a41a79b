"""Decodes Bedrock's replies."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windlass.errors import BadReply
from windlass.messages import (
    ImagePart,
    Message,
    ModelReply,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
)
from windlass.models.parts import text_in
from windlass.models.usage import positive_counts, tier

from .encode import CITATIONS, REMARKS, VENDOR

Block = Mapping[str, Any]

METADATA = "ResponseMetadata"
"""The key for facts from the headers of an answer, as in AWS's tools."""
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "refusal": "refusal",
    "pause_turn": "paused",
}
OURS = (None, "", "tool_use")
"""The types of calls that we must run; the vendor runs calls of other types itself."""
MALFORMED = ("malformed_model_output", "malformed_tool_use")
"""The stop reasons for model output that Bedrock could not read."""


def decode_reply(answer: Any, model: str) -> ModelReply:
    """Decode a whole answer of this model."""
    message = answer.get("output", {}).get("message") if isinstance(answer, Mapping) else None
    if not isinstance(message, Mapping):
        raise BadReply(f"expected a message, got {str(answer)[:200]!r}", retryable=True)
    parts = [part for block in message.get("content") or () for part in decode_block(block)]
    return make_reply(parts, answer, model)


def make_reply(parts: Iterable[Part], about: Block, model: str) -> ModelReply:
    """A reply made of these parts; `about` is the rest of the answer, and `model` the one in the request."""
    parts = list(parts)
    id = (about.get(METADATA) or {}).get("RequestId")
    stop = text_in(about, "stopReason")
    called = any(type(part) is ToolCallPart for part in parts)
    if stop in MALFORMED and not called:
        raise BadReply(f"Bedrock could not read its model's answer: {stop}", retryable=True, request_id=id)
    finish = FINISHES.get(stop, "other")
    if finish == "stop" and called:
        finish = "tool_calls"
    parts += [OpaquePart(VENDOR, {name: about[name]}) for name in REMARKS if _has_content(about.get(name))]
    return ModelReply(
        Message("assistant", tuple(parts)),
        decode_usage(about.get("usage") or {}, (about.get("serviceTier") or {}).get("type")),
        finish,
        model=_router_chose(about.get("trace")) or model,
        raw_finish=stop or None,
        response_id=id,
    )


def _has_content(remark: Any) -> bool:
    """Whether a remark has any content: some consist only of nulls."""
    if isinstance(remark, Mapping):
        return any(_has_content(value) for value in remark.values())
    return remark is not None and remark != []


def _router_chose(trace: Block | None) -> str:
    """The model that a router chose; empty without a router."""
    router = (trace or {}).get("promptRouter") or {}
    return text_in(router, "invokedModelId").rpartition("/")[2]


def decode_usage(usage: Block, service: object = None) -> Usage:
    """The usage. The vendor counts cache reads and writes separately from the input; we include them."""
    cached = usage.get("cacheReadInputTokens") or 0
    written = usage.get("cacheWriteInputTokens") or 0
    return Usage(
        input=(usage.get("inputTokens") or 0) + cached + written,
        output=usage.get("outputTokens") or 0,
        cached=cached,
        cache_written=written,
        details=positive_counts(
            cache_write_1h_tokens=sum(
                detail.get("inputTokens") or 0
                for detail in usage.get("cacheDetails") or ()
                if detail.get("ttl") == "1h"
            ),
            server_tools=sum(run for run in (usage.get("serverToolUsage") or {}).values() if type(run) is int),
            **tier(service),
        ),
    )


def decode_block(block: Block, written: str | None = None) -> list[Part]:
    """The parts of one block. `written` is the JSON of its input as the model wrote it, if it is known."""
    present = {kind: content for kind, content in block.items() if content is not None}
    for kind, content in present.items():
        parts = CODECS[kind](content, written) if kind in CODECS else None
        if parts is not None:
            return parts
    executed = bool(present.keys() & {"toolUse", "toolResult"})
    return [OpaquePart(VENDOR, present, mediated=not executed)] if present else []


def _text(content: Any, written: str | None) -> list[Part] | None:
    return [TextPart(text_in({"text": content}, "text"))]


def _citations(content: Block, written: str | None) -> list[Part] | None:
    text = "".join([text_in(piece, "text") for piece in content.get("content") or ()])
    return [TextPart(text), OpaquePart(VENDOR, {CITATIONS: list(content.get("citations") or ())})]


def _reasoning(content: Block, written: str | None) -> list[Part] | None:
    if (thought := content.get("reasoningText")) is not None:
        return [ThinkingPart(text_in(thought, "text"), text_in(thought, "signature") or None, vendor=VENDOR)]
    hidden = text_in(content, "redactedContent")
    return [ThinkingPart("", hidden, redacted=True, vendor=VENDOR)] if hidden else None


def _call(content: Block, written: str | None) -> list[Part] | None:
    """A call, unless the vendor has run it itself."""
    if content.get("type") not in OURS:
        return None
    arguments = {} if content.get("input") is None else content["input"]
    if type(arguments) is str:  # as the model wrote it
        written, arguments = written or arguments, {}
    text = written or json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return [ToolCallPart(text_in(content, "name"), text, vendor_id=text_in(content, "toolUseId") or None)]


def _image(content: Block, written: str | None) -> list[Part] | None:
    source = content.get("source") or {}
    media_type = f"image/{text_in(content, 'format') or 'png'}"
    if data := text_in(source, "bytes"):
        return [ImagePart(b64decode(data), media_type=media_type)]
    address = text_in(source.get("s3Location") or {}, "uri")
    return [ImagePart(url=address, media_type=media_type)] if address else None


CODECS: dict[str, Callable[[Any, str | None], list[Part] | None]] = {
    "text": _text,
    "citationsContent": _citations,
    "reasoningContent": _reasoning,
    "toolUse": _call,
    "image": _image,
}

__all__ = ["CODECS", "FINISHES", "METADATA", "OURS", "decode_block", "decode_reply", "decode_usage", "make_reply"]
