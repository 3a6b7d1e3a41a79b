"""Makes the body of a request: messages, tools, settings and cache points."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.messages import Message, Messages, ModelRequest, OpaquePart, ToolSpec, thawed
from windlass.models.history import IdOf, Wire
from windlass.models.settings import merge_extra, system_with_schema

from .encode import PLACEHOLDER, encode_message, history
from .families import EVERYWHERE, family, model_fields
from .schemas import supported
from .settings import inference, tool_choice

_CACHEABLE = {"text", "image", "toolUse", "toolResult"}
_MARKS = 4


class Requests:
    """Makes request bodies, and caches encoded messages, tools and schemas."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._family = family(model)
        self._history = history(self._family, self._encoded)
        self._has_cache_points = False
        self._tools: tuple[tuple[ToolSpec, ...], list[Wire]] = ((), [])
        self._schema: tuple[Any, str] = (None, "")

    def body(self, request: ModelRequest, settings: Mapping[str, Any]) -> Wire:
        """The body of a request. `settings` are the merged settings of the model and of the request."""
        row = self._with_opening(self._history.encoded(request.messages))
        body: Wire = {"messages": row, **inference(settings), **model_fields(self._family, self._model, settings)}
        system = request.system
        if request.output is not None and self._family.output:
            body["outputConfig"] = {**body.get("outputConfig", {}), "textFormat": self._format(request.output)}
        elif request.output is not None:
            system = system_with_schema(request.output, system)
        if system.strip():
            body["system"] = [{"text": system}]
        if tools := self._encode_tools(request.tools, row, settings.get("tool_choice")):
            body["toolConfig"] = {"tools": tools, **tool_choice(settings)}
        self._set_marks(body, request.messages, settings.get("cache"))
        return merge_extra(body, thawed(settings["extra"])) if settings["extra"] else body

    def _encoded(self, message: Message, id_of: IdOf) -> list[Wire]:
        opaque = [part.data for part in message.parts if type(part) is OpaquePart]
        if any(isinstance(data, Mapping) and "cachePoint" in data for data in opaque):
            self._has_cache_points = True
        return encode_message(self._family, message, id_of)

    def _with_opening(self, row: list[Wire]) -> list[Wire]:
        """Add a first user message if it is missing; Bedrock rejects empty conversations, and most models need one."""
        if row and (row[0]["role"] == "user" or self._family.opening):
            return row
        return [{"role": "user", "content": [PLACEHOLDER]}, *row]

    def _encode_tools(self, tools: tuple[ToolSpec, ...], row: list[Wire], choice: Any) -> list[Wire]:
        """The tools. Bedrock requires those that were called, even if the model must not use any."""
        if not tools or choice == "none":
            names = dict.fromkeys(_called(row))
            known = {spec.name: spec for spec in tools}
            return [_tool(known.get(name) or ToolSpec(name)) for name in names]
        if self._tools[0] is not tools:
            self._tools = (tools, [_tool(spec) for spec in tools])
        return list(self._tools[1])

    def _format(self, output: Mapping[str, Any]) -> Wire:
        if self._schema[0] is not output:
            self._schema = (output, json.dumps(supported(output), ensure_ascii=False))
        structure = {"jsonSchema": {"schema": self._schema[1], "name": "output"}}
        return {"type": "json_schema", "structure": structure}

    def _set_marks(self, body: Wire, messages: Messages, cache: Any) -> None:
        """Set the vendor's cache points, at most four: after the tools, the system prompt, the last message that will
        not change, and the one that was last in the previous request.

        A message with an overlay is not marked, because the overlay may be gone in the next request. If the user has
        marked messages, no others are marked.
        """
        places = () if cache is False else self._family.cached or (EVERYWHERE[1:] if cache else ())
        mark = {"cachePoint": {"type": "default"} | ({"ttl": cache} if isinstance(cache, str) else {})}
        row: list[Wire] = body["messages"]
        theirs = sum("cachePoint" in block for one in row for block in one["content"]) if self._has_cache_points else 0
        if "system" in places and "system" in body and theirs < _MARKS:
            body["system"].append(mark)
        if "tools" in places and "toolConfig" in body and theirs < _MARKS - 1:
            body["toolConfig"]["tools"].append(mark)
        if "messages" in places and not theirs:
            last = len(row) - (2 if messages.overlay and len(messages) - 1 in messages.overlay else 1)
            for place in (last, last - 2):
                if place >= 0:
                    row[place] = {**row[place], "content": _with_mark(row[place]["content"], mark)}


def _called(row: list[Wire]) -> list[str]:
    """The names of the tools that a conversation calls, except calls that the vendor ran itself."""
    uses = [block["toolUse"] for message in row for block in message["content"] if "toolUse" in block]
    return [use["name"] for use in uses if "type" not in use]


def _with_mark(content: list[Wire], mark: Wire) -> list[Wire]:
    """The blocks with a mark after the last one that may have it."""
    for place in range(len(content), 0, -1):
        if content[place - 1].keys() & _CACHEABLE:
            return [*content[:place], mark, *content[place:]]
    return content


def _tool(spec: ToolSpec) -> Wire:
    schema = thawed(spec.schema)
    schema.setdefault("type", "object")
    wire: Wire = {"name": spec.name, "inputSchema": {"json": schema}}
    return {"toolSpec": {**wire, "description": spec.description} if spec.description.strip() else wire}


__all__ = ["Requests"]
