"""Counts of what vendors bill apart, for `Usage.details`, and the prices that they state themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import FrozenDict
from windlass.prices import TIERS


def counted(**kinds: Any) -> FrozenDict:
    """Counts by kind; what a vendor says nothing of, and what amounts to nothing, is left out."""
    return FrozenDict({kind: count for kind, count in kinds.items() if type(count) is int and count > 0})


def tier(name: object) -> dict[str, int]:
    """A reply of a service tier that has prices of its own, as a count by kind."""
    plain = name.lower() if isinstance(name, str) else ""
    return {f"{plain}_requests": 1} if plain in TIERS else {}


def stated_cost(told: Mapping[str, Any]) -> float | None:
    """What a router says that it took, in USD; with a key of one's own the vendor behind it has taken its part."""
    taken: list[Any] = [told.get("cost")]
    if told.get("is_byok"):
        taken.append((told.get("cost_details") or {}).get("upstream_inference_cost"))
    known = [float(cost) for cost in taken if type(cost) in (int, float) and cost >= 0]
    return sum(known) if len(known) == len(taken) else None


__all__ = ["counted", "stated_cost", "tier"]
