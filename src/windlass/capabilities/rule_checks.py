"""What is odd about a set of permission rules: those that never count, and those that match nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.matching import mismatches

from .command_patterns import pattern_problem
from .globs import covers, literal_prefix, needle
from .rules import KINDS, Path, Rule, Setting

if TYPE_CHECKING:
    from windlass import Tool


def rule_problems(rules: Sequence[Rule], setting: Setting) -> list[str]:
    """Rules that never count because another one is stricter or wider, and rules that no call can match."""
    return [*_unmatchable(rules, setting), *_boundless(rules, setting), *_shadowed(rules, setting)]


def tool_problems(rules: Iterable[Rule], tools: Mapping[str, Tool[..., Any]], setting: Setting) -> list[str]:
    """Rules that match none of these tools, and shells whose commands cannot be found."""
    parameters = {name: tool.spec.schema["properties"] for name, tool in tools.items()}
    unmatched = [f"{rule!r}: {problem.why}" for rule in rules for problem in mismatches(rule.text, parameters)[0]]
    return unmatched + [
        f"tool {name!r} has no parameter {command!r} with a shell command: name the right one in shells"
        for name, command in setting.shells.items()
        if name in parameters and command not in parameters[name]
    ]


def _unmatchable(rules: Iterable[Rule], setting: Setting) -> Iterator[str]:
    for rule in rules:
        command = setting.shells.get(rule.parts.tool)
        for path, glob in rule.parts.tests:
            if command is not None and path in ((), (command,)) and (problem := pattern_problem(glob)):
                yield f"{rule!r} never matches: {problem}"


def _boundless(rules: Iterable[Rule], setting: Setting) -> Iterator[str]:
    """Patterns that look as if they had a limit, but match every command: `:*`."""
    for rule in rules:
        tool, tests = rule.parts
        command = setting.shells.get(tool)
        for path, glob in tests:
            if command is not None and path in ((), (command,)) and glob.strip("*") and not glob.strip("*: "):
                yield f"{rule!r} matches every command: name the program before {glob!r}, or write {tool!r} instead"


def _shadowed(rules: Sequence[Rule], setting: Setting) -> Iterator[str]:
    """Rules that others cover. Only rules that begin alike are compared: there may be thousands."""
    by_start: dict[str, list[tuple[int, str, Rule]]] = {}
    for at, rule in enumerate(rules):
        part = needle(rule.parts.tests[0][1].rstrip("* ") if rule.parts.tests else rule.parts.tool)
        by_start.setdefault(_start(rule, setting), []).append((at, part, rule))
    for at, rule in enumerate(rules):
        texts = [*_texts(rule, setting)]
        starts, whole = {text[:end] for text in texts for end in range(len(text) + 1)}, "\n".join(texts)
        near = [(place, other) for start in starts for place, part, other in by_start.get(start, ()) if part in whole]
        wider = [(place, other) for place, other in sorted(near, key=_place) if place != at]
        wider = [(place, other) for place, other in wider if _covers(other, rule, setting)]
        stricter = [other for _, other in wider if KINDS.index(other.kind) > KINDS.index(rule.kind)]
        same = [
            other
            for place, other in wider
            if other.kind == rule.kind and (place < at or not _covers(rule, other, setting))
        ]
        if stricter:
            yield f"{rule!r} never counts: {stricter[0]!r} is stricter and matches the same calls"
        elif same:
            yield f"{rule!r} is not needed: {same[0]!r} matches the same calls"


def _place(placed: tuple[int, Rule]) -> int:
    return placed[0]


def _start(rule: Rule, setting: Setting) -> str:
    """The beginning of one of the texts of every rule that this one covers."""
    tool, tests = rule.parts
    start = literal_prefix(tool)
    if start != tool or not tests:
        return start
    path, glob = tests[0]
    return f"{tool}({'.'.join(_path(path, setting.shells.get(tool)))}={literal_prefix(glob).rstrip()}"


def _texts(rule: Rule, setting: Setting) -> Iterator[str]:
    """The tests of a rule as texts, each with its parameter and without."""
    tool, tests = rule.parts
    yield tool
    for path, glob in tests:
        yield f"{tool}({'.'.join(_path(path, setting.shells.get(tool)))}={glob}"
        yield f"{tool}(={glob}"


def _covers(wide: Rule, narrow: Rule, setting: Setting) -> bool:
    """Whether a rule surely matches every call that another one matches."""
    if not covers(wide.parts.tool, narrow.parts.tool):
        return False
    command = setting.shells.get(narrow.parts.tool)
    tests = [(_path(path, command), glob) for path, glob in narrow.parts.tests]
    return all(
        any(_test_covers(wide, _path(path, command), glob, other) for other in tests) for path, glob in wide.parts.tests
    )


def _path(path: Path, command: str | None) -> Path:
    return () if path == (command,) else path


def _test_covers(wide: Rule, path: Path, glob: str, narrow: tuple[Path, str]) -> bool:
    if path != narrow[0] and (path or wide.is_strict):
        return False
    shapes = [glob]
    if glob.endswith(" *"):
        shapes.append(glob[:-2])
    if glob.endswith("/"):
        shapes.append(f"{glob}*")
    return any(covers(shape, narrow[1]) for shape in shapes)
