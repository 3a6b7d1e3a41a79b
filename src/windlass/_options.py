"""Domains of option values, and the `ConfigError` that names an option with an illegal value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct

from .errors import ConfigError

T = TypeVar("T")


class Domain(Struct, frozen=True):
    """The legal values of an option: described in words, and as a test of a value."""

    text: str
    holds: Callable[[Any], bool]


def whole(least: int) -> Domain:
    """A whole number, at least `least`."""
    return Domain(f"a whole number, {least} or more", lambda value: _is_whole(value) and value >= least)


def number(*, least: float | None = None, above: float | None = None) -> Domain:
    """A number within a bound. NaN is outside every bound."""
    bound = (
        "" if least is None and above is None else f", {least:g} or more" if least is not None else f" above {above:g}"
    )

    def holds(value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            return False
        return (least is None or value >= least) and (above is None or value > above)

    return Domain(f"a number{bound}", holds)


def choice(*values: str) -> Domain:
    """One of these texts."""
    *most, last = [repr(value) for value in values]
    return Domain(
        f"{', '.join(most)} or {last}" if most else last, lambda value: isinstance(value, str) and value in values
    )


def instance(text: str, *types: type) -> Domain:
    """An instance of one of these classes."""
    return Domain(text, lambda value: isinstance(value, types))


def with_methods(text: str, *names: str) -> Domain:
    """An object with these methods; a class that has them does not count."""
    return Domain(
        text,
        lambda value: not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names),
    )


def optional(domain: Domain) -> Domain:
    """A value of the domain, or None."""
    return Domain(f"{domain.text}, or None", lambda value: value is None or domain.holds(value))


def each(text: str, domain: Domain) -> Domain:
    """A list of values of the domain."""
    return Domain(
        f"{text} {domain.text}", lambda value: isinstance(value, list | tuple) and all(map(domain.holds, value))
    )


WHOLE = Domain("a whole number", lambda value: _is_whole(value))
TEXT = instance("a str", str)
FLAG = instance("True or False", bool)
FUNCTION = Domain("a function", lambda value: callable(value) and not isinstance(value, type))
MODEL = Domain(
    "a model, with `name` and `async reply(request)`, or a name such as 'openai:gpt-5'",
    lambda given: (
        isinstance(given, str)
        or (hasattr(given, "reply") and isinstance(getattr(given, "name", None), str) and not isinstance(given, type))
    ),
)
CRITERION = Domain("a function from a state to a vote, or a limit such as StepLimit(5)", FUNCTION.holds)
SUBAGENT = Domain("an Agent", lambda given: hasattr(given, "as_tool") and hasattr(given, "_child_result"))
APPROVER = Domain("a function from a question to an answer or None", FUNCTION.holds)
TOOLS = each("a list of tools, each", Domain("a function or a Tool", callable))
CRITERIA = each("a list of criteria, each", CRITERION)
SETTINGS = instance("a mapping", Mapping)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def as_list(values: Iterable[T]) -> Sequence[T]:
    """The values as a list, so that they can be read twice. A value that is not iterable is left for the check."""
    option: object = values
    readable = isinstance(option, Iterable) and not isinstance(option, str | bytes)
    return list(values) if readable else cast(Sequence[T], option)


def check_each(owner: str, domain: Domain, values: Iterable[Any]) -> None:
    """Raise `ConfigError` for the first value outside the domain."""
    for value in values:
        if not domain.holds(value):
            raise ConfigError(f"{owner}({short_repr(value)}): this must be {domain.text}")


def check_options(owner: str, domains: Mapping[str, Domain], values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the first option whose value is outside its domain."""
    for name, domain in domains.items():
        if not domain.holds(values[name]):
            raise ConfigError(f"{owner}({name}={short_repr(values[name])}): {name} must be {domain.text}")


def short_repr(value: object) -> str:
    """A short `repr` for messages; a `repr` that raises is replaced by the type's name."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:79]}…"
