"""Counts of values by size, cheap enough for what happens with every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """What a histogram has counted.

    Attributes:
        bounds: The largest value of each bucket but the last, which has none.
        counts: Values in each bucket alone; one more than bounds.
        sum: Of all values.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Histogram:
    """Counts values. Used by one thread, so it needs no locks; any may take `counts`.

    Args:
        bounds: See `HistogramCounts`; ascending.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def counts(self) -> HistogramCounts:
        """The counts so far."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._sum)
