"""The rules of permissions: one rule compared with one call, strictly to allow it and widely to refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from windlass.matching import glob_test, name_test, parse_rule, values

from .commands import Command, CommandPattern
from .paths import PathPattern, Place, place_of

Kind: TypeAlias = Literal["allow", "ask", "deny"]
KINDS: tuple[Kind, ...] = ("allow", "ask", "deny")
"""From the mildest to the strictest."""

NO, MAYBE, YES = 0, 1, 2
Path: TypeAlias = tuple[str, ...]


class Setting(NamedTuple):
    """What rules need to know: where relative paths start, which parameters hold paths, and which tools run a shell."""

    folder: str
    paths: frozenset[str]
    shells: Mapping[str, str]


class Subject:
    """A call as rules see it. Values are looked up once, however many rules there are."""

    __slots__ = ("_folder", "_places", "_values", "arguments")

    def __init__(self, arguments: dict[str, Any], folder: str) -> None:
        self.arguments = arguments
        self._folder = folder
        self._values: dict[Path, list[Any]] = {}
        self._places: dict[Path, list[Place]] = {}

    def values(self, path: Path) -> list[Any]:
        """The values at and below a path."""
        found = self._values.get(path)
        if found is None:
            found = self._values[path] = list(values(self.arguments, path))
        return found

    def texts(self, path: Path) -> list[Any]:
        """The texts at and below a path; all values if there are no texts."""
        found = self.values(path)
        return [value for value in found if isinstance(value, str)] or found

    def places(self, path: Path) -> list[Place]:
        """The texts at and below a path, as paths."""
        found = self._places.get(path)
        if found is None:
            texts = [value for value in self.values(path) if isinstance(value, str)]
            found = self._places[path] = [place_of(text, self._folder) for text in texts]
        return found


Test: TypeAlias = Callable[[Subject, "Command | None"], int]
"""How far a call, or one command of it, matches: NO, MAYBE or YES."""


class Rule:
    """A rule such as `write(path=src/*)`, and what it does: allow, ask or deny.

    To allow, all values must match, as they are when links are followed and commands are taken apart. To ask or deny,
    it is enough that one of them matches, as it is written or as it may be read.
    """

    __slots__ = ("kind", "parts", "text")

    def __init__(self, kind: Kind, text: str) -> None:
        self.kind = kind
        self.text = text
        self.parts = parse_rule(text)

    def __repr__(self) -> str:
        return f"{self.kind} {self.text}"

    @property
    def is_strict(self) -> bool:
        """Whether it allows."""
        return self.kind == "allow"

    def matches_tool(self, tool: str) -> bool:
        """Whether it is about calls of a tool."""
        return name_test(self.parts.tool)(tool)

    def for_tool(self, tool: str, setting: Setting) -> BoundRule:
        """The rule as it is compared with calls of one tool."""
        command = setting.shells.get(tool)
        tests = [self._test(path, glob, command, setting) for path, glob in self.parts.tests]
        return BoundRule(self, tuple([test for test in tests if test is not None]))

    def _test(self, path: Path, glob: str, command: str | None, setting: Setting) -> Test | None:
        if not glob.strip("*") and (not path or path == (command,)):
            return None
        if command is not None and path in ((), (command,)):
            return _command_test(CommandPattern(glob), self.is_strict)
        if (path and path[-1] in setting.paths) or glob.startswith(("/", "./", "../", "~")):
            return _path_test(PathPattern(glob, setting.folder), path, self.is_strict, setting.paths)
        return _value_test(glob_test(glob), path, self.is_strict)


class BoundRule(NamedTuple):
    """A rule and its tests for one tool. Without tests it matches every call of the tool."""

    rule: Rule
    tests: tuple[Test, ...]

    def match(self, subject: Subject, command: Command | None) -> int:
        """How far a call, or one command of it, matches."""
        found = YES
        for test in self.tests:
            one = test(subject, command)
            if one < found:
                if not one:
                    return NO
                found = one
        return found


def _command_test(pattern: CommandPattern, strict: bool) -> Test:
    if strict:
        return lambda subject, command: YES if command is not None and pattern.allows(command) else NO
    return lambda subject, command: MAYBE if command is None else pattern.touches(command)


def _value_test(test: Callable[[Any], bool], path: Path, strict: bool) -> Test:
    def every(subject: Subject, command: Command | None) -> int:
        found = subject.texts(path)
        return YES if found and all(map(test, found)) else NO

    def some(subject: Subject, command: Command | None) -> int:
        return YES if any(map(test, subject.values(path))) else NO

    return every if strict else some


def _path_test(pattern: PathPattern, path: Path, strict: bool, known: frozenset[str]) -> Test:
    def every(subject: Subject, command: Command | None) -> int:
        found = subject.places(path)
        if not path:  # the parameters that hold paths, if it has such
            named = [place for name in subject.arguments if name in known for place in subject.places((name,))]
            found = named or found
        return YES if found and all(map(pattern.allows, found)) else NO

    def some(subject: Subject, command: Command | None) -> int:
        found = subject.places(path)
        if any(map(pattern.touches, found)):
            return YES
        return NO if all(place.readings for place in found) else MAYBE

    return every if strict else some
