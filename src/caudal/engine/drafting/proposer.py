"""What guesses tokens, and what it is shown of the sequences that it guesses for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caudal.engine.space import Space
from caudal.engine.steps import RowsAhead
from caudal.sampling_params import SamplingParams

USUAL_TOKENS = 4
"""A pass that computes no more of each sequence on average is one whose time counts: the others
compute pieces of prompts."""


@dataclass(slots=True)
class Asked:
    """A sequence that decodes, as a proposer sees it. Made once for each, and shown every time.

    Attributes:
        number: The sequence's own, never given twice: what a proposer remembers it by.
        tokens: Its prompt and the answer so far, all final: what was guessed and not drawn is
            never among them. The engine's own list: it only grows, and isn't to be changed.
        prompt: How many of them are the prompt.
        space: Who may share what it has.
        prediction: What its client thinks that the answer will be; empty where it says nothing.
        params: How its tokens are drawn.
        seed: Key of its random numbers, as in `SamplingRow`: who draws with the same ones as the
            model will is right more often where tokens are sampled.
        stream: Likewise.
        adapter: The executor's number of the adapter that it is computed with, or None.
        ahead: Says how the tokens that follow will be drawn, one behind the other.
        most: Most tokens to guess this time, one at least.
    """

    number: int
    tokens: Sequence[int]
    prompt: int
    space: Space
    prediction: Sequence[int]
    params: SamplingParams
    seed: int
    stream: int
    adapter: int | None
    ahead: Callable[[], RowsAhead]
    most: int = 1


class Proposer(Protocol):
    """Guesses what comes next. Called from the engine's thread, between iterations.

    Attributes:
        pass_seconds: What another guess for all sequences of an iteration has taken of late; 0
            where guesses cost next to nothing.
        seconds: What it has computed for, all together.
        sees_states: Whether it is to be shown what the model computes of sequences.
    """

    pass_seconds: float = 0.0
    seconds: float = 0.0
    sees_states: bool = False

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """Guess at what follows the tokens of sequences, all that may be guessed for at once.

        A sequence need not be asked for in every iteration, and may have grown by any number of
        tokens since it was last.

        Args:
            asked: One or more sequences.

        Returns:
            The tokens that follow each, at most `most`; empty where nothing is known.

        Raises:
            Exception: It is out of order; it isn't asked again.
        """

    def saw(self, asked: Asked, context: int, states: NDArray[np.float32]) -> None:
        """Take in what the model has computed of a sequence, where it `sees_states`.

        Args:
            asked: The sequence.
            context: Its tokens before.
            states: The final states of those that follow, shape (tokens, width).
        """
        return

    def ended(self, number: int) -> None:
        """A sequence that it may have been asked for has ended: what it has for it can go."""

    def close(self) -> None:
        """Release threads and memory. Safe to call twice."""


def recent(mean: float, seconds: float) -> float:
    """A mean of times that follows the latest, with another one; 0 is none yet.

    What takes longer is often something else that has run meanwhile; the first was the slowest.
    """
    if mean == 0.0:
        return seconds
    return mean + (seconds - mean) / (2 if seconds < mean else 16)
