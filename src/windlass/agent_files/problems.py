"""What is wrong with an agent file: all of it at once, each with its line and key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from msgspec import Struct

from windlass._text import visible
from windlass.errors import ConfigError

_MANY = 20


class Problem(Struct, frozen=True):
    """One mistake in an agent file.

    - `file`: the file, relative if it is in the current folder.
    - `line`: the line, from 1 on.
    - `key`: the key, such as `hooks[0].event`; "" if it is about the whole file.
    - `message`: what is wrong, what is legal, and what was probably meant.
    """

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return visible(f"{self.file}:{self.line}: {f'{self.key}: ' if self.key else ''}{self.message}")


class AgentFileError(ConfigError):
    """An agent file cannot be used.

    - `problems`: all mistakes in it, in the order of their lines.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(sorted(problems, key=lambda one: (one.file, one.line)))
        lines = [str(problem) for problem in self.problems]
        head = f"{len(lines)} problems:\n  " if len(lines) > 1 else ""
        super().__init__(head + "\n  ".join(lines))


def suggestion(given: str, legal: Iterable[str]) -> str:
    """A hint for a misspelt name, and the legal names; if they are many and one is close, that one will do."""
    known = list(legal)
    close = get_close_matches(given.lower(), known, 1, 0.6) if len(given) <= 100 else []
    close = close or (get_close_matches(given, known, 1, 0.6) if len(given) <= 100 else [])
    names = ", ".join(known)
    if not close:
        return f"; legal: {names}"
    return f"; did you mean {close[0]!r}?" + (f" Legal: {names}" if len(known) <= _MANY else "")
