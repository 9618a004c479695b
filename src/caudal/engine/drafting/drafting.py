"""Who is guessed for in an iteration, by whom, and how far."""

from __future__ import annotations

import logging
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from caudal.engine.drafting.lookup import Lookup
from caudal.engine.drafting.proposer import Asked, Proposer
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.sequence import Sequence
from caudal.engine.steps import RowsAhead
from caudal.errors import ParameterError

logger = logging.getLogger(__name__)


class Drafting:
    """Gives sequences that decode their drafts, and is told what became of them.

    Args:
        speculation: How it guesses; None: not at all.
        proposer: What guesses where that isn't a look-up.

    Raises:
        ParameterError: There is nothing that guesses as it is to be done.
    """

    def __init__(self, speculation: Speculation | None, proposer: Proposer | None) -> None:
        if speculation is not None and proposer is None:
            if speculation.method != "ngram":
                raise ParameterError(
                    "speculative", f"speculative: this model can't guess by {speculation}."
                )
            proposer = Lookup(speculation.prompt_lookup_min, speculation.prompt_lookup_max)
        self._proposer = None if speculation is None else proposer
        self._unused = proposer if speculation is None else None
        self._most = 0 if speculation is None else speculation.num_speculative_tokens
        self._numbers = count()
        self._asked: dict[Sequence, Asked] = {}
        self._guessed: set[Sequence] = set()  # those whose draft is a guess
        self.proposed = 0
        self.accepted = 0

    def draft(self, running: SequenceOf[Sequence], room: int) -> None:
        """Give drafts to those that decode, where any may have one.

        Args:
            running: Those that run.
            room: Most tokens to guess for all of them together.
        """
        proposer = self._proposer
        if proposer is None or room <= 0:
            return
        wanting: list[Sequence] = []
        shown: list[Asked] = []
        for seq in running:
            if not self._may_be_guessed_for(seq):
                continue
            left = seq.group.max_output_tokens - len(seq.output) - 1  # one is drawn behind them
            if left > 0:
                asked = self._asked.get(seq)
                if asked is None:
                    asked = self._asked[seq] = self._show(seq)
                asked.most = min(left, self._most)
                wanting.append(seq)
                shown.append(asked)
        if not wanting:
            return
        share = max(1, room // len(wanting))
        for asked in shown:
            asked.most = min(asked.most, share)
        try:
            guesses = proposer.propose(shown)
        except Exception:  # answers go on without
            logger.exception("what guesses tokens has failed; it isn't asked again")
            self._proposer, self._unused = None, proposer
            return
        for seq, asked, guess in zip(wanting, shown, guesses, strict=True):
            if room <= 0:
                break
            seq.draft = list(guess[: min(asked.most, room)])
            room -= len(seq.draft)
            self._guessed.add(seq)

    @property
    def sees_states(self) -> bool:
        """Whether what guesses is to be shown what the model computes of sequences."""
        return self._proposer is not None and self._proposer.sees_states

    def saw(self, seq: Sequence, context: int, states: NDArray[np.float32]) -> None:
        """These are the final states of a sequence's tokens behind `context` others."""
        if self._proposer is None or not seq.group.speculates:
            return
        asked = self._asked.get(seq)
        if asked is None:
            asked = self._asked[seq] = self._show(seq)
        self._proposer.saw(asked, context, states)

    def learn(self, seq: Sequence, proposed: int, accepted: int) -> None:
        """So many of a sequence's guesses were computed, and so many of them right."""
        if seq in self._guessed:  # what a grammar forces is no guess
            self._guessed.remove(seq)
            self.proposed += proposed
            self.accepted += accepted

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended."""
        self._guessed.discard(seq)
        asked = self._asked.pop(seq, None)
        if asked is not None and self._proposer is not None:
            self._proposer.ended(asked.number)

    def close(self) -> None:
        """Close what guesses."""
        for proposer in (self._proposer, self._unused):
            if proposer is not None:
                proposer.close()

    @staticmethod
    def _may_be_guessed_for(seq: Sequence) -> bool:
        """Whether it decodes, and nothing is to be computed already that would be in the way."""
        return (
            len(seq.tokens) - seq.memory.length == 1
            and len(seq.output) > 0
            and not seq.draft
            and len(seq.branches) == 1
            and seq.group.speculates
        )

    def _show(self, seq: Sequence) -> Asked:
        group = seq.group
        assert group.params is not None
        return Asked(
            number=next(self._numbers),
            tokens=seq.tokens,
            prompt=len(group.prompt),
            space=group.space,
            prediction=group.prediction,
            params=group.params,
            seed=group.seed,
            stream=seq.index,
            adapter=group.adapter,
            ahead=partial(RowsAhead, seq),
        )
