"""The rules of permissions: one rule compared with one call, strictly to allow it and widely to refuse it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from windlass.matching import glob_test, name_test, parse_rule, values

from .command_patterns import CommandPattern
from .commands import Command
from .globs import needle
from .paths import PathPattern, Place, place_of
from .rule_index import CommandIndex

Kind: TypeAlias = Literal["allow", "ask", "deny"]
KINDS: tuple[Kind, ...] = ("allow", "ask", "deny")
"""From the mildest to the strictest."""

NO, MAYBE, YES = 0, 1, 2
_FEW = 16
"""So many rules are compared one by one."""
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

    def haystack(self, paths: Iterable[Path]) -> str:
        """All values as one text; those at some paths also as the paths that they lead to."""
        places = [place for path in paths for place in self.places(path)]
        texts = [text for value in self.values(()) for text in _spellings(value)]
        return "\n".join([*texts, *[path for place in places for reading in place.readings for path in reading]])

    def places(self, path: Path) -> list[Place]:
        """The texts at and below a path, as paths."""
        found = self._places.get(path)
        if found is None:
            texts = [value for value in self.values(path) if isinstance(value, str)]
            found = self._places[path] = [place_of(text, self._folder) for text in texts]
        return found


def _spellings(value: Any) -> tuple[str, ...]:
    """The texts that a glob is compared with for a value."""
    return (value,) if isinstance(value, str) else (str(value), str(value).lower().replace("none", "null"))


Match: TypeAlias = Callable[[Subject, "Command | None"], int]


class Test(NamedTuple):
    """How far a call, or one command of it, matches: NO, MAYBE or YES. A call without the `needle` does not match.

    `pattern` is that of a test of commands.
    """

    match: Match
    needle: str = ""
    path: Path | None = None
    pattern: CommandPattern | None = None


class Rule:
    """A rule such as `write(path=src/*)`, and what it does: allow, ask or deny.

    To allow, all values must match, as they are when links are followed and commands are taken apart. To ask or deny,
    it is enough that one of them matches, as it is written or as it may be read.
    """

    __slots__ = ("kind", "parts", "text")

    def __init__(self, kind: Kind, text: str) -> None:
        self.kind: Kind = kind
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
            commands = CommandPattern(glob)
            return Test(_command_test(commands, self.is_strict), commands.literal, pattern=commands)
        if (path and path[-1] in setting.paths) or glob.startswith(("/", "./", "../", "~")):
            places = PathPattern(glob, setting.folder)
            return Test(_path_test(places, path, self.is_strict, setting.paths), places.needle, path)
        number = re.fullmatch(r"[\d.eE+-]*", needle(glob))
        return Test(_value_test(glob_test(glob), path, self.is_strict), "" if number else needle(glob))


class BoundRule(NamedTuple):
    """A rule and its tests for one tool. Without tests it matches every call of the tool."""

    rule: Rule
    tests: tuple[Test, ...]

    def match(self, subject: Subject, command: Command | None) -> int:
        """How far a call, or one command of it, matches."""
        found = YES
        for test in self.tests:
            one = test.match(subject, command)
            if one < found:
                if not one:
                    return NO
                found = one
        return found


class RuleSet:
    """The rules of one kind about one tool. Of many rules, only those are compared whose needle is in the call."""

    __slots__ = ("_index", "_literals", "_needles", "_paths", "rules")

    def __init__(self, rules: Iterable[BoundRule]) -> None:
        self.rules = tuple(rules)
        self._needles = [(_longest(one.tests), one) for one in self.rules]
        self._literals = [(_longest([t for t in one.tests if t.pattern is not None]), one) for one in self.rules]
        self._index: CommandIndex | None = None
        self._paths = {test.path for one in self.rules for test in one.tests if test.path is not None}

    def candidates(self, subject: Subject, command: Command | None, *, parsed: bool) -> Sequence[BoundRule]:
        """The rules that may match a call, or one command of it."""
        if len(self.rules) < _FEW:
            return self.rules
        if not parsed:
            return self.rules
        if command is None:
            haystack = self._haystack(subject)
            return self.rules if haystack is None else [one for needle, one in self._needles if needle in haystack]
        if self.rules[0].rule.is_strict:
            return [one for literal, one in self._literals if literal in command.strict]
        return self._about(command)

    def _about(self, command: Command) -> list[BoundRule]:
        """The rules that refuse a command, or may refuse it."""
        if self._index is None:
            self._index = CommandIndex([one.tests[0].pattern if len(one.tests) == 1 else None for one in self.rules])
        return [self.rules[at] for at in self._index.find(command)]

    def _haystack(self, subject: Subject) -> str | None:
        places = [place for path in self._paths for place in subject.places(path)]
        return subject.haystack(self._paths) if all(place.readings for place in places) else None


def _longest(tests: Iterable[Test]) -> str:
    """The longest of the needles."""
    return max([test.needle for test in tests], key=len, default="")


def _command_test(pattern: CommandPattern, strict: bool) -> Match:
    if strict:
        return lambda subject, command: YES if command is not None and pattern.allows(command) else NO
    return lambda subject, command: MAYBE if command is None else pattern.touches(command)


def _value_test(test: Callable[[Any], bool], path: Path, strict: bool) -> Match:
    def every(subject: Subject, command: Command | None) -> int:
        found = subject.texts(path)
        return YES if found and all(map(test, found)) else NO

    def some(subject: Subject, command: Command | None) -> int:
        return YES if any(map(test, subject.values(path))) else NO

    return every if strict else some


def _path_test(pattern: PathPattern, path: Path, strict: bool, known: frozenset[str]) -> Match:
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
