"""Counts of things that vendors bill separately, for `Usage.details`, and costs that vendors state themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.messages import FrozenDict
from windlass.prices import TIERS


def positive_counts(**kinds: Any) -> FrozenDict:
    """Counts by kind, without zeros and without kinds that the vendor does not report."""
    return FrozenDict({kind: count for kind, count in kinds.items() if type(count) is int and count > 0})


def tier(name: object) -> dict[str, int]:
    """The count for a reply of a service tier with its own prices; empty for other tiers."""
    plain = name.lower() if isinstance(name, str) else ""
    return {f"{plain}_requests": 1} if plain in TIERS else {}


def stated_cost(usage: Mapping[str, Any]) -> float | None:
    """The cost in USD that a router states. With the user's own key, the cost of the vendor behind it is added."""
    costs: list[Any] = [usage.get("cost")]
    if usage.get("is_byok"):
        costs.append((usage.get("cost_details") or {}).get("upstream_inference_cost"))
    known = [float(cost) for cost in costs if type(cost) in (int, float) and cost >= 0]
    return sum(known) if len(known) == len(costs) else None


__all__ = ["positive_counts", "stated_cost", "tier"]
