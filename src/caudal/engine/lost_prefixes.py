"""What prompts that break their own prefix would have had from the cache, but for a few tokens.

A client that writes a date, a hash or a countdown near the top of each prompt has all behind it
computed anew: the prompt agrees with one that is cached before a short difference and again behind
it, where keys and values of other tokens are worthless. That is found out when a prompt starts,
from the prefix cache alone, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from caudal.engine.nodes import Match, Node
from caudal.engine.prefix_tree import PrefixTree, common_prefix
from caudal.engine.space import Space

POSITIONS = (0, 64, 256, 1024, 4096, 16384)
"""Where differences are told apart by: each is in the last of these that isn't behind it."""

MIN_LOST = 64
"""Fewest tokens behind a difference that count as lost: less may be chance, and costs little."""

MAX_DIFFERENCE = 64
"""Most tokens of a difference, in either prompt."""

MAX_DIFFERENCES = 4
"""Most differences looked for in one prompt."""

_ANCHOR = 16
"""Tokens in a row that must be the same behind a difference."""

_LINES = 4
"""Cached prompts that one is compared with: those that have come last where they part."""


class LostPrefix(msgspec.Struct, frozen=True, array_like=True):
    """What a prompt lost by breaking its own prefix.

    Attributes:
        position: The first token that differs.
        tokens: Tokens behind it that are cached behind other ones.
        differing: Tokens that differ there.
        cached: Tokens that the cached prompt has in their place.
    """

    position: int
    tokens: int
    differing: int
    cached: int

    @property
    def bucket(self) -> int:
        """The one of `POSITIONS` that its position counts for."""
        return max(start for start in POSITIONS if start <= self.position)


def find_lost(
    cache: PrefixTree, space: Space, keys: Sequence[int], limit: int, match: Match
) -> LostPrefix | None:
    """What a sequence would have had from the cache, but for short differences.

    Some microseconds where there is nothing near, and some hundred where thousands of tokens are
    lost, which take seconds to compute.

    Args:
        cache: The cache.
        space: Where the sequence looks for its prefix.
        keys: The sequence's.
        limit: Most tokens that may be taken from the cache.
        match: What was found of it.
    """
    first: tuple[int, int, int] | None = None
    lost = 0
    for _ in range(MAX_DIFFERENCES):
        start = 0 if match.deepest is None else match.deepest.end
        if limit - max(start, match.total) < MIN_LOST + _ANCHOR:
            break
        found = _rewritten(cache, space, keys, start, match.deepest)
        if found is None:
            break
        position, end, end_of_other, other = found
        rewritten = [*keys[:position], *other, *keys[end:]]
        limit += end_of_other - end
        match = cache.match(space, rewritten, limit, match.deepest)
        gained = match.total - end_of_other
        if gained < MIN_LOST:
            break
        lost += gained
        keys = rewritten
        if first is None:
            first = position, end - position, end_of_other - position
    return None if first is None else LostPrefix(first[0], lost, first[1], first[2])


def _rewritten(
    cache: PrefixTree, space: Space, keys: Sequence[int], start: int, deepest: Node | None
) -> tuple[int, int, int, Sequence[int]] | None:
    """The difference from a cached sequence behind which the next tokens are the same.

    Returns:
        Where it begins, where it ends in `keys` and in the other, and what the other has there.
    """
    reach = 2 * MAX_DIFFERENCE + _ANCHOR
    mine = list(keys[start : start + reach])
    for other in islice(cache.lines_behind(space, deepest, reach), _LINES):
        same = common_prefix(mine, other)
        if start + same == 0:
            continue  # they have nothing in common that could have been broken
        ends = _ends(mine, other, same)
        if ends is not None:
            end, end_of_other = ends
            return start + same, start + end, start + end_of_other, other[same:end_of_other]
    return None


def _ends(mine: Sequence[int], other: Sequence[int], start: int) -> tuple[int, int] | None:
    """Where a difference that begins at `start` ends in each of two sequences."""
    for skip in (MAX_DIFFERENCE, MAX_DIFFERENCE // 4):
        end = start + skip
        anchor = mine[end : end + _ANCHOR]
        if len(anchor) < _ANCHOR:
            continue
        place = _find(anchor, other, start, preferred=end)
        if place is None:
            continue
        while end > start and place > start and mine[end - 1] == other[place - 1]:
            end -= 1
            place -= 1
        if place - start <= MAX_DIFFERENCE:
            return end, place
    return None


def _find(anchor: Sequence[int], other: Sequence[int], start: int, *, preferred: int) -> int | None:
    """Where `anchor` is in `other`, at `preferred` if it is there too."""
    size = len(anchor)
    if other[preferred : preferred + size] == anchor:
        return preferred
    first = anchor[0]
    for place in range(start, len(other) - size + 1):
        if other[place] == first and other[place : place + size] == anchor:
            return place
    return None
