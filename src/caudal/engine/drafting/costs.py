"""What guesses cost: how much longer iterations take with more rows, as measured while running."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

_KNOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of guesses whose cost is remembered; between them it is a straight line."""

_FAST, _SLOW = 0.2, 0.1
"""How far what is remembered goes towards what was measured: seconds, and what they are for."""

_OUTLIER = 3.0
"""Something else has run meanwhile where an iteration takes so many times what it should."""

_RECENT = 32
"""Iterations: what guesses cost is measured against one without any that is no older."""


class _Curve:
    """For about so many sequences: the duration with guesses, by that without."""

    def __init__(self, slope: float) -> None:
        self.seconds = 0.0  # without guesses
        self.since_plain = 2 * _RECENT  # first one without is measured
        self._slope = slope  # until it is known better
        self._shape: list[float | None] = [1.0] + [None] * (len(_KNOTS) - 1)

    def factor(self, guesses: float) -> float:
        """How many times longer with so many guesses than without."""
        above = bisect_right(_KNOTS, guesses)
        low = above - 1
        while self._shape[low] is None:
            low -= 1
        base = self._shape[low]
        assert base is not None
        high = next((i for i in range(above, len(_KNOTS)) if self._shape[i] is not None), None)
        if high is None:
            return base + (guesses - _KNOTS[low]) * self._slope
        top = self._shape[high]
        assert top is not None
        share = (guesses - _KNOTS[low]) / (_KNOTS[high] - _KNOTS[low])
        return base + (top - base) * share

    def observe(self, guesses: int, seconds: float) -> None:
        self.since_plain = self.since_plain + 1 if guesses else 0
        if seconds <= 0:
            return
        expected = self.factor(guesses)
        if not self.seconds:
            self.seconds = seconds / expected
        seconds = min(seconds, _OUTLIER * self.seconds * expected)
        self.seconds += _FAST * (seconds / expected - self.seconds)
        if not guesses or self.since_plain > _RECENT:
            return
        measured = seconds / self.seconds
        above = bisect_right(_KNOTS, guesses)
        near = above - 1
        if above < len(_KNOTS) and _KNOTS[above] - guesses < guesses - _KNOTS[near]:
            near = above
        near = max(near, 1)
        # What is measured beside a knot says about it what the line through both says.
        weight = 0.5 if self._shape[near] is None else _SLOW
        learnt = max(1.0, self.factor(_KNOTS[near]) + weight * (measured - expected))
        self._shape[near] = learnt
        for place, value in enumerate(self._shape):  # more rows never take less
            if value is not None:
                self._shape[place] = min(value, learnt) if place < near else max(value, learnt)
        known = [(_KNOTS[i], value) for i, value in enumerate(self._shape) if value is not None]
        if len(known) > 1:
            (left, below), (right, top) = known[-2], known[-1]
            self._slope = max((top - below) / (right - left), 1e-4)


class Costs:
    """What iterations have taken, by the number of sequences that decode and of guesses."""

    def __init__(self) -> None:
        self._curves: dict[int, _Curve] = {}

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """An iteration of sequences that decode has taken so long."""
        self._curve(sequences).observe(guesses, seconds)

    def curve(self, sequences: int) -> Callable[[float], float]:
        """How many times longer an iteration takes with so many guesses than without."""
        return self._curve(sequences).factor

    def seconds(self, sequences: int) -> float:
        """How long one takes without guesses; 0 where that isn't known."""
        return self._curve(sequences).seconds

    def wants_plain(self, sequences: int) -> bool:
        """Whether it is time for an iteration without guesses, to know what they cost."""
        return self._curve(sequences).since_plain >= 2 * _RECENT

    def _curve(self, sequences: int) -> _Curve:
        size = (sequences - 1).bit_length()
        curve = self._curves.get(size)
        if curve is None:
            curve = self._curves[size] = _Curve(min(0.1, 0.5 / sequences))
        return curve
