"""Figures of many values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
"""What is said of a latency."""


def distribution(values: Sequence[float]) -> dict[str, float]:
    """All of `STATISTICS`; empty for no values."""
    ordered = sorted(values)
    return {name: statistic(name, ordered) for name in STATISTICS} if ordered else {}


def statistic(name: str, values: Sequence[float]) -> float:
    """The mean, the greatest value, or a percentile (nearest rank: a value that occurred).

    Args:
        name: `mean`, `max`, or e.g. `p99`.
        values: In any order; without any, it is infinite.
    """
    if not values:
        return math.inf
    if name == "mean":
        return fmean(values)
    percent = 100.0 if name == "max" else float(name.removeprefix("p"))
    rank = math.ceil(round(percent / 100 * len(values), 9))
    return sorted(values)[max(rank, 1) - 1]
