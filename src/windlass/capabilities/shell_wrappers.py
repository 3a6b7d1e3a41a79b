"""Commands that run other commands: `sudo`, `env`, `xargs`, `find -exec`, `bash -c`, `eval` and their like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .globs import UNKNOWN
from .shell_programs import (
    AWK,
    AWK_CODE,
    BUILTINS,
    CODE,
    EDITORS,
    EXECS,
    INLINE,
    OUTPUTS,
    SHELLS,
    TELLING,
    TELLING_OPTIONS,
    WRAPPERS,
    Wrapper,
)
from .shell_syntax import FILES, INNER, UPWARDS, Simple

HIDDEN = Simple((UNKNOWN,))
"""A command that nobody can see."""


class Inner(NamedTuple):
    """What a command runs: whether it counts itself, the commands and the scripts that it runs."""

    shown: bool = True
    commands: Sequence[Simple] = ()
    scripts: Sequence[str] = ()


def inner_commands(simple: Simple) -> Inner:
    """What a command runs besides itself."""
    if not simple.words:
        return Inner()
    found = _inner(simple)
    return found._replace(commands=(*found.commands, HIDDEN)) if _told_to_run(simple) else found


def _told_to_run(simple: Simple) -> bool:
    """Whether an option makes a program, which is not made for that, run other code."""
    program, rest = _name(simple.words[0]), [word.replace(INNER, " ") for word in simple.words[1:]]
    telling = AWK_CODE if AWK.fullmatch(program) else TELLING_OPTIONS.get(program)
    return telling is not None and any(telling.fullmatch(word) for word in rest)


def _inner(simple: Simple) -> Inner:
    program, words = _name(simple.words[0]), simple.words
    if program in SHELLS:
        return _shell(simple)
    if (special := _SPECIAL.get(program)) is not None:
        return special(simple)
    wrapper = WRAPPERS.get(program)
    if wrapper is None:
        return Inner()
    if program == "command" and any(re.fullmatch(r"-[pvV]*[vV][pvV]*", word) for word in words[1:2]):
        return Inner()
    return _wrapped(simple, wrapper)


def runs_hidden_code(simple: Simple) -> bool:
    """Whether a command may run code that its words do not show: of another language, of a variable, of an option."""
    if any(TELLING.fullmatch(assigned.partition("=")[0].rstrip("+")) for assigned in simple.assignments):
        return True
    if not simple.words:
        return False
    program, rest = _name(simple.words[0]), simple.words[1:]
    if program in ("export", "declare", "typeset", "readonly", "local"):
        return any(TELLING.fullmatch(word.partition("=")[0]) for word in rest)
    if program in EDITORS or program in _SOURCES:
        return True
    return INLINE.fullmatch(program) is not None and (simple.piped or any(CODE.fullmatch(word) for word in rest))


# ---------------------------------------------------------------- wrappers


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _known(word: str) -> bool:
    return UNKNOWN not in word and FILES not in word


def _text(words: Iterable[str]) -> str | None:
    """Words as a shell reads them again; None if some of them are unknown."""
    text = " ".join(words).replace(INNER, " ").replace(UPWARDS, "..")
    return text if _known(text) else None


def _scripts(text: str | None, *, shown: bool = True) -> Inner:
    return Inner(shown, (HIDDEN,)) if text is None else Inner(shown, scripts=(text,))


def _after_options(words: Sequence[str], values: str) -> int:
    """Where the words after the options begin."""
    taking, at = values.split(), 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return at + 1
        at += 2 if words[at] in taking else 1
    return at


def _wrapped(simple: Simple, wrapper: Wrapper) -> Inner:
    words = simple.words
    split = (
        [word for word in words[1:] if re.match(r"-[a-z]*S|--split-string", word)] if _name(words[0]) == "env" else []
    )
    if split:  # env -S 'a command'
        at = words.index(split[0])
        attached = re.sub(r"^(-[a-z]*S|--split-string)=?", "", split[0])
        return _scripts(_text([words[0], *([attached] if attached else []), *words[at + 1 :]]))
    at = _after_options(words, wrapper.values) + wrapper.skip
    assigned: list[str] = []
    while at < len(words) and re.match(r"\w+=", words[at]):
        assigned.append(words[at])
        at += 1
    rest = words[at:]
    if not rest:
        return Inner()
    if wrapper.joined:
        return _scripts(_text(rest))
    if wrapper.more:
        placed = [UNKNOWN if "{}" in word or "%" in word else word for word in rest]
        return Inner(True, [Simple((*placed, UNKNOWN), piped=True)])
    inner = Simple(rest, (*simple.assignments, *assigned), simple.script, simple.piped)
    options = [word for word in words[1 : _after_options(words, wrapper.values)] if word.startswith("-")]
    clear = wrapper.clear is not None and all(_option(word) in wrapper.clear.split() for word in options)
    return Inner(not clear, [inner])


def _option(word: str) -> str:
    """An option without the value that is attached to it: `-n5`, `--signal=9`."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _shell(simple: Simple) -> Inner:
    """A shell runs the text after `-c`, its standard input, or a file."""
    words, at = simple.words, 1
    reads_text = False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        if words[at] == "--":
            at += 1
            break
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", words[at]) or words[at] == "--command":
            reads_text = True
        at += 2 if words[at] in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
    rest = words[at:]
    if reads_text:
        return _scripts(_text(rest[:1])) if rest else Inner(True, (HIDDEN,))
    if rest and _known(rest[0]) and not rest[0].startswith(("/dev/", "/proc/", "-")):
        return Inner()  # a file: what is in it, the outer rule answers for
    return _scripts(simple.script) if rest or simple.piped else Inner()


def _find(simple: Simple) -> Inner:
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


def _fd(simple: Simple) -> Inner:
    """`fd` runs what follows `-x` or `-X`."""
    for at, word in enumerate(simple.words):
        if word in ("-x", "-X", "--exec", "--exec-batch"):
            run = [UNKNOWN if "{" in inner else inner for inner in simple.words[at + 1 :]]
            return Inner(True, [Simple((*run, UNKNOWN))])
    return Inner()


def _output(simple: Simple) -> Inner:
    """Options that write files, as redirections: `sort -o file`, `git diff --output=file`, `sed -i`."""
    options = OUTPUTS[_name(simple.words[0])]
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


def _subscripts(simple: Simple) -> Inner:
    """Builtins that take the name of a variable run what stands in its subscript: `printf -v 'a[$(date)]' x`."""
    hides = any(re.search(r"\$\(|`|\$\{", word) for word in simple.words[1:])
    return Inner(True, [HIDDEN] if hides else ())


def _eval(simple: Simple) -> Inner:
    return _scripts(_text(simple.words[1:])) if simple.words[1:] else Inner()


def _trap(simple: Simple) -> Inner:
    handlers = [word for word in simple.words[1:2] if not word.startswith("-")]
    return _scripts(_text(handlers)) if handlers else Inner()


def _alias(simple: Simple) -> Inner:
    values = [word.partition("=")[2] for word in simple.words[1:] if "=" in word]
    texts = [_text([value]) for value in values]
    return Inner(True, [HIDDEN] if None in texts else (), [text for text in texts if text])


def _with_text_option(simple: Simple) -> Inner:
    """`su -c 'a command'` and `script -c 'a command'`."""
    words = simple.words
    for at, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c|--command", word):
            return _scripts(_text(words[at + 1 : at + 2]))
        if word.startswith("--command="):
            return _scripts(_text([word.partition("=")[2]]))
    return _scripts(simple.script) if simple.piped else Inner()


def _source(simple: Simple) -> Inner:
    """`source` runs a file: what is in it, the outer rule answers for, unless it is not a file."""
    hides = any(not _known(word) or word.startswith(("/dev/", "/proc/")) for word in simple.words[1:2])
    return Inner(True, [HIDDEN] if hides else ())


_SOURCES = frozenset({".", "source"})
_SPECIAL: dict[str, Callable[[Simple], Inner]] = {
    **dict.fromkeys(OUTPUTS, _output),
    **dict.fromkeys(BUILTINS, _subscripts),
    ".": _source,
    "alias": _alias,
    "eval": _eval,
    "fd": _fd,
    "fdfind": _fd,
    "find": _find,
    "gfind": _find,
    "script": _with_text_option,
    "source": _source,
    "su": _with_text_option,
    "trap": _trap,
}
