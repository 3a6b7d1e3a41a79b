"""Scripts of `sed` and `awk` in the words of a command: whether they run code, or read or write other files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .globs import UNKNOWN
from .shell_syntax import FILES

_SED_OPTIONS = re.compile(r"-[nEruszi]*(?P<short>[efl])(?P<value>.*)|--(?P<long>e|f|l)[a-z-]*(?:=(?P<given>.*))?", re.S)
_SED_ADDRESS = re.compile(
    r"(?:[\d~+,$!\s]|/(?:\\.|[^/\\\n])*/[IM]*|\\(?P<d>[^\\\n])(?:\\.|(?!(?P=d))[^\\\n])*(?P=d)[IM]*)*"
)
_SED_REPLACES = re.compile(
    r"[sy](?P<d>[^\\\n])(?:\\.|(?!(?P=d))[^\\])*(?P=d)(?:\\.|(?!(?P=d))[^\\])*(?P=d)(?P<flags>[gpiImMew\d]*)", re.S
)
_SED_REST = re.compile(
    r"[aic][^\n]*(?:(?<=\\)\n[^\n]*)*|[:btT][^;\n}]*|[=dDgGhHnNpPxzF{}]|[lLqQ]\s*\d*|#[^\n]*|v[^;\n]*"
)

_AWK_CODE = re.compile(r"system\s*\(|getline|@|\|&|[|>]\s*[\"(/]")
_AWK_PRINTS = re.compile(r"\bprintf?\b")
_AWK_OPTIONS = re.compile(r"(?s)-[fiEl].*|--(file|include|exec|load).*")


def sed_reaches_out(rest: Sequence[str]) -> bool:
    """Whether a script of `sed` runs a command, or reads or writes a file, or may do so."""
    return any(_sed_script(script) for script in _sed_scripts(rest))


def _sed_scripts(rest: Sequence[str]) -> Iterator[str]:
    """The scripts among the words: the values of `-e`, or the first word that is not an option. A file counts as
    unknown."""
    plain, named, at = [], False, 0
    while at < len(rest):
        word, found = rest[at], _SED_OPTIONS.fullmatch(rest[at])
        at += 1
        if found is None:
            plain += [] if word.startswith("-") and len(word) > 1 else [word]
            continue
        kind, value = found["short"] or found["long"], found["value"] or found["given"]
        if not value and at < len(rest):
            value, at = rest[at], at + 1
        named = named or kind != "l"
        if kind != "l":
            yield UNKNOWN if kind == "f" else value or UNKNOWN
    if not named:
        yield from plain[:1]


def _sed_script(script: str) -> bool:
    """Whether a script has one of the commands `e`, `r`, `R`, `w`, `W`, or the flags `e` and `w` of `s`."""
    if UNKNOWN in script or FILES in script:
        return True
    at = 0
    while at < len(script):
        if script[at] in " \t\n;":
            at += 1
            continue
        address = _SED_ADDRESS.match(script, at)
        at = address.end() if address is not None else at
        if at == len(script):
            return False
        replaces = _SED_REPLACES.match(script, at)
        if replaces is not None:
            if script[at] == "s" and set(replaces["flags"]) & {"e", "w"}:
                return True
            at = replaces.end()
        elif (command := _SED_REST.match(script, at)) is not None:
            at = command.end()
        else:  # one that reaches out, or one that is not known
            return True
    return False


def awk_reaches_out(rest: Sequence[str]) -> bool:
    """Whether a program of `awk` runs a command, or reads or writes a file, or is not in the words."""
    return any(_AWK_OPTIONS.fullmatch(word) or _AWK_CODE.search(word) or _prints_elsewhere(word) for word in rest)


def _prints_elsewhere(program: str) -> bool:
    """Whether a statement may print into a file or a command: `print x > f`, `print x | c`."""
    for statement in re.split(r"[;}\n]", program):
        if (found := _AWK_PRINTS.search(statement)) and re.search(r"[|>]", statement[found.end() :]):
            return True
    return False
