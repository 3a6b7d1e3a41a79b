"""The simple commands in the syntax tree of a shell script; what the shell has yet to expand is marked as unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .globs import UNKNOWN
from .shell_evaluation import evaluates, variables_set
from .shell_parser import Unparsable, syntax_tree

INNER = "\ufdd1"
"""A space inside a word."""
LINE = "\ufdd5"
"""A line break inside a word."""
FILES = "\ufdd2"
"""A wildcard for file names in a command: what it stands for has no spaces and does not lead upwards."""
UPWARDS = "\ufdd3"
"""The `..` of a path in a command."""

QUOTED = "\ufdd4"
"""Stands before an unknown part in quotes, which stays in its word."""

_NUMBERS = ("?", "#", "$", "!")
"""Variables that hold a number, which is one word also without quotes."""
_SILENT = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})


class Simple(NamedTuple):
    """A simple command of a script: assignments, words, and the text it reads from its standard input, if known.

    Parts of words that the shell has yet to expand are `UNKNOWN`. `piped` says that it reads what others write.
    """

    words: tuple[str, ...]
    assignments: tuple[str, ...] = ()
    script: str | None = None
    piped: bool = False


def parse_script(script: str) -> list[Simple]:
    """The simple commands of a script, at any depth: in pipes, lists, substitutions, functions, here-documents."""
    tree = syntax_tree(script)
    try:
        return list(_simple_commands(tree))
    except (AttributeError, KeyError, TypeError) as error:
        raise Unparsable(f"its syntax is not known: {error!r}") from error


def _simple_commands(tree: Any) -> Iterator[Simple]:
    """Every command in a syntax tree. A statement that only computes or declares is a command, too."""
    pending: list[tuple[Any, bool]] = [(tree, False)]
    while pending:
        node, piped = pending.pop()
        if isinstance(node, list):
            pending += [(item, piped) for item in reversed(node)]
        elif isinstance(node, dict):
            kind = node.get("Type")
            if kind == "ExtGlob":
                raise Unparsable("it has extended patterns")
            if "Cmd" in node or "Redirs" in node:
                yield from _statement(node, piped)
            elif kind == "CStyleLoop":
                yield Simple(("((", UNKNOWN))
            if evaluates(node):
                yield Simple((UNKNOWN,))
            yield from [Simple((), (f"{name}={UNKNOWN}",)) for name in variables_set(node)]
            reads_pipe = kind == "BinaryCmd" and node.get("Op") in ("|", "|&")
            inner = [(value, piped or (reads_pipe and key == "Y")) for key, value in node.items()]
            pending += reversed(inner)


def _statement(statement: dict[str, Any], piped: bool) -> Iterator[Simple]:
    command, redirects = statement.get("Cmd") or {}, statement.get("Redirs") or []
    for redirect in redirects:
        yield from _redirect(redirect)
    match command.get("Type"):
        case "CallExpr":
            words = tuple([_word(word) for word in command.get("Args") or []])
            assignments = tuple([_assignment(one) for one in command.get("Assigns") or []])
            yield Simple(words, assignments, _standard_input(redirects), piped or bool(redirects))
        case "DeclClause":
            assigned = [_assignment(one) for one in command.get("Args") or []]
            yield Simple((command["Variant"]["Value"], *assigned))
        case "FuncDecl":
            yield Simple(("function", command["Name"]["Value"]))
        case "LetClause" | "ArithmCmd" | "TestClause" as kind:
            yield Simple(({"LetClause": "let", "ArithmCmd": "((", "TestClause": "[["}[kind], UNKNOWN))
        case _:
            pass


def _redirect(redirect: dict[str, Any]) -> Iterator[Simple]:
    """A file that is written or read, as a command of its own: `> path` or `< path`."""
    operator, target = redirect["Op"], _word(redirect["Word"])
    if operator.startswith("<<") or target in _SILENT:
        return
    if operator in (">&", "<&") and re.fullmatch(r"\d*-?", target):
        return
    yield Simple(("<" if operator in ("<", "<&") else ">", target))


def _standard_input(redirects: list[dict[str, Any]]) -> str | None:
    """The text of a here-document or here-string."""
    for redirect in reversed(redirects):
        if redirect["Op"] == "<<<":
            return _spaced(_word(redirect["Word"]))
        if redirect["Op"].startswith("<<"):
            return _spaced(
                "".join([_part(part, quoted=True) for part in (redirect.get("Hdoc") or {}).get("Parts", [])])
            )
    return None


def as_written(text: str) -> str:
    """A word or several with their spaces, line breaks and `..` as a script has them."""
    return text.replace(INNER, " ").replace(LINE, "\n").replace(UPWARDS, "..")


def _spaced(word: str) -> str | None:
    """A word as the shell passes it on, if all of it is known."""
    text = as_written(word)
    return None if UNKNOWN in text or FILES in text else text


def _assignment(assign: dict[str, Any]) -> str:
    if assign.get("Name") is None:
        return _word(assign["Value"]) if assign.get("Value") else UNKNOWN
    name = assign["Name"]["Value"]
    if assign.get("Naked"):
        return str(name)
    if assign.get("Array") or assign.get("Index"):
        return f"{name}={UNKNOWN}"
    return f"{name}={_word(assign['Value']) if assign.get('Value') else ''}"


def _word(word: dict[str, Any]) -> str:
    text = "".join([_part(part) for part in word.get("Parts") or []])
    text = re.sub(r"\s", INNER, re.sub(r"[\n\r]", LINE, text))
    return re.sub(r"(?:(?<=/)|(?<==)|^)\.\.(?=/|$)", UPWARDS, text)


def _part(part: dict[str, Any], *, quoted: bool = False) -> str:
    match part["Type"]:
        case "Lit" if quoted:
            return re.sub(r"\\([$`\"\\])|\\\n", lambda match: match[1] or "", part.get("Value", ""))
        case "Lit":
            return _unquoted(part.get("Value", ""))
        case "SglQuoted" if not part.get("Dollar"):
            return str(part.get("Value", ""))
        case "DblQuoted" if not part.get("Dollar"):
            return "".join([_part(inner, quoted=True) for inner in part.get("Parts") or []])
        case "ParamExp" if quoted and ((part.get("Param") or {}).get("Value") == "@" or part.get("Index")):
            return UNKNOWN  # "$@" and "${a[@]}" are several words
        case "ParamExp" if part.get("Short") and part["Param"]["Value"] in _NUMBERS:
            return f"{QUOTED}{UNKNOWN}"
        case _:
            return f"{QUOTED}{UNKNOWN}" if quoted else UNKNOWN


def _unquoted(text: str) -> str:
    """Text outside of quotes: backslashes are removed, and what the shell expands is marked."""
    if re.search(r"(?<!\\)\{[^}]*(?:,|\.\.)", text):
        return UNKNOWN

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return "" if match[1] == "\n" else str(match[1])
        before = text[: match.start()]
        return UNKNOWN if re.search(r"(?:^|/)\.+$", before) else FILES

    return re.sub(r"\\(.|\n)|[*?]|\[(?=[^\]]+\])", replace, text)
