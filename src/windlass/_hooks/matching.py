"""Which tool calls a hook looks at: a name, a glob, a list, a regular expression, a rule or a predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias, Union

from windlass.errors import RegistrationError
from windlass.messages import ToolCall

Matches: TypeAlias = Callable[[ToolCall], bool]
Matcher: TypeAlias = Union[str, "re.Pattern[str]", Matches, Sequence["Matcher"]]

_RULE = re.compile(r"(?P<name>[^()\s]+)\((?:(?P<argument>\w+)=)?(?P<glob>.*)\)\Z", re.DOTALL)


def compile_matcher(matcher: Matcher, hook: str) -> Matches:
    """A predicate over calls."""
    if isinstance(matcher, str):
        return _text(matcher, hook)
    if isinstance(matcher, re.Pattern):
        return lambda call: matcher.search(call.name) is not None
    if callable(matcher):
        return matcher
    if matcher and isinstance(matcher, list | tuple):
        members = [compile_matcher(member, hook) for member in matcher]
        return lambda call: any(matches(call) for matches in members)
    raise RegistrationError(
        f"hook {hook!r}: tool={matcher!r} matches nothing; give a name, a glob, a rule such as 'bash(rm *)', a list, "
        "a compiled regular expression or a predicate over the call",
        hook=hook,
    )


def _text(text: str, hook: str) -> Matches:
    if rule := _RULE.match(text):
        return _rule(rule["name"], rule["argument"], rule["glob"])
    if "(" in text or ")" in text or not text:
        raise RegistrationError(f"hook {hook!r}: tool={text!r} is no name, glob or rule 'name(glob)'", hook=hook)
    return _name(text)


def _name(text: str) -> Matches:
    if any(c in text for c in "*?["):
        return lambda call: fnmatchcase(call.name, text)
    return lambda call: call.name == text


def _rule(name: str, argument: str | None, glob: str) -> Matches:
    """`bash(rm *)` looks at every text among the arguments, `bash(command=rm *)` at the one it names."""
    named = _name(name)

    def matches(call: ToolCall) -> bool:
        if not named(call):
            return False
        given = call.arguments
        values = given.values() if argument is None else [given.get(argument)]
        return any(isinstance(value, str) and fnmatchcase(value, glob) for value in values)

    return matches
