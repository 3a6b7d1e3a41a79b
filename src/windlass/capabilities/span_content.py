"""What models and tools were told and said, as the JSON that OpenTelemetry's conventions define."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from windlass.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    VideoPart,
)

Mask: TypeAlias = Callable[[Any], Any]
"""Takes the secrets of the application out of a JSON value."""


def asked(request: ModelRequest, mask: Mask) -> dict[str, str]:
    """What a model is told."""
    content = {"gen_ai.input.messages": _text(_messages(request.messages), mask)}
    if request.system:
        content["gen_ai.system_instructions"] = _text([{"type": "text", "content": request.system}], mask)
    return content


def replied(reply: ModelReply, mask: Mask) -> dict[str, str]:
    """What a model said."""
    return {
        "gen_ai.output.messages": _text([message_json(reply.message) | {"finish_reason": finish_reason(reply)}], mask)
    }


def finish_reason(reply: ModelReply) -> str:
    """Why the model stopped, in the words of the conventions."""
    return "tool_call" if reply.finish == "tool_calls" else reply.finish


def arguments_of(arguments: str, mask: Mask) -> dict[str, str]:
    """What a tool is given; `arguments` is JSON."""
    return {"gen_ai.tool.call.arguments": _text(_json(arguments), mask)}


def returned(result: ToolResult, mask: Mask) -> dict[str, str]:
    """What a tool returned, as the model reads it."""
    return {"gen_ai.tool.call.result": _text(result.text, mask)}


def turn_of(message: Message | None, text: str, mask: Mask) -> dict[str, str]:
    """What a user said to an agent, and its answer."""
    answer = {"role": "assistant", "parts": [{"type": "text", "content": text}]}
    content = {} if message is None else {"gen_ai.input.messages": _text(_messages([message]), mask)}
    return content | ({"gen_ai.output.messages": _text([answer], mask)} if text else {})


def _text(value: Any, mask: Mask) -> str:
    masked = mask(value)
    return masked if isinstance(masked, str) else json.dumps(masked, ensure_ascii=False, default=str)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    return [message_json(message) for message in messages]


def message_json(message: Message) -> dict[str, Any]:
    """A message, with its parts."""
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _part(part: Part) -> Mapping[str, Any]:
    match part:
        case TextPart(text=text):
            return {"type": "text", "content": text}
        case ThinkingPart(text=text):
            return {"type": "reasoning", "content": text}
        case ToolCallPart(name=name, json=arguments, id=id):
            return {"type": "tool_call", "id": id, "name": name, "arguments": _json(arguments)}
        case ToolResultPart(call_id=id, text=text):
            return {"type": "tool_call_response", "id": id, "response": text}
        case ImagePart() | DocumentPart() | AudioPart() | VideoPart():
            return _media(part)
        case FilePart(id=id, media_type=media):
            return {"type": "file", "mime_type": media, "modality": _modality(media), "file_id": id}
        case _:
            return {"type": "opaque", "vendor": part.vendor}


def _modality(media_type: str) -> str:
    """What kind of content it is, by its type: what is not seen or heard is a document."""
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def _media(part: ImagePart | DocumentPart | AudioPart | VideoPart) -> Mapping[str, Any]:
    """A part that is not text: its address, or how many bytes it has. The bytes themselves are left out."""
    modality = str(type(part).__struct_config__.tag)
    known = {"mime_type": part.media_type, "modality": modality}
    if part.url is not None:
        return {"type": "uri", **known, "uri": part.url}
    return {"type": "blob", **known, "size": len(part.data or b"")}
