"""How many of the tokens that could be guessed are worth computing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

PATIENCE = 16
"""Guesses by which it may get worse before it gets better: no more are considered."""

MARGIN = 1.02
"""Guesses are left alone that would make answers faster by less: measuring isn't exact."""


def choose_lengths(
    chances: Sequence[Sequence[float]],
    sequences: int,
    room: int,
    factor: Callable[[float], float],
    *,
    repeats: bool,
) -> list[int]:
    """How many of each sequence's guesses to take.

    An iteration brings a sequence one token, and one more for each guess that is right; it takes
    all of them longer. What is chosen makes the product of all sequences' rates as large as it can
    be, so that nobody waits long for what brings others little (proportional fairness). Where one
    sequence runs, or all are guessed for alike, that is the most tokens a second.

    Args:
        chances: For each sequence that is guessed for, the chances that all of its guesses up to
            the first, the second … are right.
        sequences: How many run, guessed for or not.
        room: Most guesses altogether.
        factor: How many times longer an iteration takes with so many guesses than without.
        repeats: Where a guess is wrong, those before it are computed once more.
    """
    steps: list[tuple[float, int, float]] = []
    for number, along in enumerate(chances):
        tokens = 1.0
        for place, chance in enumerate(along):
            gain = math.log1p(chance / tokens)
            if gain < 1e-3:
                break
            before = along[place - 1] if place else 1.0
            rows = 1.0 + (before - chance) * (place + 1) if repeats else 1.0
            steps.append((gain, number, rows))
            tokens += chance
    steps.sort(key=lambda step: -step[0])  # stable: a sequence's own remain in order
    del steps[room:]
    best, taken = sequences * math.log(MARGIN), 0
    sum_of_gains, rows = 0.0, 0.0
    for place, (gain, _, more) in enumerate(steps, 1):
        sum_of_gains += gain
        rows += more
        worth = sum_of_gains - sequences * math.log(factor(rows))
        if worth > best:
            best, taken = worth, place
        elif place >= taken + PATIENCE:
            break
    lengths = [0] * len(chances)
    for _, number, _ in steps[:taken]:
        lengths[number] += 1
    return lengths
