"""How likely guesses are to be right, learnt from those that were and those that weren't."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 48
"""Tokens that have been right before; more make no difference."""

_BOUNDS = (4, 6, 9, 16, 32)
_CLASS = [sum(right >= bound for bound in _BOUNDS) for right in range(LONGEST + 1)]
_CLASSES = len(_BOUNDS) + 1

_MEMORY = 0.93
"""What is left of one observation with the next: some fourteen count."""
_LONG_MEMORY = 0.998
UNLIKELY = 0.1
"""Guesses less likely than that are worth nothing."""

_WEIGHT = 2.0
"""Observations that those of all others count as."""


_FIRST_WEIGHT = 8.0
"""Observations that what is supposed before there are any counts as."""

OF_TEXTS = (0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""What is supposed of guesses by looking up, by class."""

OF_MODELS = (0.7,) * _CLASSES
"""Of those that are computed."""


class CommonChances:
    """Those of all sequences together: what is supposed of one of which nothing is known.

    Args:
        first: The chance of a guess of each class about which nothing is known at all.
    """

    def __init__(self, first: Sequence[float]) -> None:
        self._right = [chance * _FIRST_WEIGHT for chance in first]
        self._all = [_FIRST_WEIGHT] * _CLASSES

    def learn(self, kind: int, *, right: bool) -> None:
        """A guess of a class was right, or wasn't."""
        self._right[kind] = self._right[kind] * _LONG_MEMORY + right
        self._all[kind] = self._all[kind] * _LONG_MEMORY + 1

    def chance(self, kind: int) -> float:
        """That of a guess of a class."""
        return self._right[kind] / self._all[kind]


class Chances:
    """Those of one sequence and one way to guess.

    A token is the likelier to be right, the more were right before it: that is what classes are
    about.

    Args:
        common: Those of all sequences.
    """

    __slots__ = ("_all", "_common", "_right")

    def __init__(self, common: CommonChances) -> None:
        self._common = common
        self._right = [0.0] * _CLASSES
        self._all = [0.0] * _CLASSES

    def learn(self, before: int, *, right: bool) -> None:
        """A guess was right or wasn't, behind so many that were."""
        kind = _CLASS[before if before < LONGEST else LONGEST]
        self._right[kind] = self._right[kind] * _MEMORY + right
        self._all[kind] = self._all[kind] * _MEMORY + 1
        self._common.learn(kind, right=right)

    def next(self, before: int) -> float:
        """The chance that one guess is right."""
        kind = _CLASS[before if before < LONGEST else LONGEST]
        return (self._right[kind] + _WEIGHT * self._common.chance(kind)) / (
            self._all[kind] + _WEIGHT
        )

    def along(self, before: int, most: int) -> list[float]:
        """The chances that all guesses up to the first, the second … are right, the likely ones.

        Args:
            before: So many have been right up to here.
            most: Of how many guesses.
        """
        chances: list[float] = []
        chance, kind, each = 1.0, -1, 1.0
        for place in range(before, before + most):
            other = _CLASS[place if place < LONGEST else LONGEST]
            if other != kind:
                kind, each = other, self.next(place)
            chance *= each
            if chance < UNLIKELY:
                break
            chances.append(chance)
        return chances
