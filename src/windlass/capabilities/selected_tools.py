"""Which tools were selected: for a turn, and so far in its session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from windlass.errors import ConfigError
from windlass.matching import name_test
from windlass.turns import Turn


class Selected(Struct, frozen=True):
    """The `names` of the tools for a `turn`, and those that were `offered` in the session so far, in that order."""

    turn: str = ""
    names: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()

    def plus(self, new: Selected) -> Selected:
        """Both: two calls of one step select more, and a new turn selects anew."""
        names = union(self.names, new.names) if new.turn == self.turn else new.names
        return Selected(new.turn, names, union(self.offered, new.offered))


def union(one: Iterable[str], other: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of both, in order, each once."""
    return tuple(dict.fromkeys([*one, *other]))


def known_names(names: Any, candidates: Mapping[str, Any]) -> tuple[str, ...]:
    """Names that were picked, each once. One that is not a candidate raises `ConfigError`."""
    given = [names] if isinstance(names, str) else list(names or ())
    unknown = [name for name in given if name not in candidates]
    if unknown:
        known = ", ".join(list(candidates)[:50])
        raise ConfigError(f"{unknown[0]!r} is not a tool that can be selected; there are {known}")
    return union(given)


def name_tests(patterns: str | Sequence[str]) -> list[Callable[[str], bool]]:
    """Tests for one or several names or patterns."""
    return [name_test(one) for one in ((patterns,) if isinstance(patterns, str) else patterns)]


def earlier_words(turn: Turn[Any]) -> str:
    """What the user wrote in the two turns before: a message such as "yes, do that" says nothing alone."""
    earlier = [message.text for message in turn.context if message.role == "user" and message.origin is None]
    return "\n".join(earlier[-2:])


def turn_number(turn: Turn[Any]) -> str:
    """Which turn of its session this is. A fork of the session has the same turns, with other references."""
    return turn.turn_ref.rpartition("/")[2]
