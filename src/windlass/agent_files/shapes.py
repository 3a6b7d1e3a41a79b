"""Shapes of TOML values: one description that checks a value and is written as a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from .documents import Document, kind_of
from .positions import KeyPath
from .problems import suggestion

Schema: TypeAlias = dict[str, Any]


class Shape(Protocol):
    """What a value may be: in words, as a check that reports problems, and as a JSON schema."""

    @property
    def words(self) -> str: ...
    @property
    def kinds(self) -> tuple[type, ...]: ...
    def check(self, value: Any, path: KeyPath, document: Document) -> None: ...
    def schema(self) -> Schema: ...


class Anything:
    """Any value."""

    words = "any value"
    kinds: tuple[type, ...] = (object,)

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        """Nothing is wrong."""

    def schema(self) -> Schema:
        return {}


class _Kind:
    """Values of some types, without a further condition."""

    words = ""
    kinds: tuple[type, ...] = ()
    types: str | list[str] = ""

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        legal = isinstance(value, self.kinds) and (bool in self.kinds or not isinstance(value, bool))
        if not legal:
            document.add_problem(path, f"must be {self.words}, not {kind_of(value)}")
        elif (wrong := self.reject(value)) is not None:
            document.add_problem(path, wrong)

    def reject(self, value: Any) -> str | None:
        """What is wrong with a value of the right type."""
        return None

    def schema(self) -> Schema:
        return {"type": self.types}


class Flag(_Kind):
    """true or false."""

    words, kinds, types = "true or false", (bool,), "boolean"


class Text(_Kind):
    """A text that is not empty, and matches a pattern if there is one; `form` describes the pattern.

    If it is not `shown`, it may hold a password and is in no error.
    """

    kinds, types = (str,), "string"

    def __init__(self, form: str = "a text", pattern: str = "", *, empty: bool = False, shown: bool = True) -> None:
        self.words = form
        self.pattern = pattern
        self.empty = empty
        self.shown = shown

    def reject(self, value: str) -> str | None:
        if not value and not self.empty:
            return f"must be {self.words}, but it is empty"
        if not self.pattern or re.search(self.pattern, value):
            return None
        return f"{value!r:.100} is not {self.words}" if self.shown else f"must be {self.words}"

    def schema(self) -> Schema:
        bounds: Schema = {"pattern": self.pattern} if self.pattern else {} if self.empty else {"minLength": 1}
        return {"type": "string", **bounds}


class Number(_Kind):
    """A number within bounds; `whole` allows no fractions."""

    def __init__(self, *, whole: bool = False, least: float | None = None, above: float | None = None) -> None:
        self.kinds = (int,) if whole else (int, float)
        self.types = "integer" if whole else "number"
        self.least, self.above = least, above
        bound = f", {least:g} or more" if least is not None else f" above {above:g}" if above is not None else ""
        self.words = f"{'a whole number' if whole else 'a number'}{bound}"

    def reject(self, value: float) -> str | None:
        finite = value == value and abs(value) != float("inf")
        legal = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return None if finite and legal else f"must be {self.words}"

    def schema(self) -> Schema:
        bounds = {"minimum": self.least, "exclusiveMinimum": self.above}
        return {"type": self.types, **{name: bound for name, bound in bounds.items() if bound is not None}}


class Choice(_Kind):
    """One of some texts."""

    kinds = (str,)

    def __init__(self, *values: str) -> None:
        self.values = values
        self.words = "a text"

    def reject(self, value: str) -> str | None:
        return None if value in self.values else f"{value!r:.100} is not legal{suggestion(value, self.values)}"

    def schema(self) -> Schema:
        return {"enum": list(self.values)}


class ListOf:
    """A list whose items have one shape."""

    kinds: tuple[type, ...] = (list,)

    def __init__(self, item: Shape) -> None:
        self.item = item
        self.words = f"a list, each item {item.words}"

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        if not isinstance(value, list):
            document.add_problem(path, f"must be {self.words}, not {kind_of(value)}")
            return
        for index, item in enumerate(value):
            self.item.check(item, (*path, index), document)

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema()}


class MapOf:
    """A table with any keys, whose values have one shape."""

    kinds: tuple[type, ...] = (dict,)

    def __init__(self, item: Shape, known: Mapping[str, Schema] | None = None) -> None:
        self.item = item
        self.known = known or {}
        """Schemas of keys that editors may offer."""
        self.words = "a table"

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        if not isinstance(value, dict):
            document.add_problem(path, f"must be {self.words}, not {kind_of(value)}")
            return
        for key, item in value.items():
            self.item.check(item, (*path, key), document)

    def schema(self) -> Schema:
        known: Schema = {"properties": dict(self.known)} if self.known else {}
        return {"type": "object", **known, "additionalProperties": self.item.schema()}


class Table:
    """A table with known keys, each with a shape and a sentence for editors; `others` allows further keys."""

    kinds: tuple[type, ...] = (dict,)

    def __init__(
        self, keys: Mapping[str, tuple[Shape, str]], *, required: Sequence[str] = (), others: bool = False
    ) -> None:
        self.keys = dict(keys)
        self.required = tuple(required)
        self.others = others
        self.words = f"a table with {', '.join(required)}" if required else "a table"

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        if not isinstance(value, dict):
            document.add_problem(path, f"must be {self.words}, not {kind_of(value)}")
            return
        self.check_keys(value, path, document)

    def check_keys(self, value: Mapping[str, Any], path: KeyPath, document: Document) -> dict[str, Any]:
        """Report what is wrong with a table, and return the keys of it that are right."""
        right: dict[str, Any] = {}
        for key, item in value.items():
            before = len(document.problems)
            if key in self.keys:
                self.keys[key][0].check(item, (*path, key), document)
            elif not self.others:
                document.add_problem((*path, key), f"there is no such key{suggestion(key, self.keys)}")
            if len(document.problems) == before:
                right[key] = item
        for key in self.required:
            if key not in value:
                document.add_problem(path, f"the key {key!r} is missing")
        return right

    def schema(self) -> Schema:
        properties = {name: {"description": text, **shape.schema()} for name, (shape, text) in self.keys.items()}
        needed: Schema = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": properties, **needed, "additionalProperties": self.others}


class Either:
    """One of several shapes of different types."""

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes
        self.words = " or ".join([shape.words for shape in shapes])
        self.kinds = tuple([kind for shape in shapes for kind in shape.kinds])

    def check(self, value: Any, path: KeyPath, document: Document) -> None:
        for shape in self.shapes:
            if isinstance(value, shape.kinds):
                return shape.check(value, path, document)
        return document.add_problem(path, f"must be {self.words}, not {kind_of(value)}")

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for shape in self.shapes]}
