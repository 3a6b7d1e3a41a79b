"""Tools that are known by a JSON schema and not by the signature of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from windlass._schema import Arguments, Completion
from windlass.errors import ToolError
from windlass.messages import ToolSpec
from windlass.slots import Slot

from .definitions import ArgumentsError, Tool

_SHOWN = 400
"""How many characters of a problem a model reads."""


class _Object(Arguments, gc=True):
    """The arguments of a call as one value."""

    arguments: dict[str, Any]


class SchemaTool(Tool[..., Any]):
    """A tool with a JSON schema for its arguments, for example one that a server offers.

    `fn(arguments)` gets them as one dict; it may also take `turn` and `idempotency_key`. Defaults at the top level of
    the schema are filled in. `check(arguments)` returns what is wrong with them, or None; without it they only have to
    be an object. Options are those of `tool`.
    """

    __slots__ = ("_check",)

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        check: Callable[[Mapping[str, Any]], str | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(fn, {**options, "name": name, "description": description}, {})
        asked = [p.name for p in self._parameters if p.name not in dict(self.supplied)]
        if asked != ["arguments"]:
            raise self._refusal("its function must take `arguments`, and nothing else but what the runtime supplies")
        self.spec = ToolSpec(name, description, schema, self.native)
        self._check = check
        self._completion = Completion(_encoded, self.decode, ("arguments",), {}, plain=True)

    def bound(self, slots: Collection[Slot[Any]]) -> SchemaTool:
        return self

    def decode(self, json: str) -> Arguments:
        """The arguments that a model wrote, with defaults; `ArgumentsError` tells the model what to correct."""
        try:
            given = msgspec.json.decode(json) if json.strip() else {}
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as problem:
            raise self._refused(f"its arguments are not valid JSON: {problem}") from problem
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise self._refused("its arguments must be a JSON object")
        properties = self.spec.schema.get("properties")
        for key, described in properties.items() if isinstance(properties, Mapping) else ():
            if isinstance(described, Mapping) and "default" in described and key not in given:
                given[key] = msgspec.json.decode(msgspec.json.encode(described["default"]))
        if self._check is not None and (wrong := self._check(given)) is not None:
            raise self._refused(wrong)
        return _Object(given)

    def prepare(self, json: str) -> tuple[Any, ...]:
        """Like `decode`, but returns the values as `invoke` takes them."""
        decoded = self.decode(json)
        assert isinstance(decoded, _Object)
        return (decoded.arguments,)

    def undo(self, values: tuple[Any, ...], key: str) -> Any:
        raise ToolError(f"tool {self.name!r} has no compensation")

    def _refused(self, what: str) -> ArgumentsError:
        text = what if len(what) <= _SHOWN else f"{what[:_SHOWN]}…"
        return ArgumentsError(f"tool {self.name!r} was not run: {text}", tool=self.name)


def _encoded(given: _Object) -> bytes:
    return msgspec.json.encode(given.arguments)


__all__ = ["SchemaTool"]
