"""Which hooks are about an event: matchers such as `Edit|Write`, and conditions such as `Bash(git push *)`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from windlass.capabilities.commands import commands_of
from windlass.capabilities.shell_parser import Unparsable
from windlass.tools.searching import GlobError, glob_test

from .protocol import FORMER_TOOLS

Test: TypeAlias = Callable[[str], bool]
MAX_SUBJECT = 500
"""Longer names are cut before a regular expression sees them: models may invent any name."""


_FORMER = {name: [old for old, new in FORMER_TOOLS.items() if new == name] for name in FORMER_TOOLS.values()}


class MatcherError(ValueError):
    """A matcher is not a valid regular expression."""


# ---------------------------------------------------------------- matchers


@lru_cache(maxsize=2048)
def compile_matcher(matcher: str | None, event: str = "") -> Test:
    """A test of the value that an event is matched by. Raises `MatcherError`."""
    if matcher is None or matcher in ("", "*"):
        return lambda value: True
    if (names := plain_names(matcher, event)) is not None:
        return names.__contains__
    try:
        with warnings.catch_warnings(action="ignore"):
            regex = re.compile(_from_javascript(matcher))
    except (re.error, OverflowError, RecursionError) as error:
        raise MatcherError(f"matcher {matcher!r} is not a valid regular expression: {error}") from None
    return lambda value: any(regex.search(name[:MAX_SUBJECT]) for name in (value, *_FORMER.get(value, ())))


def plain_names(matcher: str, event: str = "") -> frozenset[str] | None:
    """The names that a matcher lists, with the new ones of former names; None if it is a regular expression."""
    plain, parts = (r"[A-Za-z0-9_|]+", r"\|") if event in ("FileChanged", "StopFailure") else (r"[\w\- ,|]+", r"[|,]")
    if not re.fullmatch(plain, matcher, re.ASCII):
        return None
    names = {name.strip() for name in re.split(parts, matcher)} - {""}
    return frozenset(names | {FORMER_TOOLS[name] for name in names if name in FORMER_TOOLS})


def matches(matcher: str | None, event: str, value: str) -> bool:
    """Whether a matcher is about a value. One that is not a valid expression matches nothing."""
    try:
        return compile_matcher(matcher, event)(value)
    except MatcherError:
        return False


def _from_javascript(pattern: str) -> str:
    """The same regular expression for Python. Both search, and neither anchors."""
    found = re.sub(r"\(\?<([A-Za-z_]\w*)>", r"(?P<\1>", pattern)
    found = re.sub(r"\\k<(\w+)>", r"(?P=\1)", found)
    found = found.replace("[^]", r"[\s\S]").replace("[]", r"(?!)")
    return re.sub(r"((?:^|[^\\])(?:\\\\)*)\$(?=$|[|)])", r"\1\\Z", f"(?a:{found})")


# ---------------------------------------------------------------- conditions


class Rule(Struct, frozen=True):
    """A condition: a tool, and what its call must be about; None is any call."""

    tool: str
    about: str | None = None


class Subject(Struct, frozen=True):
    """A call as conditions see it: names and fields as Claude Code has them. `also` is another name for the tool."""

    tool: str
    input: Mapping[str, Any]
    cwd: str
    project: str
    also: str = ""


def parse_rule(text: str) -> Rule | None:
    """A permission rule such as `Bash(git *)`; None if it is none."""
    found = re.fullmatch(r"\s*([A-Za-z_][\w.-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if found is None:
        return None
    name = FORMER_TOOLS.get(found[1], found[1])
    return Rule(name, None if found[2] in (None, "", "*") else found[2])


_FILES = {"Read": "file_path", "Edit": "file_path", "Write": "file_path", "MultiEdit": "file_path"} | {
    "NotebookEdit": "notebook_path",
    "Glob": "path",
    "Grep": "path",
}


def condition_holds(text: str, subject: Subject) -> bool:
    """Whether a call is what the condition of a hook is about. One that is not a rule never holds."""
    rule = parse_rule(text)
    if rule is None or rule.tool not in (FORMER_TOOLS.get(subject.tool, subject.tool), subject.also):
        return False
    if rule.about is None:
        return True
    if rule.tool in ("Bash", "PowerShell"):
        return _command_holds(rule.about, subject.input.get("command"))
    if rule.tool in _FILES:
        return _path_holds(rule.about, subject.input.get(_FILES[rule.tool]), subject)
    if rule.tool == "WebFetch":
        return _domain_holds(rule.about, subject.input.get("url"))
    if rule.tool == "Agent":
        return rule.about == subject.input.get("subagent_type")
    return False


def _command_holds(pattern: str, script: Any) -> bool:
    """Whether a command of a script matches. What cannot be known for sure counts as a match: the hook runs."""
    if not isinstance(script, str):
        return True
    glob = f"{pattern[:-2]} *" if pattern.endswith(":*") else pattern
    says_more = len(glob.split()) > 1 and glob.split()[1:] != ["*"]
    if says_more and re.search(r"\$\(|`|\$\{?\w", script):
        return True
    try:
        commands = commands_of(script)
    except Unparsable:
        return True
    return any(_glob_matches(glob, " ".join(command.words)) for command in commands)


def _glob_matches(glob: str, command: str) -> bool:
    """Whether a glob of `*` matches, in one pass. A final ` *` also matches the command without arguments."""
    if glob.endswith(" *") and _glob_matches(glob[:-2], command):
        return True
    first, *rest = glob.split("*")
    if not rest:
        return command == first
    *middle, last = rest
    if not command.startswith(first) or not command.endswith(last) or len(command) < len(first) + len(last):
        return False
    at, end = len(first), len(command) - len(last)
    for piece in middle:
        found = command.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _path_holds(pattern: str, path: Any, subject: Subject) -> bool:
    """Whether a path matches a pattern in the style of gitignore."""
    if not isinstance(path, str) or not path:
        path = subject.cwd
    whole = os.path.normpath(os.path.join(subject.cwd, path))
    if pattern.startswith("//"):
        base, glob = "/", pattern[2:]
    elif pattern.startswith("~/"):
        base, glob = os.path.expanduser("~"), pattern[2:]
    elif pattern.startswith("/"):
        base, glob = subject.project, pattern[1:]
    else:
        base, glob = subject.cwd, pattern.removeprefix("./")
    try:
        relative = PurePath(whole).relative_to(os.path.normpath(base)).as_posix()
        return glob_test(f"{glob}**" if glob.endswith("/") else glob)(relative)
    except (ValueError, GlobError):
        return False


def _domain_holds(pattern: str, url: Any) -> bool:
    if not pattern.startswith("domain:") or not isinstance(url, str):
        return False
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return True
    domain = pattern.removeprefix("domain:").lower()
    return host == domain or (domain.startswith("*.") and host.endswith(domain[1:]))
