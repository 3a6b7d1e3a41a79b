"""The conditions of a hook: which events, facts, requests and calls it is asked about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Union

from windlass.errors import RegistrationError
from windlass.events import (
    Delegating,
    Erring,
    ModelCalling,
    SubagentStopping,
    ToolCalling,
    ToolReturning,
)
from windlass.messages import ModelCall, ToolCall
from windlass.policies import CATEGORIES
from windlass.records import Delegated, ToolCalled, ToolDecided, ToolReturned, UndoCalled

from .matching import Matcher, Matches, compile_matcher, name_test

Condition: TypeAlias = Callable[[Any], Any]
Names: TypeAlias = Union[str, "re.Pattern[str]", Sequence["Names"]]
"""A name, a glob, a compiled regular expression, or a list of them."""
Errors: TypeAlias = type[BaseException] | str | Sequence["Errors"]
"""A class of errors, a category of the error policy, or a list of them."""

TOOL_FACTS: tuple[type, ...] = (ToolDecided, ToolCalled, ToolReturned, UndoCalled)
"""The facts that name a tool."""

_PLACES: dict[str, tuple[type, ...]] = {
    "tool": (ToolCalling, ToolReturning, ToolCall, *TOOL_FACTS),
    "agent": (Delegating, SubagentStopping, Delegated),
    "model": (ModelCalling, ModelCall),
    "error": (Erring,),
}
"""Where each condition but `when` can be used."""


class Conditions(NamedTuple):
    """The conditions of one hook, compiled. `matches` has all of them, `matches_call` the one about tools."""

    matches: Condition | None = None
    matches_call: Matches | None = None


def misplaced_conditions(options: Mapping[str, Any], event: type) -> Iterator[str]:
    """Say which conditions do not fit the event."""
    for option, places in _PLACES.items():
        if option in options and event not in places:
            if option == "tool":
                yield "has a tool matcher, but its event is not about a tool"
            else:
                names = ", ".join([place.__name__ for place in places])
                yield f"has {option}=, which is only for {names}"


def compile_conditions(options: Mapping[str, Any], event: type, hook: str) -> Conditions:
    """The conditions among the options of a hook, as one function of what the hook is asked about."""
    matches_call: Matches | None = None
    tests: list[Condition] = []
    if (tool := options.get("tool")) is not None:
        tool = _names_only(tool, hook) if event in TOOL_FACTS else tool
        matches_call = compile_matcher(tool, hook)
        tests.append(_of_tool(matches_call, event))
    if (agent := options.get("agent")) is not None:
        tests.append(_of_name(_compile_names(agent, "agent", hook), event))
    if (model := options.get("model")) is not None:
        tests.append(_of_name(_compile_names(model, "model", hook), event))
    if (error := options.get("error")) is not None:
        tests.append(_compile_errors(error, hook))
    if (when := options.get("when")) is not None:
        tests.append(when)
    if not tests:
        return Conditions()
    return Conditions(tests[0] if len(tests) == 1 else _all_of(tests), matches_call)


def _all_of(tests: list[Condition]) -> Condition:
    return lambda subject: all(test(subject) for test in tests)


def _of_tool(matches: Matches, event: type) -> Condition:
    if event is ToolCall:
        return matches
    if event in TOOL_FACTS:
        return lambda fact: matches(ToolCall("", fact.name))
    return lambda about: matches(about.call)


def _of_name(matches: Callable[[str], bool], event: type) -> Condition:
    if event is ModelCalling:
        return lambda about: matches(about.request.model)
    if event is ModelCall:
        return lambda request: matches(request.model)
    return lambda about: matches(about.agent)


def _names_only(matcher: Matcher, hook: str) -> Matcher:
    """The matcher, unless it needs the arguments of a call: a fact has the name of the tool only."""
    members = matcher if isinstance(matcher, list | tuple) else [matcher]
    for member in members:
        if isinstance(member, list | tuple):
            _names_only(member, hook)
        elif not isinstance(member, re.Pattern) and (callable(member) or "(" in str(member)):
            text = "a fact has the name of the tool, but not its arguments; use a name, or when=predicate(fact)"
            raise RegistrationError(
                f"hook {hook!r}: tool={matcher!r} compares arguments: {text}", hook=hook
            )
    return matcher


def _compile_names(names: Any, option: str, hook: str) -> Callable[[str], bool]:
    """Names, globs, expressions and lists of them as a predicate over names."""
    if isinstance(names, re.Pattern):
        return lambda name: names.search(name) is not None
    if names and isinstance(names, str):
        return name_test(names)
    if names and isinstance(names, list | tuple):
        tests = [_compile_names(member, option, hook) for member in names]
        return lambda name: any(test(name) for test in tests)
    legal = "pass a name, a glob, a compiled regular expression, or a list of them"
    raise RegistrationError(
        f"hook {hook!r}: {option}={names!r} matches nothing; {legal}", hook=hook
    )


def _compile_errors(errors: Errors, hook: str) -> Condition:
    classes, categories = [], []
    for error in errors if isinstance(errors, list | tuple) else (errors,):
        if isinstance(error, type) and issubclass(error, BaseException):
            classes.append(error)
        elif isinstance(error, str) and error in CATEGORIES:
            categories.append(error)
        else:
            legal = (
                f"pass a class of errors, a category ({', '.join(CATEGORIES)}), or a list of them"
            )
            raise RegistrationError(
                f"hook {hook!r}: error={error!r} matches nothing; {legal}", hook=hook
            )
    if not classes and not categories:
        raise RegistrationError(f"hook {hook!r}: error={errors!r} matches nothing", hook=hook)
    kinds = tuple(classes)
    return lambda event: isinstance(event.error, kinds) or event.category in categories


__all__ = [
    "Condition",
    "Conditions",
    "Errors",
    "Names",
    "compile_conditions",
    "misplaced_conditions",
]
