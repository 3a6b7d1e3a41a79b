"""Encodes settings and tools for OpenAI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windlass.errors import ConfigError
from windlass.messages import ToolSpec, thawed
from windlass.models.history import Wire

_ADDED = ("tools", "include")
_MIXED = ("text", "reasoning", "stream_options")


def with_extra(body: Wire, extra: Mapping[str, Any]) -> Wire:
    """The body with the user's extra fields, which win; extra tools are added to ours."""
    fields: Wire = thawed(extra)
    for name in _ADDED:
        if name in fields and name in body:
            fields[name] = [*body[name], *[item for item in fields[name] if item not in body[name]]]
    for name in _MIXED:
        if isinstance(fields.get(name), Mapping) and name in body:
            fields[name] = {**body[name], **fields[name]}
    return {**body, **fields}


def effort(reasoning: object) -> dict[str, Any]:
    """The setting `reasoning`, which is a word for the effort, a bool or the vendor's own mapping, as a mapping."""
    if isinstance(reasoning, Mapping):
        return dict(reasoning)
    if reasoning is None or reasoning is True:
        return {}
    if reasoning is False:
        return {"effort": "none"}
    if isinstance(reasoning, str):
        return {"effort": reasoning}
    raise ConfigError(f"reasoning={reasoning!r}: for this vendor it must be a word for the effort ('low', 'high' …)")


class Tools:
    """Encoded tools; they are encoded again only when they change."""

    def __init__(
        self, encode: Callable[[Wire], Wire], native: Callable[[ToolSpec, Wire], Wire], vendor: str, *, strictly: bool
    ) -> None:
        self._encode = encode
        self._native = native
        self._vendor = vendor
        self._strictly = strictly
        self._known: tuple[ToolSpec, ...] = ()
        self._wire: list[Wire] = []

    def encoded(self, tools: tuple[ToolSpec, ...]) -> list[Wire]:
        """The tools; those whose arguments the vendor can guarantee are strict."""
        if tools is not self._known:
            self._wire = [self._tool(tool) for tool in tools]
            self._known = tools
        return self._wire

    def _tool(self, tool: ToolSpec) -> Wire:
        if (definition := tool.native.get(self._vendor)) is not None:
            return self._native(tool, thawed(definition))
        return self._encode(self._function(tool))

    def _function(self, tool: ToolSpec) -> Wire:
        function = {"name": tool.name, "description": tool.description, "parameters": thawed(tool.schema)}
        if not (self._strictly and strict(tool.schema)):
            return function
        return {**function, "parameters": _with_types(function["parameters"]), "strict": True}


class Formats:
    """Schemas of outputs, each with a name, and strict if possible; made again only when the schema changes."""

    def __init__(self) -> None:
        self._known: Mapping[str, Any] | None = None
        self._wire: Wire = {}

    def of(self, schema: Mapping[str, Any]) -> Wire:
        """The format for a schema."""
        if schema is not self._known:
            given = thawed(schema)
            strictly = strict_output(given)
            kept = given if strictly is None else strictly
            self._known, self._wire = schema, {"name": "output", "schema": kept, "strict": strictly is not None}
        return self._wire


_SCHEMAS = ("properties", "$defs")
_PLAIN = (
    "type", "title", "description", "enum", "const", "required", "additionalProperties", "$ref", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
)  # fmt: skip
_SAYING = ("type", "$ref", "anyOf", "enum", "const")
"""A strict schema says what it allows with one of these."""
_DROPPED = ("default", "discriminator")
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")


def strict(schema: Mapping[str, Any]) -> bool:
    """Whether the vendor can guarantee a schema: it requires closed objects without optional fields."""
    return schema.get("type") == "object" and "anyOf" not in schema and _keepable(schema)


def strict_output(schema: Wire) -> Wire | None:
    """The schema of an answer in the form that the vendor guarantees, or None if it has none.

    All fields are required: the model fills in those that have defaults, too. A choice between objects is `anyOf`.
    """
    whole: Wire = _with_types(_required(schema))
    return whole if strict(whole) else None


def _required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {"anyOf" if name == "oneOf" else name: value for name, value in schema.items() if name not in _DROPPED}
    made = {name: _nested(name, value, _required) for name, value in kept.items()}
    lacking = made.get("properties", {}).keys() - set(made.get("required", ()))
    return {**made, "required": list(made["properties"])} if lacking else made


def _with_types(schema: Any) -> Any:
    """A schema in which every choice of values has a type, as strict schemas must."""
    if isinstance(schema, list):
        return [_with_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _nested(name, value, _with_types) for name, value in schema.items()}
    values = made.get("enum", [made["const"]] if "const" in made else [])
    kinds = list(dict.fromkeys([_KINDS[type(value)] for value in values if type(value) in _KINDS]))
    return made if "type" in made or not kinds else {"type": kinds[0] if len(kinds) == 1 else kinds, **made}


def _nested(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of a keyword, with a change made to the schemas in it."""
    if name in _SCHEMAS:
        return {key: change(inner) for key, inner in value.items()}
    return change(value) if name in ("items", "anyOf") else value


def _keepable(schema: object) -> bool:
    if not isinstance(schema, Mapping) or not any(name in schema for name in _SAYING):
        return False
    if "object" in _types(schema) or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    return all(_keyword(name, value) for name, value in schema.items())


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else kind


def _keyword(name: str, value: Any) -> bool:
    if name in _SCHEMAS:
        return all(map(_keepable, value.values()))
    if name == "anyOf":
        return all(map(_keepable, value))
    if name == "items":
        return _keepable(value)
    if name == "pattern":
        return re.search(r"\(\?[=!<]", value) is None
    return value in _FORMATS if name == "format" else name in _PLAIN
