"""Detectors: find secrets and personal data in a text, for `Redact`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from windlass.errors import ConfigError


class Found(NamedTuple):
    """What a detector found: the kind, and where it begins and ends in the text."""

    kind: str
    start: int
    end: int


@runtime_checkable
class Detector(Protocol):
    """Finds one or more kinds of sensitive text. `kinds` names them.

    `held` says from where on a text is not final, because more text could still make or lengthen a find. A stream is
    held back from there on. `find` and `held` are called from several turns at once, on texts that grow.
    """

    @property
    def kinds(self) -> Sequence[str]:
        """The names of what it finds."""
        ...

    def find(self, text: str) -> Iterable[Found]:
        """What it finds in a text."""
        ...

    def held(self, text: str) -> int:
        """The index from which on the text is not final."""
        ...


class Pattern:
    """A detector for one kind, by a regular expression: `Pattern("staff", r"E\\d{6}", longest=7)`.

    `longest` is the greatest length of a find, with what must stand around it: a stream is held back by that many
    characters. If the expression has a group named `value`, only that group is a find. `valid` may refuse a find.
    """

    def __init__(
        self,
        kind: str,
        pattern: str | re.Pattern[str],
        *,
        longest: int = 128,
        valid: Callable[[str], bool] | None = None,
    ) -> None:
        check_kind(kind)
        if type(longest) is not int or longest < 1:
            raise ConfigError(f"Pattern({kind!r}): longest={longest!r} must be a number of characters")
        try:
            self.pattern = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"Pattern({kind!r}): {pattern!r} is not a regular expression: {error}") from None
        if self.pattern.match("") is not None:
            raise ConfigError(f"Pattern({kind!r}): {self.pattern.pattern!r} also matches an empty text")
        self.kinds: Sequence[str] = (kind,)
        self.longest = longest
        self.valid = valid
        self._group: str | int = "value" if "value" in self.pattern.groupindex else 0

    def find(self, text: str) -> Iterator[Found]:
        """All finds in the text."""
        for match in self.pattern.finditer(text):
            if self.valid is None or self.valid(match[self._group]):
                yield Found(self.kinds[0], *match.span(self._group))

    def held(self, text: str) -> int:
        """The last characters may still become a find."""
        return max(0, len(text) - self.longest)


class Scanner:
    """A detector made of a function that returns finds as `(kind, start, end)`: a library, or a service.

    A stream is held back by `longest` characters.
    """

    def __init__(
        self, find: Callable[[str], Iterable[tuple[str, int, int]]], kinds: Sequence[str], *, longest: int = 128
    ) -> None:
        for kind in kinds:
            check_kind(kind)
        self.kinds = tuple(kinds)
        self.longest = longest
        self._find = find

    def find(self, text: str) -> Iterator[Found]:
        """All finds in the text."""
        for found in self._find(text):
            yield Found(*found)

    def held(self, text: str) -> int:
        """The last characters may still become a find."""
        return max(0, len(text) - self.longest)


def check_kind(kind: object) -> None:
    """Raise unless it can name a kind."""
    if not isinstance(kind, str) or not kind.isidentifier():
        raise ConfigError(f"{kind!r} is not the name of a kind: use letters, digits and _")


def merged(found: Iterable[Any], text: str) -> list[Found]:
    """Finds in their order; those that overlap become one, of the kind that begins first."""
    result: list[Found] = []
    for one in sorted(found, key=lambda one: (one[1], -one[2])):
        kind, start, end = one
        if not (0 <= start < end <= len(text)):
            raise ValueError(f"a detector returned {one!r} for a text of {len(text)} characters")
        if result and start < result[-1].end:
            result[-1] = result[-1]._replace(end=max(end, result[-1].end))
        else:
            result.append(Found(kind, start, end))
    return result
