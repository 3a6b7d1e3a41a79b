"""Which tool calls a hook looks at: a name, a glob, a list, a regular expression, a rule, a folder or a predicate."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate
from typing import Any, NamedTuple, TypeAlias, Union

import msgspec

from windlass.errors import ConfigError, RegistrationError
from windlass.messages import ToolCall

Matches: TypeAlias = Callable[[ToolCall], bool]
Matcher: TypeAlias = Union[str, "re.Pattern[str]", Matches, Sequence["Matcher"]]
Parameters: TypeAlias = Mapping[str, Iterable[str]]
"""The names of the tools there are, each with those of its parameters."""

_RULE = re.compile(r"(?P<name>[^()\s]+)\((?P<tests>.*)\)\Z", re.DOTALL)
_NAMED = re.compile(r"\s*(?P<path>\w+(?:\.\w+)*)\s*=(?P<glob>.*)\Z", re.DOTALL)
_NEXT = re.compile(r",\s*(?=\w+(?:\.\w+)*\s*=)")
_SHOWN = 8


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
    if (rule := _RULE.match(text)) and rule["tests"]:
        return Rule(text)
    if "(" in text or ")" in text or not text:
        raise RegistrationError(
            f"hook {hook!r}: tool={text!r} is not a name, a glob or a rule such as 'bash(rm *)'", hook=hook
        )
    return _name(text)


def _name(text: str) -> Matches:
    if any(c in text for c in "*?["):
        matches = re.compile(translate(text)).match
        return lambda call: matches(call.name) is not None
    return lambda call: call.name == text


# ---------------------------------------------------------------- rules


class Rule:
    """`bash(rm *)` looks at every value among the arguments, `bash(command=rm *)` at the parameter it names.

    Values are found at any depth. A text is compared by the glob, a number, a boolean or null by its JSON text. With
    several parameters all must match; `options.mode=rw` looks below a parameter.
    """

    __slots__ = ("_matches_name", "_tests", "name", "parameters")

    def __init__(self, text: str) -> None:
        rule = _RULE.match(text)
        assert rule is not None
        self.name: str = rule["name"]
        self._matches_name = _name(self.name)
        pieces = _NEXT.split(rule["tests"]) if _NAMED.match(rule["tests"]) else []
        named = [found for piece in pieces if (found := _NAMED.match(piece))]
        self.parameters: tuple[str, ...] = tuple([found["path"].split(".")[0] for found in named])
        tests = [(tuple(found["path"].split(".")), found["glob"].strip()) for found in named] or [((), rule["tests"])]
        self._tests = tuple([(path, _test(glob)) for path, glob in tests])

    def __call__(self, call: ToolCall) -> bool:
        if not self._matches_name(call):
            return False
        given = call.arguments
        return all(any(map(test, values(given, path))) for path, test in self._tests)


def _test(glob: str) -> Callable[[Any], bool]:
    matches, number = re.compile(translate(glob)).match, _number(glob)

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return matches(value) is not None
        if isinstance(value, bool) or value is None:
            return any(matches(text) for text in (str(value), str(value).lower().replace("none", "null")))
        return value == number or matches(msgspec.json.encode(value).decode()) is not None

    return test


def _number(text: str) -> object:
    """The number that a text is in JSON, else None, which no number is equal to."""
    try:
        return msgspec.json.decode(text, type=int | float)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def values(given: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """All values at and below a path that hold no others. A list stands for each of its elements."""
    found = [(given, path)]
    while found:
        value, rest = found.pop()
        if not value and isinstance(value, list | dict):
            if not rest:
                yield "[]" if isinstance(value, list) else "{}"
        elif isinstance(value, list):
            found += [(item, rest) for item in value]
        elif not isinstance(value, dict):
            if not rest:
                yield value
        elif not rest:
            found += [(item, rest) for item in value.values()]
        elif rest[0] in value:
            found.append((value[rest[0]], rest[1:]))


# ---------------------------------------------------------------- folders


def under(tool: str, /, **folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Matches:
    """Match calls of a tool on paths in a folder: `tool=under("delete", path="/etc")`.

    The tool is a name or a glob. Each keyword names a parameter and its folder, or a list of folders of which one is
    enough; with several parameters all must match. A path matches if it is the folder or lies below it, once it is
    absolute and without `//`, `.`, `..` and a slash at the end. A relative path starts at the current directory of the
    process; a path that begins with `~` is also read as a home directory. If a parameter holds several texts, at any
    depth, one of them is enough.

    Nothing is looked up on the disk. Links are not followed: a path outside the folder that leads into it by a link
    does not match. Where that matters, the tool itself must check what it opens.
    """
    listed = {name: [given] if isinstance(given, str | os.PathLike) else [*given] for name, given in folders.items()}
    if not listed or not all(listed.values()):
        raise ConfigError(f"under({tool!r}) needs a parameter and a folder: under({tool!r}, path='/folder')")
    return Under(tool, {name: tuple([os.fspath(folder) for folder in given]) for name, given in listed.items()})


class Under:
    """What `under` makes: a predicate over calls that knows which tool and parameters it is about."""

    __slots__ = ("_matches_name", "_places", "folders", "name")

    def __init__(self, name: str, folders: Mapping[str, tuple[str, ...]]) -> None:
        self.name = name
        self.folders = folders
        self._matches_name = _name(name)
        self._places = {
            parameter: [*map(_normal, map(os.path.expanduser, given))] for parameter, given in folders.items()
        }

    def __call__(self, call: ToolCall) -> bool:
        if not self._matches_name(call):
            return False
        given = call.arguments
        return all(
            any(isinstance(value, str) and _inside(value, places) for value in values(given, (parameter,)))
            for parameter, places in self._places.items()
        )

    def __repr__(self) -> str:
        shown = [f"{name}={' or '.join(given)}" for name, given in self.folders.items()]
        return f"under({', '.join([self.name, *shown])})"


def _inside(path: str, folders: Iterable[str]) -> bool:
    meant = {_normal(path), _normal(os.path.expanduser(path))}
    return any(_within(one, folder) for folder in folders for one in meant)


def _normal(path: str) -> str:
    absolute = os.path.normcase(os.path.abspath(path))
    return "/" + absolute.lstrip("/") if os.sep == "/" else absolute


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


# ---------------------------------------------------------------- rules that can match nothing


class Mismatch(NamedTuple):
    """A matcher that matches no call, and why. `known` says that there is the tool, but not the parameter."""

    why: str
    known: bool = False


def mismatches(matcher: Matcher, tools: Parameters) -> tuple[list[Mismatch], bool]:
    """Why a matcher, or members of a list of them, match no call of these tools; whether that holds for all of it.

    Of a predicate nothing is known, of a regular expression only which names it matches.
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
        found = any(map(matcher.search, tools))
        return None if found else Mismatch(f"/{matcher.pattern}/ matches no tool; {_known(tools)}")
    if isinstance(matcher, Under):
        return _named(matcher.name, [*matcher.folders], tools, repr(matcher))
    if not isinstance(matcher, str):
        return None
    rule = Rule(matcher) if _RULE.match(matcher) else None
    return _named(rule.name if rule else matcher, rule.parameters if rule else (), tools, repr(matcher))


def _named(name: str, parameters: Sequence[str], tools: Parameters, shown: str) -> Mismatch | None:
    matches = _name(name)
    found = [tool for tool in tools if matches(ToolCall("", tool))]
    if not found:
        return Mismatch(f"{shown} matches no tool{_close(name, tools)}; {_known(tools)}")
    if any({*parameters} <= {*tools[tool]} for tool in found):
        return None
    have = sorted({parameter for tool in found for parameter in tools[tool]})
    missing = [parameter for parameter in parameters if parameter not in have]
    if not missing:
        return Mismatch(f"{shown} matches no call: no tool has all of {', '.join(parameters)}", known=True)
    whose = f"tool {found[0]!r} has" if len(found) == 1 else f"{', '.join(found[:_SHOWN])} have"
    what = f"no parameter {missing[0]!r}{_close(missing[0], have)}"
    return Mismatch(f"{shown} matches no call: {whose} {what}; there are: {', '.join(have) or 'none'}", known=True)


def _close(name: str, known: Iterable[str]) -> str:
    lowered = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), lowered, 1, 0.5)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def _known(tools: Parameters) -> str:
    names = [*tools]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"known tools: {', '.join(names[:_SHOWN]) or 'none'}{more}"
