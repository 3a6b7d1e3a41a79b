"""The commands of a shell script, as permission rules compare them."""

from __future__ import annotations

import os
import re
from collections import deque
from functools import cached_property
from typing import NamedTuple

from .globs import UNKNOWN
from .shell_parser import MAX_BYTES, Unparsable
from .shell_programs import PLAIN
from .shell_special import HIDDEN
from .shell_syntax import FILES, INNER, LINE, QUOTED, UPWARDS, Simple, parse_script
from .shell_wrappers import inner_commands, runs_hidden_code

_MAX_DEPTH = 6
_MAX_CACHED = 20_000
_MAX_COMMANDS = 400


class Command:
    """One command of a script: its words, which may be partly unknown, and what they may mean.

    A `hidden` command stands for code that cannot be seen, such as that of `python -c`: it is not allowed or refused by
    itself, but a rule that refuses something may be about it.
    """

    def __init__(self, simple: Simple, *, hidden: bool = False) -> None:
        self.hidden = hidden
        self.words = simple.words
        self.strict = " ".join([*simple.assignments, *simple.words])
        self._assignments = simple.assignments

    @property
    def text(self) -> str:
        """The command as people read it; `…` stands for what is unknown."""
        return _readable(self.strict)

    @cached_property
    def names(self) -> frozenset[str]:
        """The words, without their folders: the names of programs among them."""
        return frozenset([word.rpartition("/")[2] for word in (*self.words, *self._assignments)])

    @cached_property
    def is_known(self) -> bool:
        """Whether the shell expands no part of it."""
        return UNKNOWN not in self.strict and FILES not in self.strict

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """What the command amounts to: without assignments, folders of programs, leading options, detours in paths."""
        words = [_open(word) for word in self.words]
        if not words:
            return (_open(self.strict),)
        program = [words[0].rpartition("/")[2] or words[0]]
        found = [[_open(self.strict)], words, [*program, *words[1:]]]
        plain = [_normal(word) for word in words[1:]]
        found.append([*program, *plain])
        for at in range(2, min(len(words), 8)):
            if words[1].startswith("-"):
                found += [[*program, *words[at:]], [*program, *plain[at - 1 :]]]
        return tuple(dict.fromkeys([" ".join(one) for one in found]))

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """What it runs if its first words are a wrapper."""
        words = [_open(word) for word in self.words]
        if words and words[0].rpartition("/")[2] in PLAIN:
            return ()
        tails = [words[at:] for at in range(1, min(len(words), 40))]
        return tuple([" ".join([tail[0].rpartition("/")[2], *tail[1:]]) for tail in tails])

    @cached_property
    def wide(self) -> str:
        """The variants as one text."""
        return "\n".join(self.variants)

    @cached_property
    def compared(self) -> str:
        """All that patterns are compared with, as one text."""
        return "\n".join((self.strict, *self.variants, *self.suffixes))

    @cached_property
    def known_starts(self) -> tuple[str, ...]:
        """The part before the first unknown, of every variant."""
        starts = [re.split(f"[{UNKNOWN}{FILES}]", variant, maxsplit=1)[0].rstrip() for variant in self.variants]
        return tuple(dict.fromkeys(starts))

    @cached_property
    def flags(self) -> Flags:
        """Its options and other words."""
        return flags_of([_open(word) for word in self.words])


class Flags(NamedTuple):
    """A command without the order of its options: the program, the options by letter or name, the other words."""

    program: str
    options: frozenset[str]
    rest: str


# ---------------------------------------------------------------- scripts


class _Cache:
    """Scripts that were parsed. It is emptied when it has too many commands: a model may write any number of them."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Command, ...] | Unparsable] = {}
        self._size = 0

    def get(self, script: str) -> tuple[Command, ...] | Unparsable | None:
        return self._found.get(script)

    def put(self, script: str, found: tuple[Command, ...] | Unparsable) -> None:
        if self._size > _MAX_CACHED:
            self._found, self._size = {}, 0
        self._found[script] = found
        self._size += 1 + (0 if isinstance(found, Unparsable) else len(found))


_cache = _Cache()


def commands_of(script: str) -> tuple[Command, ...]:
    """The commands of a script, with those that other commands run. Raises `Unparsable`.

    Parsing takes some milliseconds; what was parsed is kept.
    """
    found = _cache.get(script)
    if found is None:
        try:
            found = tuple(_expand(script, 0))
        except Unparsable as error:
            found = Unparsable(str(error))
        if len(script) <= MAX_BYTES:
            _cache.put(script, found)
    if isinstance(found, Unparsable):
        raise Unparsable(str(found))
    return found


def is_parsed(script: str) -> bool:
    """Whether `commands_of` answers at once: the script was parsed, or it is too long for that."""
    return len(script) > MAX_BYTES or _cache.get(script) is not None


def _expand(script: str, depth: int) -> list[Command]:
    """The commands of a script, and of the scripts that they run."""
    if depth > _MAX_DEPTH:
        raise Unparsable("it is nested too deeply")
    found: list[Command] = []
    pending = deque(parse_script(script))
    while pending:
        simple = pending.popleft()
        shown, inner, scripts = inner_commands(simple)
        found += [Command(simple)] if shown else []
        found += [Command(HIDDEN, hidden=True)] if runs_hidden_code(simple) else []
        pending.extendleft(reversed(inner))
        for one in scripts:
            found += _expand(one, depth + 1)
        if len(found) + len(pending) > _MAX_COMMANDS:
            raise Unparsable(f"it has more than {_MAX_COMMANDS} commands")
    return found


# ---------------------------------------------------------------- words


def _open(word: str) -> str:
    """A word for wide comparison: spaces and `..` as they are."""
    return word.replace(INNER, " ").replace(LINE, " ").replace(UPWARDS, "..").replace(QUOTED, "")


def _readable(text: str) -> str:
    return re.sub(f"[{UNKNOWN}{FILES}]", "…", _open(text))


def _normal(word: str) -> str:
    """A word that may be a path, without detours."""
    if word.startswith("~"):
        word = os.path.expanduser(word)
    return os.path.normpath(word).replace("//", "/", 1) if "/" in word and "://" not in word else word


_LONG = {"--recursive": "r", "--force": "f", "--all": "a"}


def _letter(word: str) -> str | None:
    """The letter of a long option, which may be abbreviated."""
    return next((letter for name, letter in _LONG.items() if len(word) > 2 and name.startswith(word)), None)


def flags_of(words: list[str]) -> Flags:
    """The words of a command without the order of its options."""
    options: set[str] = set()
    rest: list[str] = []
    for word in words[1:]:
        if (letter := _letter(word)) is not None:
            options.add(letter)
        elif re.fullmatch(r"-[A-Za-z]+", word):
            options |= {letter.lower() if letter == "R" else letter for letter in word[1:]}
        elif word.startswith("--") and word != "--":
            options.add(word)
        elif word != "--":
            rest.append(_normal(word))
    return Flags(words[0].rpartition("/")[2] if words else "", frozenset(options), " ".join(rest))
