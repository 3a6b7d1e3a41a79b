"""The body of a request: the messages, the tools and the settings, and where the vendor's cache may end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from anthropic import transform_schema

from windlass.messages import Message, Messages, ModelRequest, ToolSpec, thawed
from windlass.models.history import IdOf, Wire

from .encode import CONTAINER, encode_message, history, riding
from .settings import encode_settings, tool_choice

_CACHEABLE = ("text", "image", "document", "tool_use", "tool_result")


class Requests:
    """Makes bodies, and keeps what it has made of messages, tools and schemas for those to come."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._history = history(self._encoded)
        self._tools: tuple[tuple[ToolSpec, ...], list[Wire]] = ((), [])
        self._schema: tuple[Any, Any] = (None, None)
        self._contained = False

    def body(self, request: ModelRequest, settings: Mapping[str, Any], *, streaming: bool = False) -> Wire:
        """All that the vendor is told. `settings` are those of the model and of the request, merged."""
        extra = dict(settings["extra"])
        body: Wire = {"model": self._model, "messages": self._history.encoded(request.messages)}
        body |= encode_settings(self._model, settings)
        if request.system.strip():
            body["system"] = [{"type": "text", "text": request.system}]
        theirs = extra.pop("tools", None) or ()
        named = {tool.get("name") for tool in theirs}
        if tools := [*[tool for tool in self._told(request.tools) if tool["name"] not in named], *theirs]:
            body["tools"] = tools
            body |= tool_choice(settings)
        config = body.get("output_config", {}) | self._output(request.output) | (extra.pop("output_config", None) or {})
        if config:
            body["output_config"] = config
        if self._contained and (container := _container(request.messages)) is not None:
            body[CONTAINER] = container
            if isinstance(asked := extra.get(CONTAINER), Mapping):
                extra[CONTAINER] = {"id": container, **asked}
        if (cache := settings.get("cache", True)) and "cache_control" not in extra:
            _set_breakpoints(body, request.messages, {"type": "ephemeral"} | ({} if cache is True else {"ttl": cache}))
        if streaming:
            body["stream"] = True
        return body | extra

    def _encoded(self, message: Message, id_of: IdOf) -> list[Wire]:
        self._contained = self._contained or any(riding(part, CONTAINER) for part in message.parts)
        return encode_message(message, id_of)

    def _told(self, tools: tuple[ToolSpec, ...]) -> list[Wire]:
        if self._tools[0] is not tools:
            self._tools = (tools, [_tool(spec) for spec in tools])
        return self._tools[1]

    def _output(self, schema: Mapping[str, Any] | None) -> Wire:
        """The schema of the output as far as the vendor takes it; the rest becomes description."""
        if schema is None:
            return {}
        if self._schema[0] is not schema:
            self._schema = (schema, transform_schema(thawed(schema)))
        return {"format": {"type": "json_schema", "schema": self._schema[1]}}


def _tool(spec: ToolSpec) -> Wire:
    schema = thawed(spec.schema)
    schema.setdefault("type", "object")
    return {"name": spec.name, "description": spec.description, "input_schema": schema}


def _container(messages: Messages) -> str | None:
    """The container that the vendor used last, if it is still there."""
    for message in reversed(list(messages)):
        for part in message.parts:
            if (used := riding(part, CONTAINER)) is not None:
                return used.get("id") if _alive(used.get("expires_at")) else None
    return None


def _alive(until: str | None) -> bool:
    try:
        moment = datetime.fromisoformat((until or "").replace("Z", "+00:00"))
    except ValueError:
        return True
    return moment.astimezone(UTC) > datetime.now(UTC)


def _set_breakpoints(body: Wire, messages: Messages, mark: Wire) -> None:
    """Say where the vendor's cache may end, in the four places it allows: after the tools, the system prompt, the last
    message that will stay as it is, and the one that was the last when the model was asked before.

    The vendor looks back from a mark for an earlier one, but over 20 blocks at most. What is laid over the last message
    may be gone when the model is asked again, so that one is not marked.
    """
    for name in ("tools", "system"):
        if name in body:
            _mark_last(body[name], mark)
    row: list[Wire] = body["messages"]
    settled = len(row) - (2 if messages.overlay and len(messages) - 1 in messages.overlay else 1)
    for place in (settled, settled - 2):
        if place >= 0:
            content = list(row[place]["content"])
            _mark_last(content, mark)
            row[place] = {**row[place], "content": content}


def _mark_last(blocks: list[Wire], mark: Wire) -> None:
    """Mark the last block that may be marked; the block itself is shared, so a copy is."""
    for place in range(len(blocks) - 1, -1, -1):
        block = blocks[place]
        if ("input_schema" in block or block.get("type") in _CACHEABLE) and not block.get("defer_loading"):
            blocks[place] = {"cache_control": mark, **block}
            return


__all__ = ["Requests"]
