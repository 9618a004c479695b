"""What has become of guesses, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.engine.drafting.speculation import MAX_PROPOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Counters; they only ever grow. Names are vLLM's.

    Attributes:
        drafts: Times that tokens were guessed for a sequence.
        proposed: Tokens guessed and computed.
        accepted: Those that were right.
        accepted_at: The same by position in the guess.
        seconds: What guessing has computed for: a draft model, or a layer of the model's own.
        failures: Times that what guesses has failed.
    """

    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_at: Sequence[int] = (0,) * MAX_PROPOSED
    seconds: float = 0.0
    failures: int = 0


class DraftCounters:
    """Counts.

    Attributes:
        failures: Times that what guesses has failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._drafts = self._proposed = self._accepted = 0
        self._accepted_at = [0] * MAX_PROPOSED

    def count(self, proposed: int, right: int) -> None:
        """So many tokens were guessed at once for a sequence, and so many, the first, right."""
        self._drafts += 1
        self._proposed += proposed
        self._accepted += right
        for place in range(right):
            self._accepted_at[place] += 1

    @property
    def counts(self) -> DraftCounts:
        """The counts now. Safe to take from other threads."""
        return DraftCounts(
            drafts=self._drafts,
            proposed=self._proposed,
            accepted=self._accepted,
            accepted_at=tuple(self._accepted_at),
            failures=self.failures,
        )
