"""Encodes requests for Chat Completions: one small codec per kind of part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windlass.errors import ConfigError
from windlass.messages import (
    MEDIA_PARTS,
    MediaPart,
    Message,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    thawed,
)
from windlass.models.history import History, IdOf, Wire
from windlass.models.media import data_url, file_name, form_of, inline_data, note
from windlass.models.openai.dialects import Dialect
from windlass.models.openai.settings import Formats, Tools, effort, with_extra
from windlass.models.settings import system_with_schema

_PLAIN = (
    "temperature", "top_p", "top_k", "max_tokens", "stop", "presence_penalty", "frequency_penalty", "seed",
    "service_tier", "prompt_cache_key",
)  # fmt: skip
"""The settings that are sent unchanged."""
_MISTRALS_MODELS = re.compile(r"mistral|mixtral|ministral|magistral|devstral|codestral|pixtral")


class ChatEncoder:
    """Encodes requests to one model, and caches the encoded messages and tools."""

    def __init__(self, model: str, dialect: Dialect) -> None:
        self._model = model
        self._dialect = dialect
        self._mistrals = dialect.vendor == "mistral" or _MISTRALS_MODELS.search(model.lower()) is not None
        self._join = _join_with_bridge if self._mistrals else list.extend
        self._history = History(self._message, dialect.wire_id, self._join)
        self._tools = Tools(_tool, _native, dialect.name, strictly=dialect.strict_tools)
        self._formats = Formats()

    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire:
        """The body of the HTTP request."""
        text, output = request.system, request.output
        if output is not None and not self._dialect.schemas:
            text = system_with_schema(output, text)
        system = [{"role": "system", "content": text}] if text else []
        body: Wire = {"model": self._model, "messages": self._history.encoded(request.messages, system)}
        if request.tools:
            body["tools"] = self._tools.encoded(request.tools)
        if output is not None:
            body["response_format"] = self._format(output)
        if streaming:
            body["stream"] = True
            if self._dialect.asks_for_usage:
                body["stream_options"] = {"include_usage": True}
        tools = bool(request.tools or settings["extra"].get("tools"))
        return with_extra({**body, **self._settings(settings, tools, request.tools)}, settings["extra"])

    def _format(self, output: Mapping[str, Any]) -> Wire:
        if not self._dialect.schemas:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": self._formats.of(output)}

    def _settings(self, settings: Mapping[str, Any], tools: bool, specs: tuple[ToolSpec, ...]) -> Wire:
        names = {"max_tokens": self._dialect.limit, "seed": self._dialect.seed}
        known = [name for name in _PLAIN if name in settings and name not in self._dialect.lacks]
        wire = {names.get(name, name): thawed(settings[name]) for name in known}
        if tools and "parallel_tool_calls" in settings:
            wire["parallel_tool_calls"] = settings["parallel_tool_calls"]
        if tools and "tool_choice" in settings:
            custom = [spec.name for spec in specs if self._dialect.name in spec.native]
            wire["tool_choice"] = _choice(settings["tool_choice"], custom)
        return wire | self._reasoning(settings)

    def _reasoning(self, settings: Mapping[str, Any]) -> Wire:
        config = effort(settings.get("reasoning"))
        if config and self._dialect.effort == "reasoning":
            return {"reasoning": config}
        if config and "effort" not in config:
            raise ConfigError(f"reasoning={config!r} has no effort, and {self._dialect.vendor} accepts only an effort")
        return {self._dialect.effort: config["effort"]} if config else {}

    def _message(self, message: Message, id_of: IdOf) -> list[Wire]:
        if message.role == "assistant":
            return self._assistant(message, id_of)
        results = [part for part in message.parts if type(part) is ToolResultPart]
        wire: list[Wire] = [{"role": "tool", "tool_call_id": id_of(part), "content": _result(part)} for part in results]
        shown = [item for part in results for item in self._shown(part)]
        content = shown + [item for part in message.parts if (item := self._content(part)) is not None]
        if content:
            self._join(wire, [{"role": "user", "content": self._plain(content)}])
        return wire

    def _content(self, part: Part) -> Wire | None:
        if type(part) is TextPart:
            return _text(part.text)
        if type(part) is OpaquePart:
            return thawed(part.data) if part.vendor == self._dialect.vendor and "type" in part.data else None
        return self._media(part) if isinstance(part, MEDIA_PARTS) else None

    def _media(self, part: MediaPart) -> Wire:
        if not self._dialect.accepts(part):
            return _text(note(part))
        form = form_of(part, self._dialect.files)
        codec = _MISTRALS.get(form) if self._dialect.vendor == "mistral" else None
        return (codec or _MEDIA[form])(part)

    def _shown(self, part: ToolResultPart) -> list[Wire]:
        """The content of a result that a tool message cannot have; it follows in a user message."""
        media = [self._media(item) for item in part.content if isinstance(item, MEDIA_PARTS)]
        return [_text(f"From {part.name}:"), *media] if media else []

    def _assistant(self, message: Message, id_of: IdOf) -> list[Wire]:
        wire: Wire = {"role": "assistant"}
        content: list[Wire] = []
        for part in message.parts:
            if type(part) is ToolCallPart:
                wire.setdefault("tool_calls", []).append(self._call(part, id_of(part)))
            elif type(part) is ThinkingPart:
                self._think(part, wire, content)
            elif type(part) is OpaquePart and part.vendor == self._dialect.vendor and "type" not in part.data:
                self._return(part.data, wire, message.tool_calls)
            elif type(part) not in MEDIA_PARTS and (item := self._content(part)) is not None:
                content.append(item)
        if content or "tool_calls" not in wire:
            wire["content"] = self._plain(content)
        if "tool_calls" in wire and self._dialect.wants_thinking:
            # An empty text would be rejected, too.
            wire.setdefault(self._dialect.thinking, " ")
        silent = wire == {"role": "assistant", "content": ""}
        return [] if silent and self._mistrals else [wire]

    def _call(self, part: ToolCallPart, id: str) -> Wire:
        function = {"name": part.name, "arguments": self._dialect.arguments(part.json)}
        return {"id": id, "type": "function", "function": function}

    def _plain(self, content: list[Wire]) -> str | list[Wire]:
        """Content as a plain text if it is only one: every server supports that."""
        texts = [item["text"] for item in content if item["type"] == "text"]
        if len(texts) == len(content) and (len(texts) < 2 or not self._dialect.texts):
            return "\n\n".join(texts)
        return content

    def _think(self, part: ThinkingPart, wire: Wire, content: list[Wire]) -> None:
        """Add thinking, which is sent back only to the vendor it came from."""
        if part.vendor != self._dialect.vendor:
            return
        if self._dialect.thinking == "content":
            content.append({"type": "thinking", "thinking": [{"type": "text", "text": part.text}]})
        else:
            wire[self._dialect.thinking] = wire.get(self._dialect.thinking, "") + part.text

    def _return(self, data: Mapping[str, Any], wire: Wire, calls: Iterable[ToolCallPart]) -> None:
        """Add the vendor's own fields that it needs back; they come after the calls."""
        if "audio" in data:
            wire["audio"] = {"id": data["audio"].get("id")}
        if "reasoning_details" in data:
            wire["reasoning_details"] = thawed(data["reasoning_details"])
        if "thinking_field" in data and self._dialect.thinking in wire:
            wire[data["thinking_field"]] = wire.pop(self._dialect.thinking)
        for call, part in zip(wire.get("tool_calls", ()), calls, strict=False) if "calls" in data else ():
            call.update(thawed(data["calls"].get(part.vendor_id or "", {})))
            if "custom" in call:
                call["type"] = "custom"
                call.pop("function", None)


def _join_with_bridge(row: list[Wire], wire: list[Wire]) -> None:
    """Add messages to a row. Mistral's models reject a user message right after a tool's."""
    if row and wire and (row[-1]["role"], wire[0]["role"]) == ("tool", "user"):
        row.append({"role": "assistant", "content": "I have read the results."})
    row.extend(wire)


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _image(part: MediaPart) -> Wire:
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


def _document(part: MediaPart) -> Wire:
    return {"type": "file", "file": {"filename": file_name(part), "file_data": data_url(part)}}


def _file(part: MediaPart) -> Wire:
    return {"type": "file", "file": {"file_id": data_url(part)}}


def _audio(part: MediaPart) -> Wire:
    media_type, data = inline_data(part) or ("", "")
    kind = media_type.rpartition("/")[2].removeprefix("x-")
    return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(kind, kind)}}


def _audio_url(part: MediaPart) -> Wire:
    return {"type": "audio_url", "audio_url": {"url": data_url(part)}}


def _video(part: MediaPart) -> Wire:
    return {"type": "video_url", "video_url": {"url": data_url(part)}}


_MEDIA: dict[str, Callable[[MediaPart], Wire]] = {
    "image": _image,
    "image_url": _image,
    "document": _document,
    "document_url": _document,
    "document_file": _file,
    "audio": _audio,
    "audio_url": _audio_url,
    "video": _video,
    "video_url": _video,
}


def _mistrals_document(part: MediaPart) -> Wire:
    return {"type": "document_url", "document_url": data_url(part)}


def _mistrals_audio(part: MediaPart) -> Wire:
    found = inline_data(part)
    return {"type": "input_audio", "input_audio": found[1] if found else data_url(part)}


_MISTRALS: dict[str, Callable[[MediaPart], Wire]] = {
    "document": _mistrals_document,
    "document_url": _mistrals_document,
    "document_file": lambda part: {"type": "file", "file_id": data_url(part)},
    "audio": _mistrals_audio,
    "audio_url": _mistrals_audio,
}
"""The forms that Mistral sends differently."""


def _result(part: ToolResultPart) -> str:
    """The text of a result. Files follow in a user message: a tool message cannot have any."""
    kinds = {type(item).__name__.removesuffix("Part").lower() for item in part.content if type(item) in MEDIA_PARTS}
    return part.text or (f"The {kinds.pop() if len(kinds) == 1 else 'content'} follows." if kinds else "")


def _choice(choice: Any, custom: list[str]) -> Any:
    if isinstance(choice, Mapping):
        return thawed(choice)
    if choice in custom:
        return {"type": "custom", "custom": {"name": choice}}
    return choice if choice in ("auto", "required", "none") else {"type": "function", "function": {"name": choice}}


def _native(tool: ToolSpec, definition: Wire) -> Wire:
    custom = {"name": tool.name, "description": tool.description, **definition.get("custom", {})}
    return {"type": "custom", **definition, "custom": custom}


def _tool(function: Wire) -> Wire:
    return {"type": "function", "function": function}
