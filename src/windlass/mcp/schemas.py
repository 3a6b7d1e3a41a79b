"""Checks arguments by the JSON schema of a server, which is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_SKIPPED = _REFERENCES | {"$defs", "definitions", "pattern", "patternProperties", "format"}
"""Keywords that a hostile schema could use to make a check endless, or to fetch something. The server checks them."""
_NAMED = frozenset({"properties", "dependentSchemas"})
"""Keywords whose keys are names, not keywords."""
_DEEPEST = 30


def checker(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], str | None]:
    """A function that says what is wrong with some arguments, or None."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    validator = Draft202012Validator(_bounded(schema))

    def check(arguments: Mapping[str, Any]) -> str | None:
        try:
            for problem in validator.iter_errors(arguments):
                return f"{problem.message} - at `{problem.json_path}`"
        except RecursionError:
            return "its arguments are nested too deeply"
        return None

    return check


def _bounded(schema: Any, depth: int = 0) -> Any:
    """A schema without the keywords that cannot be checked in bounded time."""
    if isinstance(schema, Mapping):
        if depth > _DEEPEST or not _REFERENCES.isdisjoint(schema):
            return {}
        return {
            key: {name: _bounded(one, depth + 1) for name, one in value.items()}
            if key in _NAMED and isinstance(value, Mapping)
            else value
            if key in ("enum", "const", "default", "examples")
            else _bounded(value, depth + 1)
            for key, value in schema.items()
            if key not in _SKIPPED
        }
    return [_bounded(one, depth + 1) for one in schema] if isinstance(schema, list | tuple) else schema


__all__ = ["checker"]
