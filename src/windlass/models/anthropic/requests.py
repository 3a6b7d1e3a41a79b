"""Makes the body of a request: messages, tools, settings and cache breakpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from anthropic import transform_schema

from windlass.messages import Message, Messages, ModelRequest, ToolSpec, thawed
from windlass.models.history import IdOf, Wire
from windlass.models.settings import system_with_schema

from .encode import CONTAINER, VENDOR, attachment, encode_message, history
from .settings import encode_settings, tool_choice

_WITHOUT_OUTPUT = re.compile(r"claude-(3|2|v2|instant)|claude-(opus|sonnet)-4(-0\b|-2025|@|$)|claude-4-(opus|sonnet)")
"""Models that cannot be given the schema of an answer; they read it in the system text."""
_CACHEABLE = ("text", "image", "document", "tool_use", "tool_result")


class Requests:
    """Makes request bodies, and caches encoded messages, tools and schemas."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._history = history(self._encoded)
        self._tools: tuple[tuple[ToolSpec, ...], list[Wire]] = ((), [])
        self._schema: tuple[Any, Any] = (None, None)
        self._uses_container = False
        self.takes_output = not _WITHOUT_OUTPUT.search(model)

    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire:
        """The body of a request. `settings` are the merged settings of the model and of the request."""
        extra = dict(settings["extra"])
        body: Wire = {"model": self._model, "messages": self._history.encoded(request.messages)}
        body |= encode_settings(self._model, settings)
        output, system = request.output, request.system
        if output is not None and not self.takes_output:
            system, output = system_with_schema(output, system), None
        if system.strip():
            body["system"] = [{"type": "text", "text": system}]
        theirs = extra.pop("tools", None) or ()
        named = {tool.get("name") for tool in theirs}
        if tools := [*[tool for tool in self._encode_tools(request.tools) if tool["name"] not in named], *theirs]:
            body["tools"] = tools
            body |= tool_choice(settings)
        config = body.get("output_config", {}) | self._output(output) | (extra.pop("output_config", None) or {})
        if config:
            body["output_config"] = config
        if self._uses_container and (container := _container(request.messages)) is not None:
            body[CONTAINER] = container
            if isinstance(asked := extra.get(CONTAINER), Mapping):
                extra[CONTAINER] = {"id": container, **asked}
        if (cache := settings.get("cache", True)) and "cache_control" not in extra:
            _set_breakpoints(body, request.messages, {"type": "ephemeral"} | ({} if cache is True else {"ttl": cache}))
        if streaming:
            body["stream"] = True
        return body | extra

    def _encoded(self, message: Message, id_of: IdOf) -> list[Wire]:
        self._uses_container = self._uses_container or any(attachment(part, CONTAINER) for part in message.parts)
        return encode_message(message, id_of)

    def _encode_tools(self, tools: tuple[ToolSpec, ...]) -> list[Wire]:
        if self._tools[0] is not tools:
            self._tools = (tools, [_tool(spec) for spec in tools])
        return self._tools[1]

    def _output(self, schema: Mapping[str, Any] | None) -> Wire:
        """The schema of the output as far as the vendor supports it; the rest becomes description."""
        if schema is None:
            return {}
        if self._schema[0] is not schema:
            self._schema = (schema, transform_schema(thawed(schema)))
        return {"format": {"type": "json_schema", "schema": self._schema[1]}}


def _tool(spec: ToolSpec) -> Wire:
    if (native := spec.native.get(VENDOR)) is not None:
        return {"name": spec.name, **thawed(native)}
    schema = thawed(spec.schema)
    schema.setdefault("type", "object")
    return {"name": spec.name, "description": spec.description, "input_schema": schema}


def _container(messages: Messages) -> str | None:
    """The container that the vendor used last, if it has not expired."""
    for message in reversed(list(messages)):
        for part in message.parts:
            if (used := attachment(part, CONTAINER)) is not None:
                return used.get("id") if _alive(used.get("expires_at")) else None
    return None


def _alive(until: str | None) -> bool:
    try:
        moment = datetime.fromisoformat((until or "").replace("Z", "+00:00"))
    except ValueError:
        return True
    return moment.astimezone(UTC) > datetime.now(UTC)


def _set_breakpoints(body: Wire, messages: Messages, mark: Wire) -> None:
    """Set the vendor's four cache breakpoints: after the tools, the system prompt, the last message that will not
    change, and the one that was last in the previous request.

    The vendor looks back from a breakpoint for an earlier one, but only over 20 blocks. A message with an overlay is
    not marked, because the overlay may be gone in the next request.
    """
    for name in ("tools", "system"):
        if name in body:
            _mark_last(body[name], mark)
    row: list[Wire] = body["messages"]
    last = len(row) - (2 if messages.overlay and len(messages) - 1 in messages.overlay else 1)
    for place in (last, last - 2):
        if place >= 0:
            content = list(row[place]["content"])
            _mark_last(content, mark)
            row[place] = {**row[place], "content": content}


def _mark_last(blocks: list[Wire], mark: Wire) -> None:
    """Mark the last block that may be marked, in a copy: the block itself is shared."""
    for place in range(len(blocks) - 1, -1, -1):
        block = blocks[place]
        if ("input_schema" in block or block.get("type") in _CACHEABLE) and not block.get("defer_loading"):
            blocks[place] = {"cache_control": mark, **block}
            return


__all__ = ["Requests"]
