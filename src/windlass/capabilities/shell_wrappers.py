"""What commands run besides themselves: `sudo`, `env`, `timeout`, `xargs` and their like, and code in their words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .globs import UNKNOWN
from .shell_programs import (
    AWK,
    CODE,
    DECLARING,
    EDITORS,
    GIT_COMMANDS,
    GIT_READING,
    INLINE,
    LOADER,
    OUTPUTS,
    PLAIN,
    SCHEDULERS,
    SHELLS,
    TELLING,
    TELLING_OPTIONS,
    WRAPPERS,
    Wrapper,
)
from .shell_scripts import awk_reaches_out, sed_reaches_out
from .shell_special import (
    HIDDEN,
    SOURCES,
    SPECIAL,
    Inner,
    inside_fd,
    inside_find,
    inside_shell,
    is_known,
    joined_text,
    program_name,
    script_inside,
)
from .shell_syntax import FILES, QUOTED, Simple, as_written

_SED = ("gsed", "sed", "ssed")


def inner_commands(simple: Simple) -> Inner:
    """What a command runs besides itself."""
    if not simple.words:
        return Inner()
    found = _inner(simple)
    more = [HIDDEN] if _told_to_run(simple) else []
    return found._replace(commands=(*found.commands, *more, *_shells_among(simple)))


def _shells_among(simple: Simple) -> list[Simple]:
    """A shell that gets its script, among the words of a program that may run them: `docker exec web sh -c ls`."""
    program, words = program_name(simple.words[0]), simple.words
    if program != "git" and any(program in known for known in (PLAIN, SHELLS, SPECIAL, WRAPPERS)):
        return []
    return [
        Simple(words[at:], (), simple.script, simple.piped)
        for at in range(1, len(words))
        if program_name(words[at]) in SHELLS
        and (simple.piped or any(re.match(r"-[A-Za-z]*c", word) for word in words[at + 1 :]))
    ]


def _git_runs(words: Sequence[str]) -> bool:
    """Whether a command of `git` is one that runs code, or has words that make it do so."""
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        reads = word == "config" and GIT_READING.fullmatch(" ".join(rest)) is not None
        if word in GIT_COMMANDS and not reads and any(map(GIT_COMMANDS[word].fullmatch, (*rest, ""))):
            return True
    return False


def _told_to_run(simple: Simple) -> bool:
    """Whether an option makes a program, which is not made for that, run other code."""
    program, rest = program_name(simple.words[0]), [as_written(word) for word in simple.words[1:]]
    telling = TELLING_OPTIONS.get(program)
    if telling is not None and any(telling.fullmatch(word) for word in rest):
        return True
    if INLINE.fullmatch(program) and "-m" in rest[:-1]:  # python -m pytest
        module = TELLING_OPTIONS.get(rest[rest.index("-m") + 1])
        return module is not None and any(module.fullmatch(word) for word in rest[rest.index("-m") + 2 :])
    if program == "tar" and rest and re.fullmatch(r"[A-Za-z]*[IF][A-Za-z]*", rest[0]):  # tar xIf
        return True
    reaches_out = awk_reaches_out if AWK.fullmatch(program) else sed_reaches_out if program in _SED else None
    if reaches_out is not None and reaches_out(rest):
        return True
    if program == "git" and _git_runs(rest):
        return True
    careful = (
        telling is not None
        or reaches_out is not None
        or program in OUTPUTS
        or SPECIAL.get(program) in (inside_find, inside_fd)
    )
    return careful and any(_may_be_option(word, files=program != "git") for word in rest)


def _may_be_option(word: str, *, files: bool) -> bool:
    """Whether the shell may expand a word to an option; the name of a file may be one, too."""
    begins = word.startswith((QUOTED, UNKNOWN)) or (files and word.startswith(FILES))
    named = re.match(f"-[^=]*[{UNKNOWN}{FILES}]" if files else f"-[^=]*{UNKNOWN}", word) is not None
    return begins or named or re.search(f"(?<!{QUOTED}){UNKNOWN}", word) is not None


def _inner(simple: Simple) -> Inner:
    program, words = program_name(simple.words[0]), simple.words
    if program in SHELLS:
        return inside_shell(simple)
    if (special := SPECIAL.get(program)) is not None:
        return special(simple)
    wrapper = WRAPPERS.get("ld.so" if LOADER.fullmatch(program) else program)
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
    program, rest = program_name(simple.words[0]), simple.words[1:]
    if program in DECLARING:
        return any(TELLING.fullmatch(word.partition("=")[0]) for word in rest)
    if program in EDITORS or program in SOURCES or program in SCHEDULERS:
        return True
    return INLINE.fullmatch(program) is not None and (simple.piped or any(CODE.fullmatch(word) for word in rest))


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
    options = words[1 : _after_options(words, wrapper.values)]
    split = [word for word in options if re.match(r"-[a-z]*S|--s(plit-string)?\b", word)]
    if split and program_name(words[0]) == "env":  # env -S 'a command'
        at = words.index(split[0])
        attached = re.sub(r"^(-[a-z]*S|--[a-z-]*)=?", "", split[0])
        return script_inside(joined_text([words[0], *([attached] if attached else []), *words[at + 1 :]]))
    at = _after_options(words, wrapper.values) + wrapper.skip
    at += 1 if words[at : at + 1] == ("-",) else 0  # env - command
    assigned: list[str] = []
    while at < len(words) and re.match(r"\w+=", words[at]):
        assigned.append(words[at])
        at += 1
    rest = words[at:]
    if not all(map(is_known, words[1:at])):  # it may expand to a command
        return Inner(True, [HIDDEN])
    if not rest:
        return Inner()
    if rest[0].startswith("-"):  # an option in an unusual place
        return Inner(True, [HIDDEN])
    if wrapper.joined:
        return script_inside(joined_text(rest))
    if wrapper.more:
        placed = [UNKNOWN if "{}" in word or "%" in word else word for word in rest]
        return Inner(True, [Simple((*placed, UNKNOWN), piped=True)])
    inner = Simple(rest, (*simple.assignments, *assigned), simple.script, simple.piped)
    given = [_option(word) for word in options if word.startswith("-") and word != "--"]
    clear = wrapper.clear is not None and all(option in wrapper.clear.split() for option in given)
    return Inner(not clear, [inner])


def _option(word: str) -> str:
    """An option without the value that is attached to it: `-n5`, `--signal=9`."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]
