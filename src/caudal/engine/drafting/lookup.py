"""Texts that a sequence may go on to repeat, and how far along it is in them.

Text that is edited, quoted or summarised repeats what is there already; so do the keys of JSON and
the calls of a program (prompt lookup decoding). And what was asked before is likely to be answered
as it was before, as far as the prefix cache remembers.

A sequence *follows* a text: the token at the place where it is in it is the guess. Whether it was
right is seen from the answer as it grows, whether anything was computed for the guess or not, so
that what following is worth is known without trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence

from caudal.engine.drafting.chances import (
    AGREED,
    ALONE,
    DIFFERED,
    LONGEST,
    OF_TEXTS,
    Chances,
    CommonChances,
)
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.prefix_tree import PrefixTree
from caudal.engine.space import Space

STRIDE = 4096
"""Most tokens of a long prompt to take in at once: the rest follows in later iterations, as nobody
waits for milliseconds here."""

MOST_INDEXED = 65536
"""Most tokens of a sequence that are looked through, the first ones: some 200 bytes each."""

PLACES = 8
"""Most places that are compared, the latest ones."""

CONTINUATION = 64
"""Tokens that are read from the prefix cache at once."""


class LookupIndex:
    """Where a growing text has each run of `least` tokens.

    Args:
        text: The tokens; they may only grow.
        least: Tokens that must be the same.
        most: Tokens that are compared, to choose between places.

    Attributes:
        others: What came at each place another time, the one before it; of the first ones only, up
            to where runs are noted.
    """

    def __init__(self, text: Sequence[int], least: int, most: int) -> None:
        self._text = text
        self._least = least
        self._most = most
        self._latest: dict[tuple[int, ...], int] = {}  # by a run, the end of its latest place
        self._before = array("i", [0] * least)  # by a place's end, the one before it, or 0
        self.others = bytearray([ALONE] * least)
        self._next = least  # the end of the place to be taken in next

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Where the most of what is at the end of `tokens` stands before another token.

        Of places alike the latest counts.

        Returns:
            The place in the text of the token that follows, and how many before it are the same;
            zeros where there is none.
        """
        least = self._least
        self.take_in()
        if len(tokens) < least:
            return 0, 0
        place = self._latest.get(tuple(tokens[-least:]), 0)
        found, longest = 0, 0
        for _ in range(PLACES):
            if not place:
                break
            same = self._same(place, tokens)
            if same > longest:
                found, longest = place, same
                if same >= self._most:
                    break
            place = self._before[place]
        return found, longest

    def take_in(self) -> None:
        """Note the places of runs that end before the last token."""
        start = self._next
        stop = min(len(self._text), start + STRIDE, MOST_INDEXED)
        if stop <= start:
            return
        text, others = self._text, self.others
        least, latest, before = self._least, self._latest, self._before
        if stop == start + 1:
            run = tuple(text[start - least : start])
            other = latest.get(run, 0)
            before.append(other)
            others.append(_other(text, start, other))
            latest[run] = start
            self._next = stop
            return
        part = text[start - least : stop - 1]
        runs = zip(*(part[offset:] for offset in range(least)), strict=False)
        for place, each in enumerate(runs, start):
            other = latest.get(each, 0)
            before.append(other)
            others.append(_other(text, place, other))
            latest[each] = place
        self._next = stop

    def _same(self, place: int, tokens: Sequence[int]) -> int:
        """How many tokens before a place are those at the end."""
        text, end = self._text, len(tokens)
        same = self._least
        most = min(self._most, place, end)
        while same < most and text[place - 1 - same] == tokens[end - 1 - same]:
            same += 1
        return same


def _other(text: Sequence[int], place: int, other: int) -> int:
    if not other:
        return ALONE
    return AGREED if text[other] == text[place] else DIFFERED


class Follower(ABC):
    """A text that a sequence may be repeating.

    Args:
        tokens: The sequence's, which grow.
        chances: How likely it is to go on doing so.

    Attributes:
        same: Tokens that have been the same up to here; 0 where it repeats nothing.
        over: It will repeat nothing any more.
    """

    def __init__(self, tokens: Sequence[int], chances: Chances) -> None:
        self._tokens = tokens
        self._seen = len(tokens)
        self.chances = chances
        self.same = 0
        self.over = False
        self._place = 0
        self._text: Sequence[int] = ()
        self._others: Sequence[int] = b""  # what came at places of the text another time

    def advance(self) -> None:
        """Take note of the tokens by which the sequence has grown, and look where it is now."""
        tokens, text, end = self._tokens, self._text, len(self._tokens)
        same, place, others = self.same, self._place, self._others
        if same:
            seen = self._seen
            while seen < end and place < len(text):
                right = text[place] == tokens[seen]
                other = others[place] if place < len(others) else ALONE
                self._learn(same, right=right, other=other)
                if not right:
                    same = 0
                    break
                same, place, seen = same + 1, place + 1, seen + 1
            self.same, self._place = same, place
        self._seen = end
        if not same or place >= len(text):
            self.same = 0
            self._find()

    def guess(self, length: int) -> list[int]:
        """Up to so many tokens that come next; call `advance` before."""
        if not self.same:
            return []
        return list(self._text[self._place : self._place + length])

    def chance(self) -> float:
        """That of the first guess."""
        place, others = self._place, self._others
        return self.chances.next(self.same, others[place] if place < len(others) else ALONE)

    def along(self, most: int) -> list[float]:
        """The chances that all guesses up to the first, the second … are right, the likely ones."""
        return self.chances.along(self.same, most, self._others[self._place : self._place + most])

    def _learn(self, same: int, *, right: bool, other: int) -> None:
        self.chances.learn(same, right=right, other=other)

    @abstractmethod
    def _find(self) -> None:
        """Set text, place and `same`, if there is anything to follow."""


class OwnText(Follower):
    """Follows what the sequence has said, or been told, before.

    Args:
        tokens: The sequence's, which grow.
        chances: How likely it is to go on doing so.
        least: Tokens that must be the same.
        most: Tokens that are compared, to choose between places.
    """

    def __init__(self, tokens: Sequence[int], chances: Chances, least: int, most: int) -> None:
        super().__init__(tokens, chances)
        self._index = LookupIndex(tokens, least, most)
        self._others = self._index.others
        self._text = tokens
        self._find()

    def advance(self) -> None:
        """See `Follower`."""
        super().advance()
        if self.same:  # otherwise it was looked for, and that is done
            self._index.take_in()

    def guess(self, length: int) -> list[int]:
        """See `Follower`; what repeats itself within fewer tokens goes on to do so."""
        guess = super().guess(length)
        if guess and len(guess) < length:
            period = len(self._tokens) - self._place
            while len(guess) < length:
                guess.append(guess[len(guess) - period])
        return guess

    def _find(self) -> None:
        self._place, self.same = self._index.find(self._tokens)


class PredictedText(Follower):
    """Follows what the client thinks that the answer will be.

    Args:
        tokens: The sequence's, which grow.
        chances: How likely it is to go on doing so.
        prompt: How many of them are the prompt.
        prediction: The tokens.
        least: Tokens that must be the same.
        most: Tokens that are compared, to choose between places.

    Attributes:
        right: Tokens of the answer that came as predicted.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        chances: Chances,
        prompt: int,
        prediction: Sequence[int],
        least: int,
        most: int,
    ) -> None:
        super().__init__(tokens, chances)
        self._index = LookupIndex(prediction, least, most)
        self._others = self._index.others
        self._text = prediction
        self._seen = prompt
        self.same = LONGEST  # that it begins so is what the client says
        self.right = 0

    def _learn(self, same: int, *, right: bool, other: int) -> None:
        self.right += right
        super()._learn(same, right=right, other=other)

    def _find(self) -> None:
        self._place, self.same = self._index.find(self._tokens)


def tokens_as_predicted(prediction: Sequence[int], answer: Sequence[int]) -> int:
    """How many tokens of an answer came as predicted, whatever was guessed while it did."""
    least, most = Speculation().prompt_lookup_min, Speculation().prompt_lookup_max
    tokens: list[int] = []
    chances = Chances(CommonChances(OF_TEXTS))
    text = PredictedText(tokens, chances, 0, prediction, least, most)
    for token in answer:
        tokens.append(token)
        text.advance()
    return text.right


class CachedText(Follower):
    """Follows what came after the very same tokens before, as far as it is in the prefix cache.

    Args:
        tokens: The sequence's, which grow.
        chances: How likely it is to go on doing so.
        space: Who may share what it has.
        cache: The prefix cache.
    """

    def __init__(
        self, tokens: Sequence[int], chances: Chances, space: Space, cache: PrefixTree
    ) -> None:
        super().__init__(tokens, chances)
        self._cache = cache
        self._space = space
        self._find()

    def _find(self) -> None:
        self._text = self._cache.following(self._space, self._tokens, CONTINUATION)
        self._place = 0
        self.same = LONGEST if self._text else 0
        self.over = not self._text  # it goes where nobody has been
