"""The body of a request: the messages, the tools and the settings, and where the vendor's cache may end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.messages import Message, Messages, ModelRequest, OpaquePart, ToolSpec, thawed
from windlass.models.history import IdOf, Wire
from windlass.models.settings import asking_for, joined

from .encode import WORDLESS, encode_message, history
from .families import EVERYWHERE, family, reasoning_fields
from .schemas import taken
from .settings import inference, tool_choice

_CACHEABLE = {"text", "image", "toolUse", "toolResult"}
_MARKS = 4


class Requests:
    """Makes bodies, and keeps what it has made of messages, tools and schemas for those to come."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._family = family(model)
        self._history = history(self._family, self._encoded)
        self._pointed = False
        self._tools: tuple[tuple[ToolSpec, ...], list[Wire]] = ((), [])
        self._schema: tuple[Any, str] = (None, "")

    def body(self, request: ModelRequest, settings: Mapping[str, Any]) -> Wire:
        """All that the vendor is told. `settings` are those of the model and of the request, merged."""
        row = self._opened(self._history.encoded(request.messages))
        body: Wire = {"messages": row, **inference(settings), **reasoning_fields(self._family, self._model, settings)}
        system = request.system
        if request.output is not None and self._family.output:
            body["outputConfig"] = {**body.get("outputConfig", {}), "textFormat": self._format(request.output)}
        elif request.output is not None:
            system = asking_for(request.output, system)
        if system.strip():
            body["system"] = [{"text": system}]
        if tools := self._told(request.tools, row, settings.get("tool_choice")):
            body["toolConfig"] = {"tools": tools, **tool_choice(settings)}
        self._set_marks(body, request.messages, settings.get("cache"))
        return joined(body, thawed(settings["extra"])) if settings["extra"] else body

    def _encoded(self, message: Message, id_of: IdOf) -> list[Wire]:
        opaque = [part.data for part in message.parts if type(part) is OpaquePart]
        self._pointed = self._pointed or any(isinstance(data, Mapping) and "cachePoint" in data for data in opaque)
        return encode_message(self._family, message, id_of)

    def _opened(self, row: list[Wire]) -> list[Wire]:
        """A conversation that begins as Bedrock wants it: by somebody, and for most models by a user."""
        if row and (row[0]["role"] == "user" or self._family.opening):
            return row
        return [{"role": "user", "content": [WORDLESS]}, *row]

    def _told(self, tools: tuple[ToolSpec, ...], row: list[Wire], choice: Any) -> list[Wire]:
        """The tools. Bedrock wants those that were called to be there even if the model is to use none of them."""
        if not tools or choice == "none":
            names = dict.fromkeys(_called(row))
            known = {spec.name: spec for spec in tools}
            return [_tool(known.get(name) or ToolSpec(name)) for name in names]
        if self._tools[0] is not tools:
            self._tools = (tools, [_tool(spec) for spec in tools])
        return list(self._tools[1])

    def _format(self, output: Mapping[str, Any]) -> Wire:
        if self._schema[0] is not output:
            self._schema = (output, json.dumps(taken(output), ensure_ascii=False))
        structure = {"jsonSchema": {"schema": self._schema[1], "name": "output"}}
        return {"type": "json_schema", "structure": structure}

    def _set_marks(self, body: Wire, messages: Messages, cache: Any) -> None:
        """Say where the vendor's cache may end, in the four places it allows at most: after the tools, the system
        prompt, the last message that will stay as it is, and the one that was the last when the model was asked before.

        What is laid over the last message may be gone when the model is asked again, so that one is not marked. Nor is
        any if a user has marked some.
        """
        places = () if cache is False else self._family.cached or (EVERYWHERE[1:] if cache else ())
        mark = {"cachePoint": {"type": "default"} | ({"ttl": cache} if isinstance(cache, str) else {})}
        row: list[Wire] = body["messages"]
        theirs = sum("cachePoint" in block for one in row for block in one["content"]) if self._pointed else 0
        if "system" in places and "system" in body and theirs < _MARKS:
            body["system"].append(mark)
        if "tools" in places and "toolConfig" in body and theirs < _MARKS - 1:
            body["toolConfig"]["tools"].append(mark)
        if "messages" in places and not theirs:
            settled = len(row) - (2 if messages.overlay and len(messages) - 1 in messages.overlay else 1)
            for place in (settled, settled - 2):
                if place >= 0:
                    row[place] = {**row[place], "content": _marked(row[place]["content"], mark)}


def _called(row: list[Wire]) -> list[str]:
    """The names of the tools that are called in a conversation, but for those that the vendor called itself."""
    uses = [block["toolUse"] for message in row for block in message["content"] if "toolUse" in block]
    return [use["name"] for use in uses if "type" not in use]


def _marked(content: list[Wire], mark: Wire) -> list[Wire]:
    """The blocks with a mark behind the last one that may have it."""
    for place in range(len(content), 0, -1):
        if content[place - 1].keys() & _CACHEABLE:
            return [*content[:place], mark, *content[place:]]
    return content


def _tool(spec: ToolSpec) -> Wire:
    schema = thawed(spec.schema)
    schema.setdefault("type", "object")
    told: Wire = {"name": spec.name, "inputSchema": {"json": schema}}
    return {"toolSpec": {**told, "description": spec.description} if spec.description.strip() else told}


__all__ = ["Requests"]
