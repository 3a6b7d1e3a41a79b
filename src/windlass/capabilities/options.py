"""Checks the options of capabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeAlias

from windlass.errors import ConfigError
from windlass.policies import CATEGORIES, category_of

Errors: TypeAlias = type[BaseException] | str | Sequence[type[BaseException] | str] | Callable[[BaseException], bool]
"""Which errors: a class, a category of the error policy, a list of them, or a function of an error."""


def require(owner: str, name: str, value: object, legal: bool, must: str) -> None:
    """Raise `ConfigError` unless the value of an option is legal."""
    if not legal:
        raise ConfigError(f"{owner}({name}={value!r}): {name} must be {must}")


def is_model(given: object) -> bool:
    """Whether this is a model, or the text that names one."""
    return isinstance(given, str) or (hasattr(given, "reply") and hasattr(given, "name"))


def require_name(owner: str, name: object) -> None:
    """Raise unless this can be the name of a capability."""
    require_text(owner, "name", name)


def require_text(owner: str, name: str, value: object) -> None:
    """Raise unless the value is a text, and not empty."""
    require(owner, name, value, isinstance(value, str) and value != "", "a text")


def require_share(owner: str, name: str, value: object) -> None:
    """Raise unless the value is a number from 0 to below 1."""
    legal = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    require(owner, name, value, legal, "a number from 0 to below 1")


def require_count(owner: str, name: str, value: object, *, least: int = 1) -> None:
    """Raise unless the value is a whole number, at least `least`."""
    legal = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(owner, name, value, legal, f"a whole number, {least} or more")


def require_seconds(owner: str, name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless the value is a number of seconds above 0, or 0 if that is legal, too."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    legal = number and (value > 0 or (zero and value == 0))  # type: ignore[operator]
    require(owner, name, value, legal, "a number of seconds, 0 or more" if zero else "a number of seconds above 0")


def require_amount(owner: str, name: str, value: object) -> None:
    """Raise unless the value is a number above 0."""
    legal = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    require(owner, name, value, legal, "a number above 0")


def error_test(owner: str, on: Errors) -> Callable[[BaseException], bool]:
    """The test of an error that `on` describes."""
    if callable(on) and not isinstance(on, type):
        return on
    given: Any = on
    members = tuple(given) if isinstance(given, list | tuple) else (given,)
    classes = tuple([one for one in members if isinstance(one, type) and issubclass(one, BaseException)])
    categories = [one for one in members if isinstance(one, str) and one in CATEGORIES]
    legal = bool(members) and len(classes) + len(categories) == len(members)
    words = f"classes of errors or categories ({', '.join(CATEGORIES)}), or a function of an error"
    require(owner, "on", on, legal, words)

    def matches(error: BaseException) -> bool:
        return isinstance(error, classes) or category_of(error) in categories

    return matches
