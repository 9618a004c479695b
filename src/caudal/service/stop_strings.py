"""Finding stop strings in text that arrives in pieces.

A stop string may straddle tokens or end inside one. So text that could still turn out to be the
beginning of a stop string is held back until the next piece decides. Which match counts does not
depend on how the text was cut into pieces: it is the one that is complete first, and among those
the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Pattern:
    """One stop string's automaton (Knuth, Morris, Pratt: SIAM J. Comput. 6, 1977)."""

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # _borders[k]: length of the longest proper prefix of text[:k + 1] that also ends it.
        self._borders = [0] * len(text)
        border = 0
        for index in range(1, len(text)):
            while border and text[index] != text[border]:
                border = self._borders[border - 1]
            border += text[index] == text[border]
            self._borders[index] = border

    def feed(self, piece: str) -> int | None:
        """Read `piece`; return where in it the stop string is complete (exclusive), if it is."""
        text, borders, matched = self.text, self._borders, self.matched
        position, length = 0, len(piece)
        while position < length:
            if matched == 0:  # the usual case: nothing pending, so skip to the first candidate
                position = piece.find(text[0], position)
                if position < 0:
                    break
            char = piece[position]
            while matched and char != text[matched]:
                matched = borders[matched - 1]
            matched += char == text[matched]
            position += 1
            if matched == len(text):
                return position
        self.matched = matched
        return None


class StopMatcher:
    """Watches one text for stop strings. `feed` it pieces until it reports a match."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._patterns = [_Pattern(text) for text in stop]

    @property
    def held_back(self) -> int:
        """Characters at the end of the text so far that may be the beginning of a stop string."""
        return max((pattern.matched for pattern in self._patterns), default=0)

    def feed(self, piece: str) -> tuple[int, str] | None:
        """Read the next piece of the text.

        Returns:
            Where in `piece` a stop string is complete (exclusive) and which one, or None.
            After a match, the matcher must not be fed again.
        """
        match: tuple[int, str] | None = None
        for pattern in self._patterns:
            end = pattern.feed(piece)
            if end is not None and (
                match is None or (end, -len(pattern.text)) < (match[0], -len(match[1]))
            ):
                match = (end, pattern.text)
        return match
