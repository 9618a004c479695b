"""Which bytes of a file are there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""The first byte, and the one behind the last."""


class Ranges:
    """A set of bytes' positions; ranges that touch are one.

    Args:
        ranges: What is in it from the beginning; empty ones don't count.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Put a range in."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        behind = bisect_right(self._starts, end)
        if first < behind:
            start = min(start, self._starts[first])
            end = max(end, self._ends[behind - 1])
        self._starts[first:behind] = [start]
        self._ends[first:behind] = [end]

    @property
    def ranges(self) -> Sequence[Range]:
        """What is in it, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def count(self) -> int:
        """How many bytes are in it."""
        return sum(self._ends) - sum(self._starts)

    def missing(self, size: int, most: int) -> Sequence[Range]:
        """What of a file isn't in it, in order.

        Args:
            size: The file's bytes.
            most: Bytes of one range; a longer one is cut.
        """
        gaps = zip([0, *self._ends], [*self._starts, size], strict=True)
        return [
            (start, min(start + most, end)) for gap, end in gaps for start in range(gap, end, most)
        ]
