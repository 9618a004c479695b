"""Which rates to measure, to find the greatest at which promises are kept."""

from __future__ import annotations

from collections.abc import Generator, Sequence

_FIRST = 1.0

_LEAST = 1 / 64

_MOST = 4096.0

_CLOSE = 1.1
"""The greatest rate that holds is known well enough if this many times it doesn't."""


def rates_to_measure(
    given: Sequence[float], first: float | None, *, stops: bool
) -> Generator[float, bool, None]:
    """Rates, each asked for with whether the promises held at the one before.

    Args:
        given: These, in order; if there are none, rates are doubled until the promises break, and
            then the range between is halved.
        first: Where to begin to look.
        stops: Whether the given ones end with the first that breaks the promises.
    """
    if given:
        for rate in given:
            holds = yield rate
            if stops and not holds:
                return
        return
    rate = first or _FIRST
    low, high = 0.0, 0.0
    while not (low and high):
        if (yield rate):
            low, rate = rate, rate * 2
        else:
            high, rate = rate, rate / 2
        if not _LEAST <= rate <= _MOST:
            return
    while high / low > _CLOSE:
        middle = (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle
