"""A proposer that may fail at any time, and what goes on without it then.

Answers are the same with guesses as without, so nothing that goes wrong with them is a reason for
an answer, a batch or the engine to fail.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from caudal.engine.drafting.counts import DraftCounters
from caudal.engine.drafting.proposer import Asked, Proposer

logger = logging.getLogger(__name__)


class GuardedProposer:
    """A proposer, of which no call raises anything. Once it has failed it isn't asked again.

    Args:
        proposer: The proposer.
        counters: Count its failures.

    Attributes:
        works: Whether it is asked.
    """

    __slots__ = ("_counters", "_proposer", "works")

    def __init__(self, proposer: Proposer, counters: DraftCounters) -> None:
        self._proposer = proposer
        self._counters = counters
        self.works = True

    @property
    def sees_states(self) -> bool:
        """Whether it is to be shown what the model computes of sequences."""
        return self.works and self._proposer.sees_states

    @property
    def pass_seconds(self) -> float:
        """See `Proposer`."""
        return self._proposer.pass_seconds

    @property
    def seconds(self) -> float:
        """See `Proposer`."""
        return self._proposer.seconds

    def propose(self, asked: Sequence[Asked]) -> list[list[int]]:
        """Guess at what follows sequences; see `Proposer.propose`. Nothing, where that fails."""
        if self.works:
            try:
                return [
                    [index(token) for token in guess[: each.most]]
                    for each, guess in zip(asked, self._proposer.propose(asked), strict=True)
                ]
            except Exception:
                self._fail()
        return [[] for _ in asked]

    def saw(self, asked: Asked, context: int, states: NDArray[np.float32]) -> None:
        """Show what the model has computed of a sequence; see `Proposer.saw`."""
        if self.works:
            try:
                self._proposer.saw(asked, context, states)
            except Exception:
                self._fail()

    def ended(self, number: int) -> None:
        """A sequence has ended; said where it has failed, too: what it has of that is memory."""
        try:
            self._proposer.ended(number)
        except Exception:
            self._fail()

    def close(self) -> None:
        """Close it."""
        try:
            self._proposer.close()
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """Something was raised: say so once, and count it."""
        self._counters.failures += 1
        if self.works:
            self.works = False
            logger.exception("what guesses tokens has failed; answers go on without it")
