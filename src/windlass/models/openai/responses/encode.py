"""Encodes requests for Responses: one small codec per kind of part."""

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
from windlass.models.media import data_url, file_name, form_of, note
from windlass.models.openai.client_tools import acknowledge, call_item, choice_of, output_item, untagged
from windlass.models.openai.dialects import ELSEWHERE, Dialect
from windlass.models.openai.settings import Formats, Tools, effort, with_extra

from .decode import PLAIN_REASONING

_MESSAGE = {"type": "message", "role": "assistant"}
"""The beginning of an answer; llama.cpp requires its type."""
_REASONING_MODELS = re.compile(r"(?:^|[/:])(o\d|codex-|gpt-oss|gpt-[5-9](?!.*-chat))")


class ResponsesEncoder:
    """Encodes requests to one model, and caches the encoded messages and tools."""

    def __init__(self, model: str, dialect: Dialect) -> None:
        self._model = model
        self._dialect = dialect
        self._history = History(self._message, self._wire_id, acknowledge)
        self._tools = Tools(_tool, _native, dialect.name, strictly=dialect.strict_tools)
        self._formats = Formats()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise for stop sequences, which Responses does not have: without them an answer would be too long."""
        if settings.get("stop"):
            raise ConfigError("Responses has no stop sequences: leave out `stop`, or use the model as openai-chat:…")

    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire:
        """The body of the HTTP request."""
        self.check_settings(settings)
        body: Wire = {"model": self._model, "input": self._history.encoded(request.messages), "store": False}
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = self._tools.encoded(request.tools)
        if request.output is not None:
            body["text"] = {"format": {"type": "json_schema", **self._formats.of(request.output)}}
        if streaming:
            body["stream"] = True
        extra = settings["extra"]
        if extra.get("background"):
            del body["store"]
        return with_extra({**body, **self._settings(settings, request.tools, bool(extra.get("tools")))}, extra)

    def _settings(self, settings: Mapping[str, Any], specs: tuple[ToolSpec, ...], more: bool) -> Wire:
        tools = bool(specs) or more
        names = {"max_tokens": "max_output_tokens"}
        plain = ("temperature", "top_p", "max_tokens", "service_tier", "prompt_cache_key")
        wire = {names.get(name, name): settings[name] for name in plain if name in settings}
        if tools and "parallel_tool_calls" in settings:
            wire["parallel_tool_calls"] = settings["parallel_tool_calls"]
        if tools and "tool_choice" in settings:
            wire["tool_choice"] = self._choice(settings["tool_choice"], specs)
        config = effort(settings.get("reasoning"))
        if config:
            wire["reasoning"] = config
        if config or _REASONING_MODELS.search(self._model):
            wire["include"] = ["reasoning.encrypted_content"]
        return wire

    def _choice(self, choice: Any, specs: tuple[ToolSpec, ...]) -> Any:
        if isinstance(choice, Mapping):
            return thawed(choice)
        native = next((spec.native.get(self._dialect.name) for spec in specs if spec.name == choice), None)
        if native:
            return choice_of(native, choice)
        return choice if choice in ("auto", "required", "none") else {"type": "function", "name": choice}

    def _wire_id(self, call: str, vendor_id: str | None) -> str:
        """The id of a call on the wire. The kind before the id of a call of a tool that the vendor defined stays."""
        kind, id = untagged(vendor_id or "")
        return vendor_id or "" if kind else self._dialect.wire_id(call, id or None)

    def _message(self, message: Message, id_of: IdOf) -> list[Wire]:
        if message.role == "assistant":
            return self._assistant(message, id_of)
        wire: list[Wire] = []
        items: list[Wire] = []
        for part in message.parts:
            if type(part) is ToolResultPart:
                kind, id = untagged(id_of(part))
                output = self._output(part)
                plain = {"type": "function_call_output", "call_id": id, "output": output}
                told = output_item(kind, id, part, output) if kind else [plain]
                wire += told[:1]
                items += told[1:]
        items += [item for part in message.parts if (item := self._content(part)) is not None]
        wire += [item for item in items if not item["type"].startswith("input_")]
        if content := [item for item in items if item["type"].startswith("input_")]:
            wire.append({"role": "user", "content": _plain(content)})
        return wire

    def _output(self, part: ToolResultPart) -> str | list[Wire]:
        if all(type(item) is TextPart for item in part.content):
            return part.text
        return [wire for item in part.content if (wire := self._content(item)) is not None] or part.text

    def _content(self, part: Part) -> Wire | None:
        """The content of a user or a tool. Opaque parts of Responses go to every server that implements it."""
        if type(part) is OpaquePart:
            ours = part.vendor.removesuffix(ELSEWHERE) == self._dialect.name
            return thawed(part.data) if ours and "type" in part.data else None
        if isinstance(part, MEDIA_PARTS):
            accepted = self._dialect.accepts(part)
            return _MEDIA[form_of(part, self._dialect.files)](part) if accepted else _text(note(part))
        return _text(part.text) if type(part) is TextPart else None

    def _assistant(self, message: Message, id_of: IdOf) -> list[Wire]:
        items: list[Wire] = []
        calls: list[tuple[Wire, ToolCallPart]] = []
        thoughts: list[str] = []
        for part in message.parts:
            if type(part) is ThinkingPart and part.vendor == self._dialect.vendor:
                thoughts.append(part.text)
                if part.signature is None:
                    continue
                items.append(_reasoning(thoughts, part.signature))
            elif type(part) is OpaquePart and part.vendor == self._dialect.vendor and "type" not in part.data:
                _return(part.data, items, calls)
            elif (item := self._item(part, id_of)) is not None:
                items.append(item)
                if type(part) is ToolCallPart:
                    calls.append((item, part))
            thoughts = []
        return items

    def _item(self, part: Part, id_of: IdOf) -> Wire | None:
        if type(part) is TextPart:
            return {**_MESSAGE, "content": part.text}
        if type(part) is ToolCallPart:
            kind, id = untagged(id_of(part))
            if kind:
                return call_item(kind, id, part.name, part.arguments)
            arguments = self._dialect.arguments(part.json)
            return {"type": "function_call", "call_id": id_of(part), "name": part.name, "arguments": arguments}
        if type(part) is OpaquePart and part.vendor == self._dialect.vendor:
            data: Wire = thawed(part.data)
            return {**_MESSAGE, "content": [data]} if data["type"].startswith("output_") else data
        return None


def _reasoning(thoughts: list[str], signature: str) -> Wire:
    """An item of reasoning. The server stores none, so it is sent back in its encrypted form, which comes with the last
    piece. A server that does not encrypt reasoning accepts it as it was shown.
    """
    if signature.startswith(PLAIN_REASONING):
        content = [{"type": "reasoning_text", "text": text} for text in thoughts]
        id = signature.removeprefix(PLAIN_REASONING)
        return {"type": "reasoning", "id": id, "summary": [], "content": content}
    summary = [{"type": "summary_text", "text": text} for text in thoughts if text]
    return {"type": "reasoning", "summary": summary, "encrypted_content": signature}


def _text(text: str) -> Wire:
    return {"type": "input_text", "text": text}


_MEDIA: dict[str, Callable[[MediaPart], Wire]] = {
    "image": lambda part: {"type": "input_image", "image_url": data_url(part), "detail": "auto"},
    "image_url": lambda part: {"type": "input_image", "image_url": data_url(part), "detail": "auto"},
    "image_file": lambda part: {"type": "input_image", "file_id": data_url(part), "detail": "auto"},
    "document": lambda part: {"type": "input_file", "filename": file_name(part), "file_data": data_url(part)},
    "document_url": lambda part: {"type": "input_file", "file_url": data_url(part)},
    "document_file": lambda part: {"type": "input_file", "file_id": data_url(part)},
}


def _plain(content: list[Wire]) -> str | list[Wire]:
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "input_text" else content


def _return(about: Mapping[str, Any], items: list[Wire], calls: Iterable[tuple[Wire, ToolCallPart]]) -> None:
    """Add the vendor's own fields to the texts before them, which is their phase, and to the calls."""
    for item in reversed(items if "phase" in about else ()):
        if item.get("role") != "assistant" or "phase" in item:
            break
        item["phase"] = about["phase"]
    for item, call in calls if "calls" in about else ():
        id = item["call_id"]
        item.update(thawed(about["calls"].get(call.vendor_id or "", {})))
        item["call_id"] = id


def _native(tool: ToolSpec, definition: Wire) -> Wire:
    if definition.get("type") != "custom":
        return definition
    return {"name": tool.name, "description": tool.description, **definition}


def _tool(function: Wire) -> Wire:
    # Without this field a tool would be strict, which not every schema can be.
    return {"type": "function", "strict": False, **function}
