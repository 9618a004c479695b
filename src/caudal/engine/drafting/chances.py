"""How likely guesses are to be right, learnt from those that were and those that weren't."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 48
"""Tokens that have been right before; more make no difference."""

_BOUNDS = (4, 6, 9, 16, 32)
_CLASS = [sum(right >= bound for bound in _BOUNDS) for right in range(LONGEST + 1)]
_CLASSES = len(_BOUNDS) + 1

DIFFERED, ALONE, AGREED = range(3)
"""What came next where a text had the same tokens another time before: something else; there was no
such time; the same. What a text repeats with changes differs at the same places every time."""

_MEMORY = 0.93
"""What is left of one observation with the next: some fourteen count."""
_LONG_MEMORY = 0.998
UNLIKELY = 0.1
"""Guesses less likely than that are worth nothing."""

_WEIGHT = 2.0
"""Observations that those of all others count as."""


_FIRST_WEIGHT = 8.0
"""Observations that what is supposed before there are any counts as."""

OF_TEXTS = (
    *(0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    *(0.35, 0.5, 0.65, 0.8, 0.9, 0.95),
    *(0.5, 0.7, 0.8, 0.9, 0.95, 0.97),
)
"""What is supposed of guesses by looking up: of each other time, by class."""

OF_MODELS = (0.7,) * (3 * _CLASSES)
"""Of those that are computed."""


class CommonChances:
    """Those of all sequences together: what is supposed of one of which nothing is known.

    Args:
        first: The chance of a guess of each class about which nothing is known at all.
    """

    def __init__(self, first: Sequence[float]) -> None:
        self._right = [chance * _FIRST_WEIGHT for chance in first]
        self._all = [_FIRST_WEIGHT] * len(first)

    def learn(self, kind: int, *, right: bool) -> None:
        """A guess of a class was right, or wasn't."""
        self._right[kind] = self._right[kind] * _LONG_MEMORY + right
        self._all[kind] = self._all[kind] * _LONG_MEMORY + 1

    def chance(self, kind: int) -> float:
        """That of a guess of a class."""
        return self._right[kind] / self._all[kind]


class Chances:
    """Those of one sequence and one way to guess.

    A token is the likelier to be right, the more were right before it, and where it came another
    time, too: that is what classes are about.

    Args:
        common: Those of all sequences.
    """

    __slots__ = ("_all", "_common", "_right")

    def __init__(self, common: CommonChances) -> None:
        self._common = common
        self._right = [0.0] * (3 * _CLASSES)
        self._all = [0.0] * (3 * _CLASSES)

    def learn(self, before: int, *, right: bool, other: int = ALONE) -> None:
        """A guess was right or wasn't, behind so many that were.

        Args:
            before: How many.
            right: Whether it was.
            other: What came next another time.
        """
        kind = _kind(before, other)
        self._right[kind] = self._right[kind] * _MEMORY + right
        self._all[kind] = self._all[kind] * _MEMORY + 1
        self._common.learn(kind, right=right)

    def next(self, before: int, other: int = ALONE) -> float:
        """The chance that one guess is right."""
        return self._chance(_kind(before, other))

    def along(self, before: int, most: int, others: Sequence[int] = ()) -> list[float]:
        """The chances that all guesses up to the first, the second … are right, the likely ones.

        Args:
            before: So many have been right up to here.
            most: Of how many guesses.
            others: What came in the place of each another time, as far as that is known.
        """
        chances: list[float] = []
        known: dict[int, float] = {}
        chance = 1.0
        for place in range(most):
            kind = _kind(before + place, others[place] if place < len(others) else ALONE)
            each = known.get(kind)
            if each is None:
                each = known[kind] = self._chance(kind)
            chance *= each
            if chance < UNLIKELY:
                break
            chances.append(chance)
        return chances

    def _chance(self, kind: int) -> float:
        common = _WEIGHT * self._common.chance(kind)
        return (self._right[kind] + common) / (self._all[kind] + _WEIGHT)


def _kind(before: int, other: int) -> int:
    return other * _CLASSES + _CLASS[before if before < LONGEST else LONGEST]
