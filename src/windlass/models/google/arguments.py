"""Joins the arguments of a call that come in pieces (`partialArgs`), each with its path."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
GAP = 1_000
"""The maximum number of places in a list that a piece may skip."""
_KINDS = ("stringValue", "numberValue", "boolValue")


def put(arguments: dict[str, Any], piece: dict[str, Any]) -> None:
    """Put a piece at its path (`$.cities[0].name`); a text that is there already is extended.

    A piece without a value only means that nothing more will come there.
    """
    if not any(kind in piece for kind in (*_KINDS, "nullValue")):
        return
    steps = [int(at) if at else name or quoted for name, at, quoted in _STEP.findall(piece["jsonPath"])]
    if not steps:
        raise ValueError(f"'jsonPath' leads nowhere: {piece['jsonPath']!r}")
    place: Any = arguments
    for step, following in pairwise(steps):
        place = _at(place, step, [] if isinstance(following, int) else {})
    value = next((piece[kind] for kind in _KINDS if kind in piece), None)
    before = _at(place, steps[-1], "" if isinstance(value, str) else None)
    place[steps[-1]] = before + value if isinstance(value, str) and isinstance(before, str) else value


def _at(place: Any, step: Any, empty: Any) -> Any:
    """The value at a step of the path; if there is none, an empty one is put there."""
    if isinstance(place, list):
        if step > len(place) + GAP:
            raise ValueError(f"'jsonPath' leads to place {step} of a list of {len(place)}")
        place.extend([None] * (step + 1 - len(place)))
    elif isinstance(place, dict):
        place.setdefault(step, None)
    if place[step] is None:
        place[step] = empty
    return place[step]


__all__ = ["put"]
