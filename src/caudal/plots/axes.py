"""Axes: which numbers stand at them, and where a value is between its ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_AIMED_TICKS = 6
"""About so many numbers stand at an axis."""


def short_number(value: float) -> str:
    """Three digits that count, and a letter for thousands: 0.00125, 12.5, 128k, 1.5M."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = abs(value)
    for limit, factor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{_three_digits(value / factor)}{letter}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: What stands beside it, with the unit.
        log: Logarithmic, where all values are positive; linear otherwise.
        low: Where it begins; None: at the least value, or at 0 where that isn't far.
        high: Where it ends; None: at the greatest value.
        format: How a number is written.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    format: Callable[[float], str] = short_number

    def scale(self, values: Iterable[float], start: float, end: float) -> Scale:
        """Spread values from one coordinate to another; what isn't finite is left out."""
        finite = [value for value in values if math.isfinite(value)]
        if self.log and finite and min(finite) > 0 and (self.low is None or self.low > 0):
            return _logarithmic(self, finite, start, end)
        return _linear(self, finite, start, end)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with its ends.

    Attributes:
        low: Value at `start`.
        high: Value at `end`.
        start: Coordinate of `low`.
        end: Coordinate of `high`.
        ticks: Values that are written at it.
        log: Whether it is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    log: bool

    def __call__(self, value: float) -> float:
        """The coordinate of a value; those beyond the ends are at the ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _linear(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    low = axis.low if axis.low is not None else min(values, default=0.0)
    high = axis.high if axis.high is not None else max(values, default=1.0)
    if axis.low is None and 0 < low < 0.5 * high:
        low = 0.0
    if not low < high:
        low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
    step = _round_step((high - low) / _AIMED_TICKS)
    low = low if axis.low is not None else step * math.floor(low / step + 1e-9)
    high = high if axis.high is not None else step * math.ceil(high / step - 1e-9)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Rounded, or 3 x 0.1 would be written with sixteen digits.
    ticks = [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return Scale(low, high, start, end, ticks, log=False)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(each for each in (1, 2, 5, 10) if each * power >= step * (1 - 1e-9))


def _logarithmic(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    low = axis.low or min(values)
    high = max(axis.high or max(values), low)
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    if axis.low is None:
        low = max(mark for mark in marks if mark <= low * (1 + 1e-9))
    if axis.high is None:
        high = min(mark for mark in marks if mark >= high * (1 - 1e-9) and mark > low)
    elif not low < high:
        high = 10 * low
    ticks = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
    every = math.ceil(len(ticks) / (2 * _AIMED_TICKS))
    return Scale(low, high, start, end, ticks[::every], log=True)
