"""Prompt lookup: what followed the same tokens before, in the sequence itself.

Text that is edited, quoted or summarised repeats what is there already; so do the keys of JSON and
the calls of a program. (Prompt lookup decoding, as in vLLM's `ngram`; nothing is computed for it.)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from caudal.engine.drafting.proposer import Asked, Proposer

STRIDE = 4096
"""Most tokens of a long prompt to take in at once: the rest follows in later iterations, as nobody
waits for milliseconds here."""

MOST_INDEXED = 65536
"""Most tokens of a sequence that are looked through, the first ones: some 200 bytes each."""

PLACES = 8
"""Most places that are compared, the latest ones."""


class LookupIndex:
    """Where a growing sequence of tokens has each run of `least` tokens.

    Args:
        tokens: The sequence; it may only grow.
        least: Tokens that must be the same.
        most: Tokens that are compared, to choose between places.
    """

    def __init__(self, tokens: Sequence[int], least: int, most: int) -> None:
        self._tokens = tokens
        self._least = least
        self._most = most
        self._latest: dict[tuple[int, ...], int] = {}  # by a run, the end of its latest place
        self._before = array("i", [0] * least)  # by a place's end, the one before it, or 0
        self._stride_ends = least  # the place whose end comes next

    def guess(self, length: int) -> Sequence[int]:
        """Up to `length` tokens that followed where the most of what is at the end stood before.

        Of places alike the latest counts.
        """
        tokens, least = self._tokens, self._least
        end = len(tokens)
        if end <= least:
            return ()
        self._take_in(end)
        place = self._latest.get(tuple(tokens[end - least :]), 0)
        best, found = 0, 0
        for _ in range(PLACES):
            if not place:
                break
            same = self._same(place, end)
            if same > best:
                best, found = same, place
                if same >= self._most:
                    break
            place = self._before[place]
        if not found:
            return ()
        guess = list(tokens[found : found + length])
        period = end - found
        while len(guess) < length:  # what repeats itself so closely goes on to
            guess.append(guess[len(guess) - period])
        return guess

    def _take_in(self, end: int) -> None:
        """Note the places of runs that end before the last token."""
        least, latest, before, tokens = self._least, self._latest, self._before, self._tokens
        start = self._stride_ends
        stop = min(end, start + STRIDE, MOST_INDEXED)
        if stop <= start:
            return
        part = tokens[start - least : stop - 1]
        runs = zip(*(part[offset:] for offset in range(least)), strict=False)
        for place, run in enumerate(runs, start):
            before.append(latest.get(run, 0))
            latest[run] = place
        self._stride_ends = stop

    def _same(self, place: int, end: int) -> int:
        """How many tokens before a place are those before the end."""
        tokens = self._tokens
        same = self._least
        most = min(self._most, place)
        while same < most and tokens[place - 1 - same] == tokens[end - 1 - same]:
            same += 1
        return same


class Lookup(Proposer):
    """Looks up what followed before, for any number of sequences.

    Args:
        least: Tokens that must be the same.
        most: Tokens that are compared, to choose between places.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._indices: dict[int, LookupIndex] = {}

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """See `Proposer`."""
        return [self._index(each).guess(each.most) for each in asked]

    def ended(self, number: int) -> None:
        """See `Proposer`."""
        self._indices.pop(number, None)

    def close(self) -> None:
        """See `Proposer`."""
        self._indices.clear()

    def _index(self, asked: Asked) -> LookupIndex:
        index = self._indices.get(asked.number)
        if index is None:
            index = LookupIndex(asked.tokens, self._least, self._most)
            self._indices[asked.number] = index
        return index
