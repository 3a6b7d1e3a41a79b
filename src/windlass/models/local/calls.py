"""Calls that a model writes as text, `{"name": …, "arguments": …}`: how they are described, encoded and found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from windlass.messages import ToolSpec, thawed

_VALUES = ("const", "default", "enum", "examples")
_CLOSED = {"const", "enum", "format", "pattern"}
_BOUNDS: dict[str, dict[str, Any]] = {
    "string": {"maxLength": 100},
    "integer": {"minimum": -(10**9), "maximum": 10**9},
    "array": {"maxItems": 8},
}


def describe_tools(tools: Iterable[ToolSpec]) -> str:
    """The description of the tools for the model."""
    lines = [f"- {tool.name}({', '.join(tool.schema.get('properties', ()))}): {tool.description}" for tool in tools]
    how = 'To call a tool, answer only with {"name": …, "arguments": {…}}.'
    return "\n".join(["You can call these tools:", *lines, how])


def call_as_text(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'


def call_schema(tools: Iterable[ToolSpec], small: bool, other: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema of a call of one of the tools, or of the `other` schema."""
    definitions: dict[str, Any] = {}
    choices = [_call(tool, small, definitions) for tool in tools]
    if other is not None:
        choices.append(_embed(other, "output", small, definitions))
    return {"anyOf": choices, **({"$defs": definitions} if definitions else {})}


def _call(tool: ToolSpec, small: bool, definitions: dict[str, Any]) -> dict[str, Any]:
    arguments = _embed(tool.schema or {"type": "object"}, tool.name, small, definitions)
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _embed(schema: Mapping[str, Any], owner: str, small: bool, definitions: dict[str, Any]) -> Any:
    """A schema for use inside a larger one; its definitions move to the root."""
    own = thawed(schema)
    for kind in ("$defs", "definitions"):
        for name, definition in own.pop(kind, {}).items():
            definitions[f"{owner}.{name}"] = _rename_references(_adapt(definition, small), owner)
    return _rename_references(_adapt(own, small), owner)


def _adapt(schema: Any, small: bool) -> Any:
    return bounded(schema) if small else schema


def _rename_references(schema: Any, owner: str) -> Any:
    """A schema whose references point to definitions with the owner's name."""
    if isinstance(schema, list):
        return [_rename_references(item, owner) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _rename_references(item, owner) for name, item in schema.items()}
    if isinstance(reference := moved.get("$ref"), str):
        moved["$ref"] = f"#/$defs/{owner}.{reference.rpartition('/')[2]}"
    return moved


def bounded(schema: Any) -> Any:
    """A schema with bounds for everything, for small models that would not stop otherwise."""
    if isinstance(schema, list | tuple):
        return [bounded(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {name: thawed(item) if name in _VALUES else bounded(item) for name, item in schema.items()}
    kind = inner.get("type")
    bounds = _BOUNDS.get(kind, {}) if isinstance(kind, str) and not inner.keys() & _CLOSED else {}
    return {**bounds, **inner}


class CallReader:
    """Finds a call in streamed text; all other text passes through.

    Its results have the shape of a Chat Completions delta.
    """

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._heads = {f'{{"name":{json.dumps(tool.name)},"arguments":': tool.name for tool in tools}
        self._held = ""
        self._found: bool | None = None
        self._arguments = _Braces()

    def read(self, words: str) -> dict[str, Any]:
        """The delta for these words: text, a piece of a call, or nothing yet."""
        if self._found is None:
            return self._decide(self._held + words)
        return self._piece(words) if self._found else {"content": words}

    def rest(self) -> dict[str, Any]:
        """The text that was held back when the stream ended."""
        held, self._held = self._held, ""
        return {"content": held} if held else {}

    def _decide(self, held: str) -> dict[str, Any]:
        """Decide whether the text is a call, which is certain once its arguments begin. White space is ignored."""
        dense = "".join(held.split())
        name = next((self._heads[head] for head in self._heads if dense.startswith(head)), None)
        if name is not None:
            self._found, self._held = True, ""
            after = held.index('"arguments"') + len('"arguments"')
            return self._piece(held[held.index(":", after) + 1 :], name)
        if any(head.startswith(dense) for head in self._heads):
            self._held = held
            return {}
        self._found, self._held = False, ""
        return {"content": held}

    def _piece(self, text: str, name: str = "") -> dict[str, Any]:
        function = {"name": name, "arguments": self._arguments.within(text)}
        return {"tool_calls": [{"index": 0, "function": function}]}


class _Braces:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._begun = self._quoted = self._escaped = False

    def within(self, text: str) -> str:
        """The part of a text that belongs to the object."""
        start = 0
        for at, letter in enumerate(text):
            if self._begun and not self._depth:
                return text[start:at]
            if not self._begun and letter.isspace():
                start = at + 1
                continue
            self._begun = True
            self._see(letter)
        return text[start:]

    def _see(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = self._quoted
        elif letter == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += (letter in "{[") - (letter in "}]")
