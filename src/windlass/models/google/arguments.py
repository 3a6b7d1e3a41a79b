"""The arguments of a call in pieces (`partialArgs`): each says where in them it belongs."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
GAP = 1_000
"""How many places of a list a piece may leave out at most."""
_KINDS = ("stringValue", "numberValue", "boolValue")


def put(arguments: dict[str, Any], piece: dict[str, Any]) -> None:
    """Put a piece where its path says (`$.cities[0].name`); a text that is there already goes on.

    A piece without a value only says that nothing more will come there.
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
    """What is at a step, where there is now something empty if there was nothing."""
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
