"""How guesses are drawn for an answer that is sampled: as it is, or the likeliest token instead.

Drawn with the random number of the model's own token, a guess is right wherever both distributions
are alike: always, of a model that guesses for itself. Where they differ much, it may well be
another token, and the likeliest is right more often. Which of both is better is measured: at the
first place behind an answer's tokens both are drawn, and what comes says which was right.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from caudal.backends.executor import SampledToken, SamplingRow
from caudal.sampling_params import SamplingParams

_OWN, _COMMON = 1 / 16, 1 / 64
"""How much of a measure the latest observation is: of a sequence's, and of all sequences'."""


class Rates:
    """How often guesses were right that were drawn, and that were the likeliest."""

    __slots__ = ("drawn", "likeliest")

    def __init__(self, drawn: float = 0.5, likeliest: float = 0.5) -> None:
        self.drawn = drawn
        self.likeliest = likeliest

    def learn(self, drawn: bool, likeliest: bool, share: float) -> None:
        """Take one more observation in."""
        self.drawn += (drawn - self.drawn) * share
        self.likeliest += (likeliest - self.likeliest) * share


class GuessRows:
    """How guesses are drawn for one sequence.

    Args:
        common: The rates of all sequences, which what is known of this one begins with.
    """

    __slots__ = ("_common", "_first", "_likeliest", "_rates")

    def __init__(self, common: Rates) -> None:
        self._common = common
        self._rates = Rates(common.drawn, common.likeliest)
        self._likeliest: SamplingParams | None = None
        self._first: tuple[int, int] | None = None

    def first(self, row: SamplingRow) -> tuple[SamplingRow, ...]:
        """What to draw at the first place: in both ways, where they are two.

        Args:
            row: How the model draws there.
        """
        if row.params.temperature == 0.0:
            return (row,)
        other = copy(row)
        other.params = self._params(row.params)
        return row, other

    def take(self, drawn: Sequence[SampledToken]) -> int:
        """The guess, of what was drawn at the first place."""
        if len(drawn) == 1:
            return drawn[0].token
        self._first = drawn[0].token, drawn[1].token
        return self._first[self._rates.likeliest > self._rates.drawn]

    def later(self, row: SamplingRow) -> SamplingRow:
        """What to draw at a place behind that; see `first`."""
        if row.params.temperature and self._rates.likeliest > self._rates.drawn:
            row.params = self._params(row.params)
        return row

    def learn(self, token: int) -> None:
        """This is the token at the first place."""
        if self._first is not None:
            drawn, likeliest = (guess == token for guess in self._first)
            self._rates.learn(drawn, likeliest, _OWN)
            self._common.learn(drawn, likeliest, _COMMON)
            self._first = None

    def _params(self, params: SamplingParams) -> SamplingParams:
        if self._likeliest is None:
            self._likeliest = replace(params, temperature=0.0)
        return self._likeliest
