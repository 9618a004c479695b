"""How long prompts and answers are: a number, or a distribution of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from caudal.errors import ParameterError

_FORMS = "N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA"

_KINDS = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2}

_LONGEST = 16_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens.

    Attributes:
        kind: `fixed`, `uniform`, `normal` or `lognormal`.
        first: The number, the least one, the mean, or the median.
        second: The greatest one, the standard deviation, or that of the logarithm.
    """

    kind: str
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, name: str, written: str) -> Lengths:
        """Read a distribution as options have it, e.g. `128` or `uniform:64:256`.

        Raises:
            ParameterError: It is none; names the parameter `name`.
        """
        kind, *numbers = written.split(":") if ":" in written else ("fixed", written)
        wrong = ParameterError(name, f"{name} must be {_FORMS}, but is {written!r}.")
        try:
            values = [float(number) for number in numbers]
        except ValueError as error:
            raise wrong from error
        if len(values) != _KINDS.get(kind) or not all(math.isfinite(v) for v in values):
            raise wrong
        if not 1 <= values[0] <= _LONGEST:
            raise ParameterError(name, f"{name} must be at least 1, but is {written!r}.")
        if kind == "uniform" and not values[0] <= values[1] <= _LONGEST:
            raise wrong
        if kind in ("normal", "lognormal") and values[1] < 0:
            raise wrong
        return cls(kind, *values)

    @property
    def typical(self) -> int:
        """A length to reckon with: the number, the mean or the median."""
        middle = (self.first + self.second) / 2 if self.kind == "uniform" else self.first
        return round(middle)

    def draw(self, random: Random) -> int:
        """One length, at least 1."""
        match self.kind:
            case "uniform":
                value = float(random.randint(round(self.first), round(self.second)))
            case "normal":
                value = random.gauss(self.first, self.second)
            case "lognormal":
                value = random.lognormvariate(math.log(self.first), self.second)
            case _:
                value = self.first
        return min(max(1, round(value)), _LONGEST)
