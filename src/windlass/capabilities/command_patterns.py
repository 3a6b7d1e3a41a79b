"""Globs for shell commands: compared strictly, word by word, to allow, and widely to refuse."""

from __future__ import annotations

import re
from functools import cached_property

from .commands import Command, Flags, flags_of
from .globs import UNKNOWN, glob_regex, literal_prefix, needle
from .shell_syntax import FILES, UPWARDS


class CommandPattern:
    """A glob for commands, such as `git push *`.

    To allow, words are compared one by one: a `*` that is a word of its own stands for any number of words, one inside
    a word stays in that word and does not lead upwards. To refuse, a `*` stands for anything, and what a command
    amounts to counts, too. A final ` *` also matches the command without arguments.

    A command without the `literal` matches neither way, but for one with the same `flags`. `start` is what the pattern
    begins with, up to its first wildcard.
    """

    def __init__(self, glob: str) -> None:
        glob = f"{glob[:-2]} *" if glob.endswith(":*") else glob
        words = glob.split()
        first = words[0] if words else ""
        self.first = "" if re.search(r"[*?\[]", first) else first.rpartition("/")[2]
        self._words = words
        self._shapes = shapes = [" ".join(words)]
        if words[1:] and words[-1] == "*":
            shapes.append(" ".join(words[:-1]))
        self.start = literal_prefix(shapes[0]).rstrip()
        flags = flags_of(words)
        self.flags = flags if flags.options and self.first else None
        self.literal = needle(shapes[-1].rstrip("* "))
        if ".." in self.literal:
            self.literal = self.first
        self._needle = self.first if self.flags else self.literal

    @cached_property
    def _strict(self) -> re.Pattern[str]:
        return re.compile(_strict_regex(self._words))

    @cached_property
    def _wide(self) -> list[re.Pattern[str]]:
        return [glob_regex(shape) for shape in self._shapes]

    def allows(self, command: Command) -> bool:
        """Whether the command surely matches, whatever its unknown parts are."""
        return self._strict.fullmatch(command.strict) is not None

    def touches(self, command: Command) -> int:
        """How far the command matches: 0 no, 1 maybe, 2 yes."""
        if self.first and self.first not in command.names and command.is_known:
            return 0
        if self._needle in command.wide and any(
            regex.match(variant) for variant in command.variants for regex in self._wide
        ):
            return 2
        if self.flags is not None and self._matches_flags(self.flags, command.flags):
            return 2
        if not command.is_known and self._may_begin(command.known_starts):
            return 1
        if self.first not in command.names:
            return 0
        return int(any(regex.match(tail) for tail in command.suffixes for regex in self._wide))

    def _may_begin(self, starts: tuple[str, ...]) -> bool:
        """Whether what is known of a command begins as the pattern does, as far as both go."""
        return self.start.startswith(starts) or any(start.startswith(self.start) for start in starts)

    def _matches_flags(self, mine: Flags, flags: Flags) -> bool:
        same = flags.program == mine.program and mine.options <= flags.options
        return same and glob_regex(mine.rest).match(flags.rest) is not None


def pattern_problem(glob: str) -> str:
    """Why no command can match a pattern; empty if one can."""
    found = re.search(r"&&|\|\||[;|`\n]|\$\(|(?<!^)(?<!^\()[<>]", glob)
    if found is None or glob.strip().startswith(("<", ">")):
        return ""
    return f"every command is compared on its own, so {found[0]!r} is in none of them"


def _strict_regex(words: list[str]) -> str:
    inside, one = f"[^ {UNKNOWN}{UPWARDS}]", f"[^ {UNKNOWN}{UPWARDS}{FILES}]"
    regex = ""
    for at, word in enumerate(words):
        space = " " if at else ""
        if word != "*":
            upwards = re.sub(r"(?:(?<=/)|(?<==)|^)\.\.(?=/|$)", UPWARDS, word)
            regex += space + re.sub(
                r"\[!?\]?[^\]]*\]|.",
                lambda match: f"{inside}*" if match[0] == "*" else one if match[0] == "?" else _literal(match[0]),
                upwards,
            )
        elif at == len(words) - 1:
            regex += f"(?:{space}.*)?" if at else ".+"
        else:
            regex += "(?: [^ ]+)*" if at else f"[^ {UNKNOWN}]+(?: [^ ]+)*"
    return regex


def _literal(text: str) -> str:
    """A character of a pattern, or a class of characters, as a regular expression."""
    if len(text) == 1:
        return re.escape(text)
    body = text[1:-1].replace("\\", "\\\\")
    return f"(?![ {UNKNOWN}{UPWARDS}{FILES}])[^{body[1:]}]" if body.startswith("!") else f"[{body}]"
