"""What guesses cost: how much longer iterations take with more rows, as measured while running.

An iteration is supposed to take a time of its own, one for each sequence, and one for each row,
guesses' like any other, that differs from range to range of rows: few wait for memory, many for
arithmetic. All iterations teach the same few numbers, whatever their sizes, so that one that took
long by chance is soon forgotten, and sizes that weren't tried lately are known, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from operator import mul, sub

_ENDS = (4, 8, 16, 32, 64, 128, 1 << 30)
"""Where ranges of rows end."""
_BEGINS = (0, *_ENDS[:-1])
_WIDTHS = tuple(map(sub, _ENDS[:-1], _BEGINS))

_RATE, _RARE_RATE = 0.2, 0.5
"""How far what is known goes towards what was measured; and of an iteration without guesses after
many with some."""

_MOST_LATE = 0.5
"""A larger part of what it should take, more or less, isn't believed of any iteration."""

_HOPE = 0.01
"""How far a row that isn't computed goes towards the price of the last one that is: what was too
dear isn't tried any more, and would remain so."""

_ALIKE_EVERY = 8
"""Of iterations without guesses that follow each other, so many teach as much as one."""

_RECENT = 8
_PLAIN_EVERY = 64
"""Iterations after which one without guesses is wanted: all others are compared to them."""


class Costs:
    """What iterations take, by the number of sequences that decode and of guesses."""

    def __init__(self) -> None:
        self._fixed = self._each = 0.0
        self._rows = [0.0] * len(_ENDS)  # a row's, by range
        self._known = 0  # ranges that have been measured
        self._sums = [0.0] * len(_ENDS)  # of the rows before each range
        self._since_plain: dict[int, int] = {}
        self._alike = 0  # iterations without guesses behind another one

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """An iteration of sequences that decode has taken so long."""
        size = _size(sequences)
        since = self._since_plain.get(size, _PLAIN_EVERY)
        self._since_plain[size] = since + 1 if guesses else 0
        self._alike = self._alike + 1 if since == guesses == 0 else 0
        if seconds <= 0 or self._alike % _ALIKE_EVERY:
            return
        if not self._fixed:
            self._suppose(sequences, seconds * sequences / (sequences + guesses))
        rows, prices = sequences + guesses, self._rows
        last = bisect_left(_ENDS, rows)
        parts = [self._fixed, self._each * sequences]
        parts += map(mul, prices[:last], _WIDTHS)
        parts.append(prices[last] * (rows - _BEGINS[last]))
        expected = sum(parts)
        late = max(-_MOST_LATE, min(seconds / expected - 1, _MOST_LATE))
        rate = _RARE_RATE if not guesses and since > _RECENT else _RATE
        # In proportion to what each part has in the whole: a step towards the measure that changes
        # them as little as can be (normalised least mean squares, of logarithms).
        step = rate * late * expected / sum(map(mul, parts, parts))
        self._fixed *= 1 + step * parts[0]
        self._each *= 1 + step * parts[1]
        for place in range(last + 1):
            prices[place] *= 1 + step * parts[2 + place]
        self._known = max(self._known, last + 1)
        top = prices[last]
        for place in range(last + 1, self._known):
            if prices[place] > top:
                prices[place] += _HOPE * (top - prices[place])
        prices[self._known :] = [prices[self._known - 1]] * (len(prices) - self._known)
        self._sums = [0.0, *accumulate(map(mul, prices, _WIDTHS))]

    def curve(self, sequences: int) -> Callable[[float], float]:
        """How many times longer an iteration takes with so many guesses than without."""
        plain = self.seconds(sequences)
        if not plain:
            return lambda guesses: 1 + guesses * _supposed(sequences)
        base = plain - self._of_rows(sequences)
        return lambda guesses: (base + self._of_rows(sequences + guesses)) / plain

    def seconds(self, sequences: int) -> float:
        """How long one takes without guesses; 0 where that isn't known."""
        return self._fixed + self._each * sequences + self._of_rows(sequences)

    def wants_plain(self, sequences: int) -> bool:
        """Whether it is time for an iteration without guesses, to know what they cost."""
        return self._since_plain.get(_size(sequences), _PLAIN_EVERY) >= _PLAIN_EVERY

    def _of_rows(self, rows: float) -> float:
        place = bisect_right(_ENDS, rows)
        return self._sums[place] + (rows - (_ENDS[place - 1] if place else 0)) * self._rows[place]

    def _suppose(self, sequences: int, seconds: float) -> None:
        """Begin with what an iteration has taken."""
        row = seconds * _supposed(sequences)
        self._rows = [row] * len(_ENDS)
        self._each = 0.2 * seconds / sequences
        self._fixed = 0.8 * seconds - row * sequences


def _supposed(sequences: int) -> float:
    """What a guess is supposed to cost before anything is known, in iterations without any."""
    return min(0.1, 0.5 / sequences)


def _size(sequences: int) -> int:
    return (sequences - 1).bit_length()
