"""Checks the types of a capability's options against the annotations of its constructor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from inspect import Parameter, signature
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from windlass.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

_WORDS: dict[Any, str] = {
    bool: "True or False", str: "a text", bytes: "bytes", int: "a whole number", float: "a number", NoneType: "None",
}  # fmt: skip

_SECRET = ("headers", "key", "secret")
"""Options whose values are in no error."""


def check_types(init: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor raise `ConfigError` for an option of the wrong type, before its own checks.

    An annotation that is only known to type checkers is not checked, nor is what an iterator yields.
    """

    @wraps(init)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        _check(init, args, options)
        init(*args, **options)

    return checked


def _check(init: Callable[..., None], args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    shape = signature(init)
    try:
        given = shape.bind(*args, **options).arguments
    except TypeError:  # an option is missing or unknown: Python says so when the constructor is called
        return
    for name, value in list(given.items())[1:]:
        hint = hint_of(init.__module__, shape.parameters[name].annotation)
        several = shape.parameters[name].kind is Parameter.VAR_POSITIONAL
        for one in value if several else (value,):
            if not fits(one, hint):
                owner, shown = init.__qualname__.partition(".")[0], "…" if name in _SECRET else _short(one)
                raise ConfigError(f"{owner}({name}={shown}): {name} must be {words_of(hint)}")


@cache
def hint_of(module: str, annotation: Any) -> Any:
    """What an annotation in a module means; Any if only type checkers know it."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[module]))  # the module's own code
    except (NameError, TypeError, AttributeError):
        return Any


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    match origin or hint:
        case _ if origin in (Union, UnionType):
            return any(fits(value, one) for one in inner)
        case _ if origin is Literal:
            return isinstance(value, str) and value in inner
        case None:
            return value is None
        case kind if kind is int or kind is float:
            return isinstance(value, int | kind) and not isinstance(value, bool) and isfinite(value)
        case kind if kind is Any or not isinstance(kind, type):
            return True  # anything, a type variable, or a name that is not known yet
        case kind if kind is type:
            return isinstance(value, type) and (not isinstance(inner[0], type) or issubclass(value, inner[0]))
        case kind if kind is tuple and inner and inner[-1] is not ...:
            known = isinstance(value, tuple) and len(value) == len(inner)
            return known and all(map(fits, value, inner))
        case kind if inner and issubclass(kind, Mapping):
            return isinstance(value, kind) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
        case kind if inner and issubclass(kind, Iterable):
            return _is_list(value) and (isinstance(value, Iterator) or all(fits(one, inner[0]) for one in value))
        case kind if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
            return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
        case kind:
            return isinstance(value, kind)


def _is_list(value: object) -> bool:
    """Whether it holds several values; a text is one."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def words_of(hint: Any, plural: bool = False) -> str:
    """A type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType, Literal):
        return _joined(_choices(hint, plural))
    kind = origin or hint
    if kind in _WORDS or kind is None:
        return (
            {"a text": "texts", "a whole number": "whole numbers"}.get(_WORDS[kind], _WORDS[kind])
            if plural
            else (_WORDS.get(kind, "None"))
        )
    if kind is Any or not isinstance(kind, type):
        return "anything"
    if kind is type:
        return f"{'subclasses' if plural else 'a subclass'} of {getattr(inner[0], '__name__', 'any kind')}"
    if issubclass(kind, Mapping):
        return f"a mapping from {words_of(inner[0], True)} to {words_of(inner[1], True)}" if inner else "a mapping"
    if kind is tuple and inner and inner[-1] is not ...:
        return f"a tuple of {' and '.join([words_of(one) for one in inner])}"
    if inner and issubclass(kind, Iterable):
        return f"a list of {words_of(inner[0], True)}"
    if origin is not None:
        return "functions" if plural else "a function"
    return kind.__name__ if plural else f"a {kind.__name__}"


def _choices(hint: Any, plural: bool) -> list[str]:
    """The types of a union and the values of a literal, each in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [repr(one) for one in inner]
    if origin in (Union, UnionType):
        return [choice for one in inner for choice in _choices(one, plural)]
    return [words_of(hint, plural)]


def _joined(choices: list[str]) -> str:
    *most, last = dict.fromkeys(choices)
    return f"{', '.join(most)} or {last}" if most else last


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
