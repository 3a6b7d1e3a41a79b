"""JSON schemas of the options of built-in capabilities, made from the signatures of their constructors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from windlass.capabilities.option_types import hint_of
from windlass.composition import GROUP

from .schema import CAPABILITY
from .shapes import Schema

_SIMPLE: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_OBJECT: Schema = {"type": "object"}


def capability_schemas() -> dict[str, Schema]:
    """The schema of each built-in capability, by its name."""
    points = {point.name: point for point in entry_points(group=GROUP) if point.module.startswith("windlass.")}
    return {name: _schema_of(points[name].load()) for name in sorted(points)}


def options_schema(kind: Any, *without: str) -> Schema:
    """The schema of a table with the options of a constructor."""
    options = {
        name: _option(hint_of(kind.__module__, one.annotation), one)
        for name, one in signature(kind).parameters.items()
        if name not in without
    }
    return {"type": "object", "properties": options, "additionalProperties": False}


def _schema_of(kind: Any) -> Schema:
    options = options_schema(kind)["properties"]
    own = {key: shape for key, shape in CAPABILITY.schema()["properties"].items() if key != "load"}
    load = {"load": CAPABILITY.schema()["properties"]["load"]} if hasattr(kind, "load") else {}
    description = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
    return {
        "type": "object",
        "description": description,
        "properties": {**own, **load, **options},
        "additionalProperties": False,
    }


def _option(hint: Any, parameter: Parameter) -> Schema:
    schema = schema_of_type(hint)
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return {"type": "array", "items": schema} if schema else {"type": "array"}
    default = parameter.default
    simple = isinstance(default, str | bool | int | float)
    return {**schema, "default": default} if simple else schema


def schema_of_type(hint: Any) -> Schema:
    """The values that a file may have for a type; an empty schema allows all."""
    origin, inner = get_origin(hint), get_args(hint)
    kind = origin or hint
    if origin in (Union, UnionType):
        made = [schema_of_type(one) for one in inner if one is not NoneType]
        return {} if {} in made else made[0] if len(made) == 1 else {"anyOf": _distinct(made)}
    if origin is Literal:
        return {"enum": list(inner)}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if kind is os.PathLike or kind is Path:
        return {"type": "string"}
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, Mapping):
        return _OBJECT
    if inner and issubclass(kind, Iterable):
        items = schema_of_type(inner[0]) if kind is not tuple or inner[-1] is ... else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    return {"anyOf": [{"type": "string"}, _OBJECT]}  # an object: `module:name`, or a table with its options


def _distinct(schemas: Iterable[Schema]) -> list[Schema]:
    found: list[Schema] = []
    for schema in schemas:
        for one in schema.get("anyOf", [schema]):
            if one not in found:
                found.append(one)
    return found
