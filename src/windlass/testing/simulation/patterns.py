"""Texts that match a regular expression, drawn at random."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from random import Random
from typing import Any

_SHOWN = "aZ0 b1-c_2.d3"
"""What a text is made of where a pattern allows anything."""

_MORE = 2
"""How many more times than it must something repeats."""

_CATEGORIES = {"CATEGORY_DIGIT": "0123", "CATEGORY_WORD": "abc1_", "CATEGORY_SPACE": " "}


def matching(pattern: str, random: Random) -> str | None:
    """A text in which a pattern is found; None if none could be made."""
    try:
        found = re.compile(pattern)
        parsed: Any = import_module("re._parser").parse(pattern)
    except (re.error, RecursionError):
        return None
    for _ in range(20):
        text = _Texts(random).of(parsed)
        if found.search(text):
            return text
    return None


class _Texts:
    """Makes one text."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._groups: dict[int, str] = {}

    def of(self, parsed: Sequence[tuple[Any, Any]]) -> str:
        return "".join([self._part(str(kind), of) for kind, of in parsed])

    def _part(self, kind: str, of: Any) -> str:
        random = self._random
        match kind:
            case "LITERAL":
                return chr(of)
            case "ANY":
                return random.choice(_SHOWN)
            case "NOT_LITERAL":
                return random.choice([one for one in _SHOWN if ord(one) != of])
            case "IN":
                return self._one_in(of)
            case "BRANCH":
                return self.of(random.choice(of[1]))
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, repeated = of
                times = random.randint(least, min(int(most), least + _MORE))
                return "".join([self.of(repeated) for _ in range(times)])
            case "SUBPATTERN":
                text = self.of(of[3])
                if of[0] is not None:
                    self._groups[of[0]] = text
                return text
            case "ATOMIC_GROUP":
                return self.of(of)
            case "GROUPREF":
                return self._groups.get(of, "")
            case _:  # an anchor, or a look at what is around: whether it holds is seen at the end
                return ""

    def _one_in(self, members: Sequence[tuple[Any, Any]]) -> str:
        if str(members[0][0]) == "NEGATE":
            allowed = [one for one in _SHOWN if not any(_has(one, str(kind), of) for kind, of in members[1:])]
            return self._random.choice(allowed or ["~"])
        kind, of = self._random.choice(members)
        match str(kind):
            case "LITERAL":
                return chr(of)
            case "RANGE":
                return chr(self._random.randint(of[0], min(of[1], of[0] + 3)))
            case _:
                return self._random.choice(_CATEGORIES.get(str(of), _SHOWN))


def _has(one: str, kind: str, of: Any) -> bool:
    match kind:
        case "LITERAL":
            return bool(ord(one) == of)
        case "RANGE":
            return bool(of[0] <= ord(one) <= of[1])
        case _:
            name = str(of)
            inside = {"DIGIT": one.isdigit(), "WORD": one.isalnum() or one == "_", "SPACE": one.isspace()}
            return inside.get(name.rpartition("_")[2], False) != ("NOT" in name)
