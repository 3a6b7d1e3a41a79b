"""Every option of every capability is checked when the capability is made: the error names both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite, nan
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest

import windlass
from windlass import Agent, protocols
from windlass import capabilities as ready_made
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, says

CHILD = Agent(ScriptedModel(says("done")), name="child")

NEEDED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "AuditTrail": ((print,), {}),
    "AutoApprove": (("pay",), {}),
    "Budget": ((), {"tokens": 10}),
    "Fallback": (("openai:gpt-5",), {}),
    "LoopGuard": ((), {"warn": None, "block": 9}),
    "Moderate": ((lambda text: None,), {}),
    "Notify": (("https://example.org",), {}),
    "RateLimit": ((), {"requests": 9}),
    "RequestArchive": (("requests",), {}),
    "Subagents": (([CHILD],), {}),
    "Timeout": ((), {"model": 9}),
    "Validate": ((), {"input": lambda message: None}),
    "Webhook": (("https://example.org",), {}),
}
"""What a capability needs to be made at all."""

WRONG = (object(), 7, 2.5, -1, nan, "no such name", "", b"bytes", [object()], [7], {"no such name": object()}, print)
"""Values of all sorts; those that the annotation of an option allows are left out."""

BELOW_ZERO = {("Approval", "priority"), ("Logging", "level")}
"""Options that may be negative."""

NAMES = {"name", "tool", "prefix", "by", "url", "target"}
"""Options that must not be empty."""


EFFECTS_AND_SAFETY = (
    "Retry", "Fallback", "Cache", "RateLimit", "Timeout", "Budget", "Permissions", "Approval", "AutoApprove", "Webhook",
    "DryRun", "AuditTrail", "Validate", "Redact", "Moderate", "LoopGuard", "Steering", "Events", "Logging", "Metrics",
    "Notify", "Subagents",
)  # fmt: skip


OTHERS = ("ClearResults", "Offload", "RememberedRules", "RequestArchive", "Summarize", "Trim")


def capabilities() -> list[type[Any]]:
    return [getattr(ready_made, name) for name in (*EFFECTS_AND_SAFETY, *OTHERS)]


def options(capability: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """The name, kind and type of each option."""
    known: dict[str, Any] = {name: getattr(windlass, name) for name in windlass.__all__}
    names = {**protocols.__dict__, **known, **_outside(), **inspect.getmodule(capability).__dict__}
    for parameter in list(inspect.signature(capability.__init__).parameters.values())[1:]:
        try:
            yield parameter.name, parameter.kind, eval(str(parameter.annotation), names)
        except TypeError:  # a quoted name, which only type checkers know
            yield parameter.name, parameter.kind, Any


def _outside() -> dict[str, Any]:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    return {
        "CollectorRegistry": CollectorRegistry,
        "MeterProvider": MeterProvider,
        "TracerProvider": TracerProvider,
    }


def fits(value: Any, hint: Any) -> bool:
    """Whether an annotation allows a value."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner if isinstance(value, str) else False
    if hint is None or hint is NoneType:
        return value is None
    if hint is float or hint is int:
        return type(value) in (int, hint) and isfinite(value)
    if origin is not None and not isinstance(origin, type):
        return True
    if origin is Callable or origin is type(Callable):
        return callable(value)
    if origin is type:
        return isinstance(value, type)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin is not None and issubclass(origin, Iterable):
        whole = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        return whole and all(fits(one, inner[0]) for one in value)
    if origin is not None:
        return fits_class(value, origin)
    return fits_class(value, hint)


def fits_class(value: Any, cls: Any) -> bool:
    if not isinstance(cls, type):  # a name that only type checkers know
        return True
    if getattr(cls, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(cls) if not name.startswith("_"))
    return isinstance(value, cls)


def wrong_options() -> Iterator[Any]:
    for capability in capabilities():
        for option, kind, hint in options(capability):
            for value in WRONG:
                negative = type(value) is int and value < 0 and (capability.__name__, option) not in BELOW_ZERO
                empty = value == "" and option in NAMES
                if not fits(value, hint) or ((negative or empty) and hint is not Any):
                    yield pytest.param(
                        capability, option, kind, value, id=f"{capability.__name__}-{option}-{value!r:.20}"
                    )


@pytest.mark.parametrize(("capability", "option", "kind", "value"), list(wrong_options()))
def test_a_wrong_option_is_an_error_that_names_it_and_the_capability(capability, option, kind, value):
    positional, named = NEEDED.get(capability.__name__, ((), {}))
    given = inspect.signature(capability).bind_partial(*positional, **named).arguments
    if kind is inspect.Parameter.VAR_POSITIONAL:
        first = [given[name] for name in given if name != option]
        build = lambda: capability(*first, value)  # noqa: E731
        if first == [] and capability.__name__ == "Events":
            build = lambda: capability("standard", value)  # noqa: E731
    else:
        variable = {name: one for name, one in given.items() if isinstance(one, tuple) and name in ("models", "kinds")}
        others = {name: one for name, one in given.items() if name not in variable}
        build = lambda: capability(*[x for one in variable.values() for x in one], **{**others, option: value})  # noqa: E731
    with pytest.raises(ConfigError) as raised:
        build()
    assert capability.__name__ in str(raised.value)
    assert option in str(raised.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ready_made.Budget(tokens=1, per="user"), "per must be 'turn', 'session' or a function"),
        (
            lambda: ready_made.Budget(tokens=1, prices={"m": 3}),
            "a mapping from texts to Price or a tuple of a number and a number",
        ),
        (lambda: ready_made.Redact(where=["somewhere"]), "'requests' or a list of 'input', 'output'"),
        (lambda: ready_made.AutoApprove("pay", gates="permissions"), "gates must be a list of texts or None"),
    ],
)
def test_the_error_says_what_the_option_may_be(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_subclass_names_the_capability_that_it_extends():
    class Careful(ready_made.Retry):
        """Retries with jitter only."""

    with pytest.raises(ConfigError, match=r"Retry\(jitter='yes'\): jitter must be True or False"):
        Careful(jitter="yes")


def test_the_value_of_a_secret_option_is_not_in_the_error():
    with pytest.raises(ConfigError) as raised:
        ready_made.Webhook("https://example.org", secret=b"hunter2")
    assert "secret must be a text" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_missing_or_unknown_option_is_named_by_python():
    with pytest.raises(TypeError, match=r"Retry.*'atempts'"):
        ready_made.Retry(atempts=3)
