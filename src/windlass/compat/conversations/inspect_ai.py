"""Messages as the datasets of Inspect have them."""

from __future__ import annotations

from typing import Any

from windlass.messages import (
    AudioPart,
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
)

from .parts import Ids, Wire, arguments_object, note, succeeded, url_of

_SOUNDS = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}
_VIDEOS = {"video/mpeg": "mpeg", "video/quicktime": "mov"}


def add(wire: list[Wire], message: Message, ids: Ids) -> None:
    """Add a message to a list."""
    wire += [_result(part, ids) for part in message.parts if type(part) is ToolResultPart]
    if message.role == "tool":
        return
    entry: Wire = {"role": message.role, "content": _content(message.parts, ids)}
    if message.tool_calls:
        entry["tool_calls"] = [_call(call, ids) for call in message.tool_calls]
    wire.append(entry)


def _call(call: ToolCallPart, ids: Ids) -> Wire:
    arguments = arguments_object(call.json)
    wrong = {} if arguments is not None else {"parse_error": f"the arguments are not a JSON object: {call.json}"}
    return {"id": ids.call(call), "function": call.name, "arguments": arguments or {}, "type": "function", **wrong}


def _result(part: ToolResultPart, ids: Ids) -> Wire:
    told = {"role": "tool", "tool_call_id": ids.result(part), "function": part.name}
    failed = {} if succeeded(part) else {"error": {"type": "unknown", "message": part.text}}
    return {**told, "content": _content(part.content, ids), **failed}


def _content(parts: tuple[Any, ...], ids: Ids) -> Any:
    known = (ToolCallPart, ToolResultPart, OpaquePart)
    shown = [part for part in parts if not isinstance(part, known)]
    if all(type(part) is TextPart for part in shown) and len(shown) < 2:
        return "".join([part.text for part in shown])
    return [_block(part) for part in shown]


def _block(part: Any) -> Wire:
    if type(part) is TextPart:
        return {"type": "text", "text": part.text}
    if type(part) is ThinkingPart:
        return {"type": "reasoning", "reasoning": part.text, "signature": part.signature, "redacted": part.redacted}
    if type(part) is ImagePart:
        return {"type": "image", "image": url_of(part)}
    if type(part) is AudioPart:
        return {"type": "audio", "audio": url_of(part), "format": _SOUNDS.get(part.media_type, "wav")}
    if type(part) is VideoPart:
        return {"type": "video", "video": url_of(part), "format": _VIDEOS.get(part.media_type, "mp4")}
    if type(part) is DocumentPart:
        document = {"type": "document", "document": url_of(part), "mime_type": part.media_type}
        return {**document, **({"filename": part.name} if part.name else {})}
    return {"type": "text", "text": note(part)}
