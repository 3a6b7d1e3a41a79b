"""An index of rules that refuse commands: which of many rules can matter for a command."""

from __future__ import annotations

from collections.abc import Sequence

from .command_patterns import CommandPattern
from .commands import Command


class CommandIndex:
    """Finds, among many patterns, those that decide what is said of a command. The others would change nothing.

    A pattern can only match a command that contains its longest literal part, or that has its options. Nearly every
    pattern may match a command of which the beginning is unknown. Of those, the first one is reported, so later ones
    need not be compared.
    """

    __slots__ = ("_by_start", "_flags", "_lengths", "_literals", "_rest", "_starts")

    def __init__(self, patterns: Sequence[CommandPattern | None]) -> None:
        self._rest = [at for at, pattern in enumerate(patterns) if pattern is None]
        given = [(at, pattern) for at, pattern in enumerate(patterns) if pattern is not None]
        self._literals = [(pattern.literal, at) for at, pattern in given]
        self._starts = [(pattern.start, at) for at, pattern in given]
        self._by_start = dict(reversed(self._starts))
        self._lengths = sorted({len(start) for start in self._by_start})
        self._flags: dict[str, list[tuple[frozenset[str], int]]] = {}
        for at, pattern in given:
            if pattern.flags is not None:
                self._flags.setdefault(pattern.flags.program, []).append((pattern.flags.options, at))

    def find(self, command: Command) -> list[int]:
        """The places of the patterns to compare, in order."""
        text, flags = command.compared, command.flags
        found = {at for literal, at in self._literals if literal in text}
        found.update([at for options, at in self._flags.get(flags.program, ()) if options <= flags.options])
        found.update(self._rest)
        if not command.is_known and (first := self._first_that_may_begin(command.known_starts)) is not None:
            found.add(first)
        return sorted(found)

    def _first_that_may_begin(self, starts: tuple[str, ...]) -> int | None:
        """The first pattern that begins as what is known of a command does, as far as both go."""
        longer = next((at for start, at in self._starts if start.startswith(starts)), None)
        shorter = [self._by_start.get(one[:length]) for one in starts for length in self._lengths]
        return min([at for at in (longer, *shorter) if at is not None], default=None)
