"""Intervals for pass rates, and a test of whether two runs differ."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist


def wilson(rate: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a rate that was seen in `count` independent tries."""
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = rate + z * z / (2 * count)
    spread = z * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    return max(0.0, (centre - spread) / whole), min(1.0, (centre + spread) / whole)


def sign_test(better: int, worse: int) -> float:
    """How likely a difference at least this large is by chance: the exact two-sided sign test over changed cases."""
    changed = better + worse
    tail = sum([comb(changed, k) for k in range(min(better, worse) + 1)]) / 2**changed
    return float(min(1.0, 2 * tail))
