"""What guesses cost: how much longer iterations take with more rows, as measured while running.

An iteration is supposed to take a time of its own, one for each sequence, and one for each row,
guesses' like any other, that differs from range to range of rows: few wait for memory, many for
arithmetic. All iterations teach the same few numbers, whatever their sizes, so that one that took
long by chance is soon forgotten, and sizes that weren't tried lately are known, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

_ENDS = (4, 8, 16, 32, 64, 128, 1 << 30)
"""Where ranges of rows end."""

_RATE, _RARE_RATE = 0.2, 0.5
"""How far what is known goes towards what was measured; and of an iteration without guesses after
many with some."""

_MOST_LATE = 0.5
"""A larger part of what it should take, more or less, isn't believed of any iteration."""

_HOPE = 0.01
"""How far a row that isn't computed goes towards the price of the last one that is: what was too
dear isn't tried any more, and would remain so."""

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

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """An iteration of sequences that decode has taken so long."""
        size = _size(sequences)
        since = self._since_plain.get(size, _PLAIN_EVERY)
        self._since_plain[size] = since + 1 if guesses else 0
        if seconds <= 0:
            return
        rows = sequences + guesses
        if not self._fixed:
            self._suppose(sequences, seconds * sequences / rows)
        last = next(place for place, end in enumerate(_ENDS) if rows <= end)
        start, parts = 0, [self._fixed, self._each * sequences]
        for place in range(last + 1):
            end = min(rows, _ENDS[place])
            parts.append(self._rows[place] * (end - start))
            start = end
        expected = sum(parts)
        late = max(-_MOST_LATE, min(seconds / expected - 1, _MOST_LATE))
        rate = _RARE_RATE if not guesses and since > _RECENT else _RATE
        # In proportion to what each part has in the whole: a step towards the measure that changes
        # them as little as can be (normalised least mean squares, of logarithms).
        step = rate * late * expected / sum([part * part for part in parts])
        self._fixed *= 1 + step * parts[0]
        self._each *= 1 + step * parts[1]
        for place in range(last + 1):
            self._rows[place] *= 1 + step * parts[2 + place]
        self._known = max(self._known, last + 1)
        top = self._rows[last]
        for place in range(last + 1, len(_ENDS)):
            if place >= self._known:
                self._rows[place] = top
            elif self._rows[place] > top:
                self._rows[place] += _HOPE * (top - self._rows[place])
        widths = (end - begin for begin, end in zip((0, *_ENDS), _ENDS[:-1], strict=False))
        each = (row * width for row, width in zip(self._rows, widths, strict=False))
        self._sums = list(accumulate(each, initial=0.0))

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
