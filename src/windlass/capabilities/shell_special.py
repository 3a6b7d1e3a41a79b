"""Commands that run others in their own way: shells, `find`, `eval`, `trap`, `alias`, `su -c`, options that write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from .globs import UNKNOWN
from .shell_programs import DECLARING, EXECS, FILLING, OUTPUTS, TELLING
from .shell_syntax import FILES, INNER, LINE, QUOTED, Simple, as_written

HIDDEN = Simple((UNKNOWN,))
"""A command that nobody can see."""


class Inner(NamedTuple):
    """What a command runs: whether it counts itself, the commands and the scripts that it runs."""

    shown: bool = True
    commands: Sequence[Simple] = ()
    scripts: Sequence[str] = ()


def program_name(word: str) -> str:
    """The name of a program, without its folder."""
    return word.rpartition("/")[2]


def is_known(word: str) -> bool:
    """Whether the shell expands no part of a word."""
    return UNKNOWN not in word and FILES not in word


def joined_text(words: Iterable[str]) -> str | None:
    """Words as a shell reads them again; None if some of them are unknown."""
    text = as_written(" ".join(words))
    return text if is_known(text) else None


def script_inside(text: str | None) -> Inner:
    """A script that a command runs; hidden if it is not known."""
    return Inner(True, (HIDDEN,)) if text is None else Inner(True, scripts=(text,))


def inside_shell(simple: Simple) -> Inner:
    """A shell runs the text after `-c`, its standard input, or a file."""
    words, at = simple.words, 1
    reads_text = False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        if words[at] == "--":
            at += 1
            break
        if not is_known(words[at]) or (INNER in words[at] or LINE in words[at]):
            return Inner(True, (HIDDEN,))
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", words[at]) or words[at] == "--command":
            reads_text = True
        at += 2 if words[at] in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
    rest = words[at:]
    if reads_text:
        return script_inside(joined_text(rest[:1])) if rest else Inner(True, (HIDDEN,))
    if rest and is_known(rest[0]) and not rest[0].startswith(("/dev/", "/proc/", "-")):
        return Inner()  # a file: what is in it, the outer rule answers for
    return script_inside(simple.script) if rest or simple.piped else Inner()


def inside_find(simple: Simple) -> Inner:
    """`find` runs what follows `-exec`, up to `;` or `+`."""
    found: list[Simple] = []
    words = simple.words
    for at, word in enumerate(words):
        if word in EXECS:
            end = next((i for i in range(at + 1, len(words)) if words[i] in (";", "+")), len(words))
            run = [UNKNOWN if "{}" in inner else inner for inner in words[at + 1 : end]]
            found.append(Simple(tuple(run) if run else (UNKNOWN,)))
        elif word == "-delete":
            found.append(Simple(("rm", UNKNOWN)))
        elif re.fullmatch(r"-f(print0?|printf|ls)", word):
            found.append(Simple((">", *words[at + 1 : at + 2])))
    return Inner(True, found)


def inside_fd(simple: Simple) -> Inner:
    """`fd` runs what follows `-x` or `-X`."""
    for at, word in enumerate(simple.words):
        if word in ("-x", "-X", "--exec", "--exec-batch"):
            run = [UNKNOWN if "{" in inner else inner for inner in simple.words[at + 1 :]]
            return Inner(True, [Simple((*run, UNKNOWN))])
    return Inner()


def _output(simple: Simple) -> Inner:
    """Options that write files, as redirections: `sort -o file`, `git diff --output=file`, `sed -i`."""
    options = OUTPUTS[program_name(simple.words[0])]
    found: list[Simple] = []
    for at, word in enumerate(simple.words[1:], 1):
        name, _, value = word.partition("=")
        if name in options.split() or any(len(name) > 3 and one.startswith(name) for one in options.split()):
            found.append(Simple((">", value or "".join(simple.words[at + 1 : at + 2]) or UNKNOWN)))
        elif re.fullmatch(r"-[a-zA-Z]+.*", word) and any(
            short[1] in word for short in options.split() if len(short) == 2
        ):
            found.append(Simple((">", UNKNOWN)))
    return Inner(True, found)


def _with_variables(simple: Simple) -> Inner:
    """Builtins that take the name of a variable run what stands in its subscript: `printf -v 'a[$(date)]' x`.

    Some set the variable; one that other programs obey, such as `PATH`, makes them run other code.
    """
    program, rest = program_name(simple.words[0]), simple.words[1:]
    hides = any(re.search(r"\$\(|`|\$\{", word) for word in rest) or _NAMING[program](rest)
    return Inner(True, [HIDDEN] if hides else ())


def _declares(rest: Sequence[str]) -> bool:
    """Whether a declaration may be about any variable, or about one whose value is evaluated (`-i`, `-n`)."""
    return any(not is_known(word.partition("=")[0]) or re.match(r"[-+]\w*[in]", word) for word in rest)


def _prints(rest: Sequence[str]) -> bool:
    return bool(rest) and (rest[0].startswith("-v") or re.match(_OPEN_START, rest[0]) is not None)


def _compares(rest: Sequence[str]) -> bool:
    """Whether `test` may look up a variable, whose name is evaluated: `-v`, or an unknown word before another one."""
    if any(re.search(f"(?<!{QUOTED}){UNKNOWN}|^{FILES}", word) for word in rest):
        return True
    unknown = [not is_known(word) for word in rest]
    looks = "-v" in rest or "-R" in rest
    return (looks and (any(unknown) or any("[" in word for word in rest))) or any(map(all, pairwise(unknown)))


def _fills(rest: Sequence[str]) -> bool:
    """Whether `read` and its like may set a variable that other programs obey, or run code (`mapfile -C`)."""
    return any(
        not is_known(word) or "[" in word or re.match(r"-[A-Za-z]*C", word) or any(map(TELLING.fullmatch, _tails(word)))
        for word in rest
    )


def _tails(word: str) -> list[str]:
    """A word, or what may be the value that is attached to an option."""
    return [word[at:] for at in range(1, len(word))] if word.startswith("-") else [word]


_OPEN_START = f"{QUOTED}?[{UNKNOWN}{FILES}]"
_NAMING: dict[str, Callable[[Sequence[str]], bool]] = {
    **dict.fromkeys(DECLARING, _declares),
    **dict.fromkeys(FILLING, _fills),
    **dict.fromkeys(("[", "test"), _compares),
    "let": bool,
    "printf": _prints,
}


def _eval(simple: Simple) -> Inner:
    return script_inside(joined_text(simple.words[1:])) if simple.words[1:] else Inner()


def _trap(simple: Simple) -> Inner:
    handlers = [word for word in simple.words[1:2] if not word.startswith("-")]
    return script_inside(joined_text(handlers)) if handlers else Inner()


def _alias(simple: Simple) -> Inner:
    values = [word.partition("=")[2] for word in simple.words[1:] if "=" in word]
    texts = [joined_text([value]) for value in values]
    return Inner(True, [HIDDEN] if None in texts else (), [text for text in texts if text])


def _with_text_option(simple: Simple) -> Inner:
    """`su -c 'a command'` and `script -c 'a command'`."""
    words = simple.words
    for at, word in enumerate(words[1:], 1):
        if found := re.fullmatch(r"-[a-zA-Z]*?c(.*)|--(?:session-)?c[a-z]*(?:=(.*))?", word):
            attached = found[1] or found[2]
            return script_inside(joined_text([attached] if attached else words[at + 1 : at + 2]))
    return script_inside(simple.script) if simple.piped else Inner()


def _source(simple: Simple) -> Inner:
    """`source` runs a file: what is in it, the outer rule answers for, unless it is not a file."""
    hides = any(not is_known(word) or word.startswith(("/dev/", "/proc/")) for word in simple.words[1:2])
    return Inner(True, [HIDDEN] if hides else ())


SOURCES = frozenset({".", "source"})
SPECIAL: dict[str, Callable[[Simple], Inner]] = {
    **dict.fromkeys(OUTPUTS, _output),
    **dict.fromkeys(_NAMING, _with_variables),
    ".": _source,
    "alias": _alias,
    "eval": _eval,
    "fd": inside_fd,
    "fdfind": inside_fd,
    "find": inside_find,
    "gfind": inside_find,
    "script": _with_text_option,
    "source": _source,
    "su": _with_text_option,
    "trap": _trap,
}
