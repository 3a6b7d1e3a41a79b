"""Matchers of tool calls: names, globs, lists, regular expressions, rules, folders, predicates."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple, TypeAlias, Union

import msgspec

from windlass.errors import ConfigError, RegistrationError
from windlass.messages import ToolCall

Matches: TypeAlias = Callable[[ToolCall], bool]
Matcher: TypeAlias = Union[str, "re.Pattern[str]", Matches, Sequence["Matcher"]]
Parameters: TypeAlias = Mapping[str, Iterable[str]]
"""The names of tools, each with the names of its parameters."""

# Patterns are texts: `re` compiles them when they are first used, not when Windlass is imported.
_RULE = r"(?s)(?P<name>[^()\s]+)\((?P<tests>.*)\)\Z"
_PARAMETER_TEST = r"(?s)\s*(?P<path>\w+(?:\.\w+)*)\s*=(?P<glob>.*)\Z"
_BETWEEN_TESTS = r",\s*(?=\w+(?:\.\w+)*\s*=)"
_MAX_NAMES = 8
"""The most names that a message lists."""


def compile_matcher(matcher: Matcher, hook: str) -> Matches:
    """The matcher as a predicate over calls."""
    if isinstance(matcher, str):
        return _compile_text(matcher, hook)
    if isinstance(matcher, re.Pattern):
        return lambda call: matcher.search(call.name) is not None
    if callable(matcher):
        return matcher
    if matcher and isinstance(matcher, list | tuple):
        members = [compile_matcher(member, hook) for member in matcher]
        return lambda call: any(matches(call) for matches in members)
    raise RegistrationError(
        f"hook {hook!r}: tool={matcher!r} matches nothing; pass a name, a glob, a rule such as "
        "'bash(rm *)', a list, a compiled regular expression or a predicate over the call",
        hook=hook,
    )


def _compile_text(text: str, hook: str) -> Matches:
    if (rule := re.match(_RULE, text)) and rule["tests"]:
        return Rule(text)
    if "(" in text or ")" in text or not text:
        problem = f"tool={text!r} is not a name, a glob or a rule such as 'bash(rm *)'"
        raise RegistrationError(f"hook {hook!r}: {problem}", hook=hook)
    return _compile_name(text)


def _compile_name(text: str) -> Matches:
    if any(c in text for c in "*?["):
        matches = re.compile(translate(text)).match
        return lambda call: matches(call.name) is not None
    return lambda call: call.name == text


def name_test(text: str) -> Callable[[str], bool]:
    """A name, or a glob, as a predicate over names."""
    if any(c in text for c in "*?["):
        matches = re.compile(translate(text)).match
        return lambda name: matches(name) is not None
    return lambda name: name == text


# ---------------------------------------------------------------- rules


class RuleParts(NamedTuple):
    """A rule in parts: the tool, a name or a glob, and its tests.

    A test is the path of a parameter, such as `("options", "mode")`, and a glob. An empty path means every value.
    """

    tool: str
    tests: tuple[tuple[tuple[str, ...], str], ...] = ()


def parse_rule(text: str) -> RuleParts:
    """The parts of a rule such as `bash`, `mcp__*`, `bash(rm *)` or `refund(currency=USD, order=A*)`.

    A text that is not a rule raises `ConfigError`.
    """
    rule = re.match(_RULE, text)
    if rule is None or not rule["tests"]:
        if not re.fullmatch(r"[^()\s]+", text):
            raise ConfigError(
                f"{text!r} is not a rule: write a tool, a glob, or a tool with tests such as 'bash(rm *)'"
            )
        return RuleParts(text)
    whole = rule["tests"]
    pieces = re.split(_BETWEEN_TESTS, whole) if re.match(_PARAMETER_TEST, whole) else []
    found = [test for piece in pieces if (test := re.match(_PARAMETER_TEST, piece))]
    tests = [(tuple(test["path"].split(".")), test["glob"].strip()) for test in found]
    return RuleParts(rule["name"], tuple(tests) or (((), whole),))


class Rule:
    """`bash(rm *)` tests every value of the arguments, `bash(command=rm *)` one parameter.

    Values are found at any depth. The glob is compared with a text itself, and with the JSON text
    of a number, a boolean or null. Several parameters must all match; `options.mode=rw` tests a
    value inside a parameter.
    """

    __slots__ = ("_matches_name", "_tests", "name", "parameters")

    def __init__(self, text: str) -> None:
        parts = parse_rule(text)
        self.name = parts.tool
        self._matches_name = _compile_name(self.name)
        self.parameters: tuple[str, ...] = tuple([path[0] for path, _ in parts.tests if path])
        self._tests = tuple([(path, glob_test(glob)) for path, glob in parts.tests])

    def __call__(self, call: ToolCall) -> bool:
        if not self._matches_name(call):
            return False
        arguments = call.arguments
        return all(any(map(test, values(arguments, path))) for path, test in self._tests)


def glob_test(glob: str) -> Callable[[Any], bool]:
    """A glob as a predicate over the values of arguments: texts, numbers, booleans and null."""
    matches, number = re.compile(translate(glob)).match, _as_number(glob)

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return matches(value) is not None
        if isinstance(value, bool) or value is None:
            python, json = str(value), str(value).lower().replace("none", "null")
            return any(matches(text) for text in (python, json))
        return value == number or matches(msgspec.json.encode(value).decode()) is not None

    return test


def _as_number(text: str) -> object:
    """The JSON number in a text. If there is none, None, which equals no number."""
    try:
        return msgspec.json.decode(text, type=int | float)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def values(arguments: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The innermost values at and below a path. A list stands for each of its elements."""
    pending = [(arguments, path)]
    while pending:
        value, rest = pending.pop()
        if not value and isinstance(value, list | dict):
            if not rest:
                yield "[]" if isinstance(value, list) else "{}"
        elif isinstance(value, list):
            pending += [(item, rest) for item in value]
        elif not isinstance(value, dict):
            if not rest:
                yield value
        elif not rest:
            pending += [(item, rest) for item in value.values()]
        elif rest[0] in value:
            pending.append((value[rest[0]], rest[1:]))


# ---------------------------------------------------------------- folders


def under(
    tool: str, /, **folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
) -> Matches:
    """Match calls of a tool on paths in a folder: `tool=under("delete", path="/etc")`.

    The tool is a name or a glob. Each keyword names a parameter and gives its folder, or a list of
    folders of which one must match; several parameters must all match. A path matches if it is the
    folder or lies below it, once it is absolute and without `//`, `.`, `..` and a slash at the end.
    A relative path starts at the current directory of the process; a path that begins with `~` is
    also read as a home directory. If a parameter holds several texts, at any depth, one must match.

    Nothing is looked up on the disk, and links are not followed: a path outside the folder that
    leads into it through a link does not match. Where that matters, the tool itself must check what
    it opens.
    """
    paths: dict[str, tuple[str, ...]] = {}
    for name, value in folders.items():
        several = [value] if isinstance(value, str | os.PathLike) else value
        paths[name] = tuple([os.fspath(folder) for folder in several])
    if not paths or not all(paths.values()):
        example = f"under({tool!r}, path='/folder')"
        raise ConfigError(f"under({tool!r}) needs a parameter and a folder: {example}")
    return Under(tool, paths)


class Under:
    """A predicate over calls, made by `under`, that knows its tool and its parameters."""

    __slots__ = ("_matches_name", "_places", "folders", "name")

    def __init__(self, name: str, folders: Mapping[str, tuple[str, ...]]) -> None:
        self.name = name
        self.folders = folders
        self._matches_name = _compile_name(name)
        self._places = {
            name: [_normalize(os.path.expanduser(path)) for path in paths]
            for name, paths in folders.items()
        }

    def __call__(self, call: ToolCall) -> bool:
        if not self._matches_name(call):
            return False
        return all(
            any(_is_inside(value, places) for value in values(call.arguments, (parameter,)))
            for parameter, places in self._places.items()
        )

    def __repr__(self) -> str:
        folders = [f"{name}={' or '.join(paths)}" for name, paths in self.folders.items()]
        return f"under({', '.join([self.name, *folders])})"


def _is_inside(path: object, folders: Iterable[str]) -> bool:
    if not isinstance(path, str):
        return False
    readings = {_normalize(path), _normalize(os.path.expanduser(path))}
    return any(_is_within(reading, folder) for folder in folders for reading in readings)


def _normalize(path: str) -> str:
    absolute = os.path.normcase(os.path.abspath(path))
    return "/" + absolute.lstrip("/") if os.sep == "/" else absolute


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


# ---------------------------------------------------------------- rules that can match nothing


class Mismatch(NamedTuple):
    """Why a matcher matches no call. If `tool_exists`, the tool lacks the parameter."""

    why: str
    tool_exists: bool = False


def mismatches(matcher: Matcher, tools: Parameters) -> tuple[list[Mismatch], bool]:
    """Why a matcher, or members of a list, match no call of these tools; whether that is all of it.

    A predicate is never a mismatch. A regular expression is checked against the names only.
    """
    members = [*_members(matcher)]
    found = [problem for member in members if (problem := _mismatch(member, tools)) is not None]
    return found, len(found) == len(members)


def _members(matcher: Matcher) -> Iterator[Matcher]:
    if isinstance(matcher, list | tuple):
        for member in matcher:
            yield from _members(member)
    else:
        yield matcher


def _mismatch(matcher: Matcher, tools: Parameters) -> Mismatch | None:
    if isinstance(matcher, re.Pattern):
        if any(map(matcher.search, tools)):
            return None
        return Mismatch(f"/{matcher.pattern}/ matches no tool; {_known_tools(tools)}")
    if isinstance(matcher, Under):
        return _name_mismatch(matcher.name, [*matcher.folders], tools, repr(matcher))
    if not isinstance(matcher, str):
        return None
    if not re.match(_RULE, matcher):
        return _name_mismatch(matcher, (), tools, repr(matcher))
    rule = Rule(matcher)
    return _name_mismatch(rule.name, rule.parameters, tools, repr(matcher))


def _name_mismatch(
    name: str, needed: Sequence[str], tools: Parameters, label: str
) -> Mismatch | None:
    matches = _compile_name(name)
    found = [tool for tool in tools if matches(ToolCall("", tool))]
    if not found:
        return Mismatch(f"{label} matches no tool{_suggestion(name, tools)}; {_known_tools(tools)}")
    if any({*needed} <= {*tools[tool]} for tool in found):
        return None
    have = sorted({parameter for tool in found for parameter in tools[tool]})
    missing = [parameter for parameter in needed if parameter not in have]
    if not missing:
        why = f"no tool has all of {', '.join(needed)}"
        return Mismatch(f"{label} matches no call: {why}", tool_exists=True)
    whose = f"tool {found[0]!r} has" if len(found) == 1 else f"{', '.join(found[:_MAX_NAMES])} have"
    why = f"{whose} no parameter {missing[0]!r}{_suggestion(missing[0], have)}"
    known = f"known parameters: {', '.join(have) or 'none'}"
    return Mismatch(f"{label} matches no call: {why}; {known}", tool_exists=True)


def _suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only to write an error message

    lowered = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), lowered, 1, 0.5)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def _known_tools(tools: Parameters) -> str:
    names = [*tools]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"known tools: {', '.join(names[:_MAX_NAMES]) or 'none'}{more}"
