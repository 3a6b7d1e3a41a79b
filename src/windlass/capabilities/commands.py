"""Shell commands as permission rules compare them. They cannot be parsed yet, so each one is asked about."""

from __future__ import annotations


class Unparsable(Exception):
    """A script that cannot be taken apart; the text says why."""


class Command:
    """One command of a script. `text` is how people read it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class CommandPattern:
    """A glob for commands."""

    __slots__ = ("glob",)

    def __init__(self, glob: str) -> None:
        self.glob = glob

    def allows(self, command: Command) -> bool:
        """Whether the command surely matches."""
        return False

    def touches(self, command: Command) -> int:
        """How far the command matches: 0 no, 1 maybe, 2 yes."""
        return 1


def pattern_problem(glob: str) -> str:
    """Why no command can match a pattern; empty if one can."""
    return ""


def commands_of(script: str) -> tuple[Command, ...]:
    """The commands of a script."""
    raise Unparsable("shell commands cannot be parsed")


def is_parsed(script: str, parse: bool = False) -> bool:
    """Whether a script is parsed already, or need not be. With `parse`, parse it."""
    return True
