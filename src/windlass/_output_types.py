"""The types that an answer may have, as JSON schemas whose root is an object, and how their JSON is read."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Union, get_args, get_origin

import msgspec

from ._schema import closed_schema, type_decoder, type_schema
from .errors import ConfigError

VALUE, KIND = "value", "kind"
_DEFINITIONS = ("$defs", "definitions")


class OutputReader(Protocol):
    """Reads answers of one type."""

    schema: Mapping[str, Any]

    def read(self, text: str, /) -> Any:
        """The value in a JSON text; raises a `ValueError` or msgspec's error if it does not fit."""
        ...

    def unwrap(self, value: Any) -> Any:
        """The part of a value, perhaps an incomplete one, that is the answer."""
        ...


def reader_of(kind: Any) -> OutputReader:
    """The reader for a type or a JSON schema; raises `TypeError` if models cannot be told about it."""
    if isinstance(kind, Mapping):
        return _SchemaReader(kind)
    try:
        schema, decode = closed_schema(type_schema(kind)), type_decoder(kind)
    except TypeError:
        if len(members := _members(kind)) < 2:
            raise
        return _UnionReader(members)
    return _ObjectReader(schema, decode) if schema.get("type") == "object" else _ValueReader(kind, decode)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()


class _ObjectReader:
    """For a type whose JSON is an object."""

    def __init__(self, schema: Mapping[str, Any], decode: Callable[[str], Any]) -> None:
        self.schema = schema
        self.read = decode

    def unwrap(self, value: Any) -> Any:
        return value


class _ValueReader:
    """For any other type: vendors want an object, so the answer is its only field. Models also leave the object out."""

    def __init__(self, kind: Any, decode: Callable[[str], Any]) -> None:
        answer = msgspec.defstruct("Answer", [(VALUE, kind)], forbid_unknown_fields=True)
        self.schema: Mapping[str, Any] = closed_schema(type_schema(answer))
        self._decode, self._decode_bare = type_decoder(answer), decode

    def read(self, text: str) -> Any:
        try:
            return getattr(self._decode(text), VALUE)
        except msgspec.MsgspecError:
            try:
                return self._decode_bare(text)
            except (msgspec.MsgspecError, ValueError):
                pass
            raise

    def unwrap(self, value: Any) -> Any:
        return value.get(VALUE) if isinstance(value, dict) and not value.keys() - {VALUE} else value


class _UnionReader:
    """For a union of classes whose JSON does not say which one it is: the answer names the class beside its value.

    Models also leave that out; then the answer must fit exactly one of the classes.
    """

    def __init__(self, members: tuple[Any, ...]) -> None:
        names = ["null" if member is types.NoneType else _name(member) for member in members]
        if len(set(names)) < len(names):
            raise TypeError(f"classes of a union need different names: {', '.join(names)}")
        tagged = [
            msgspec.defstruct(
                name, [] if name == "null" else [(VALUE, member)], tag=name, tag_field=KIND, forbid_unknown_fields=True
            )
            for name, member in zip(names, members, strict=True)
        ]
        answer = msgspec.defstruct("Answer", [(VALUE, Union[tuple(tagged)])], forbid_unknown_fields=True)  # noqa: UP007
        self.schema: Mapping[str, Any] = closed_schema(type_schema(answer))
        self._decode = type_decoder(answer)
        self._bare = {name: type_decoder(member) for name, member in zip(names, members, strict=True)}

    def read(self, text: str) -> Any:
        try:
            return getattr(getattr(self._decode(text), VALUE), VALUE, None)
        except (msgspec.MsgspecError, ValueError):
            fitting = list(self._fitting(text).values())
            if len(fitting) == 1:
                return fitting[0]
            raise

    def _fitting(self, text: str) -> dict[str, Any]:
        """The value as each class that it fits."""
        found: dict[str, Any] = {}
        for name, decode in self._bare.items():
            try:
                found[name] = decode(text)
            except (msgspec.MsgspecError, ValueError):
                pass
        return found

    def unwrap(self, value: Any) -> Any:
        inner = value.get(VALUE) if isinstance(value, dict) and not value.keys() - {VALUE} else value
        return inner.get(VALUE) if isinstance(inner, dict) and KIND in inner and value is not inner else inner


def _name(member: Any) -> str:
    return getattr(member, "__name__", str(member))


class _SchemaReader:
    """For a JSON schema: the value is plain JSON that is valid by it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            from jsonschema import Draft202012Validator, exceptions  # type: ignore[import-untyped]
            from referencing import Registry
        except ImportError as error:
            raise ConfigError(
                "a JSON schema as output needs the extra 'schema': pip install 'windlass[schema]'"
            ) from error
        try:
            Draft202012Validator.check_schema(schema)
        except exceptions.SchemaError as error:
            raise TypeError(f"it is not a JSON schema: {error.message}") from error
        if (outside := next(_outside_references(schema), None)) is not None:
            raise TypeError(f"its $ref {outside!r} is not in the schema itself: use '#/$defs/…', nothing is fetched")
        self._bare = schema.get("type") == "object"
        self.schema: Mapping[str, Any] = schema if self._bare else _wrapped(schema)
        self._validator = Draft202012Validator(schema, registry=Registry())

    def read(self, text: str) -> Any:
        value = msgspec.json.decode(text)
        if not self._bare and isinstance(value, dict) and value.keys() == {VALUE}:
            value = value[VALUE]
        for problem in self._validator.iter_errors(value):
            raise ValueError(f"{problem.message} - at `{problem.json_path}`")
        return value

    def unwrap(self, value: Any) -> Any:
        whole = not self._bare and isinstance(value, dict) and not value.keys() - {VALUE}
        return value.get(VALUE) if whole else value


def _outside_references(schema: Any) -> Iterator[str]:
    """The references of a schema that do not begin in it: the addresses of other documents."""
    if isinstance(schema, Mapping):
        given = schema.get("$ref", schema.get("$dynamicRef", "#"))
        if isinstance(given, str) and not given.startswith("#"):
            yield given
    parts = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for part in parts:
        yield from _outside_references(part)


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of an object with a value of this schema; its definitions stay at the root."""
    inner = {name: value for name, value in schema.items() if name not in ("$schema", *_DEFINITIONS)}
    whole = {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    return {**whole, **{name: schema[name] for name in _DEFINITIONS if name in schema}}
