"""Reveals: placeholders in the arguments of a call become what they stand for, right before a tool gets them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass.errors import HookError, RegistrationError, text_of
from windlass.messages import ToolCall
from windlass.turns import Turn

from .hooks import is_async, parameters_of, source_of
from .matching import Matcher, Matches, compile_matcher


class Reveal:
    """A function from a text to the text that a tool gets instead."""

    __slots__ = ("_takes_turn", "capability", "fn", "inherit", "matches", "name", "tool")

    def __init__(
        self, fn: Callable[..., str], tool: Matcher | None, name: str | None, *, inherit: bool
    ) -> None:
        self.fn = fn
        self.name = name or str(getattr(fn, "__name__", type(fn).__name__))
        self.tool = tool
        self.inherit = inherit
        self.capability: str | None = None
        given: object = fn
        if not callable(given) or is_async(given):
            text = f"reveal {self.name!r} must be a plain function from a text to a text"
            raise RegistrationError(text, hook=self.name)
        self.matches: Matches | None = None if tool is None else compile_matcher(tool, self.name)
        names, star, required = parameters_of(fn)
        if (not names and not star) or [name for name in required[1:] if name != "turn"]:
            text = f"reveal {self.name!r} ({source_of(fn)}) is called as (text) or (text, turn)"
            raise RegistrationError(text, hook=self.name)
        self._takes_turn = "turn" in names[1:]

    def __call__(self, text: str, turn: Turn[Any]) -> str:
        shown = self.fn(text, turn=turn) if self._takes_turn else self.fn(text)
        if type(shown) is not str:
            raise TypeError(f"it returned {type(shown).__name__}, not a str")
        return shown


def revealed(
    reveals: Sequence[Reveal], call: ToolCall, values: tuple[Any, ...], turn: Turn[Any]
) -> tuple[Any, ...]:
    """The values of a call as its tool gets them. A reveal that fails is a `HookError` that names it."""
    for reveal in reveals:
        try:
            if reveal.matches is None or reveal.matches(call):
                values = tuple([_map_texts(value, reveal, turn) for value in values])
        except Exception as error:
            text = f"reveal {reveal.name!r} failed: {type(error).__name__}: {text_of(error)}"
            raise HookError(text, hook=reveal.name, event="ToolCall") from error
    return values


def _map_texts(value: Any, reveal: Reveal, turn: Turn[Any]) -> Any:
    """The value with all its texts revealed, at any depth. Keys stay as they are."""
    match value:
        case str():
            return reveal(value, turn) if type(value) is str else value
        case list():
            return [_map_texts(item, reveal, turn) for item in value]
        case dict():
            return {key: _map_texts(item, reveal, turn) for key, item in value.items()}
        case set() | frozenset():
            return type(value)([_map_texts(item, reveal, turn) for item in value])
        case tuple():
            items = [_map_texts(item, reveal, turn) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        case Struct():
            fields = {field: getattr(value, field) for field in value.__struct_fields__}
            changed = _changed(fields, reveal, turn)
            return replace(value, **changed) if changed else value
        case _:
            pass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = _changed(fields, reveal, turn)
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _changed(fields: dict[str, Any], reveal: Reveal, turn: Turn[Any]) -> dict[str, Any]:
    shown = {name: _map_texts(value, reveal, turn) for name, value in fields.items()}
    return {name: value for name, value in shown.items() if value != fields[name]}
