"""What models that guess have in common, smaller ones and layers of the model itself.

They follow the sequences that they are asked for, with a memory of their own, and guess for all of
them in one batch, place by place. How a guess is drawn is in `guess_rows.py`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Generic, TypeVar

from caudal.backends.executor import Batch, Executor, StepResult
from caudal.engine.drafting.guess_rows import GuessRows, Rates
from caudal.engine.drafting.proposer import USUAL_TOKENS, Asked, Proposer, recent
from caudal.engine.memory import Memory
from caudal.engine.steps import RowsAhead
from caudal.engine.tables import SequenceMemory
from caudal.engine.turns import NoTurns, Turns


class Followed:
    """What a model that guesses has of a sequence.

    Attributes:
        asked: The sequence.
        memory: What is computed of it.
        drawing: How guesses are drawn.
    """

    __slots__ = ("asked", "drawing", "memory")

    def __init__(self, asked: Asked, memory: SequenceMemory, drawing: GuessRows) -> None:
        self.asked = asked
        self.memory = memory
        self.drawing = drawing


AnyFollowed = TypeVar("AnyFollowed", bound=Followed)


@dataclass(slots=True)
class Turn(Generic[AnyFollowed]):
    """A sequence in a round of guesses.

    Attributes:
        followed: What there is of it.
        rows: How guesses are drawn.
        guesses: Those that there are.
    """

    followed: AnyFollowed
    rows: RowsAhead
    guesses: list[int]


class GuessingModel(Proposer, Generic[AnyFollowed]):
    """Guesses (see `Proposer`) by computing.

    Args:
        executor: Runs the model. This owns it and closes it.
        memory: Where what it has computed lives.
        max_tokens: Most tokens that it computes at once, so that prompts it has yet to compute
            don't hold up everyone else's next token.
        eos_token_ids: Tokens that end an answer unless a request ignores them.
        turns: Whose turn it is to compute; None: nobody else computes.
        clock: Seconds that never go back.

    Attributes:
        pass_seconds: See `Proposer`.
        seconds: Likewise.
        memory: Where what it has computed lives.
    """

    def __init__(
        self,
        executor: Executor,
        memory: Memory,
        *,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        turns: Turns | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self.memory = memory
        self._max_tokens = max_tokens
        self._eos_token_ids = eos_token_ids
        self._turns = NoTurns() if turns is None else turns
        self._clock = clock
        self._rates = Rates()
        self._followed: dict[int, AnyFollowed] = {}  # who was asked for last comes last

    def propose(self, asked: SequenceOf[Asked]) -> list[list[int]]:
        """Guess what follows sequences; see `Proposer.propose`.

        There are no guesses for a sequence of which not all is computed yet, or that there is no
        room for.
        """
        guesses: list[list[int]] = [[] for _ in asked]
        self._turns.take()
        try:
            self._guess(asked, guesses)
        except Exception:
            for each in asked:
                self._drop(each.number, keep=False)
            raise
        finally:
            if self._turns.give_back():
                self._executor.rest()
        return guesses

    def ended(self, number: int) -> None:
        """A sequence has ended, or waits again: what it has here is given back, to the cache."""
        self._drop(number, keep=True)

    def close(self) -> None:
        """Close the executor. Safe to call twice."""
        self._executor.close()

    @abstractmethod
    def _guess(self, asked: SequenceOf[Asked], guesses: SequenceOf[list[int]]) -> None:
        """Guess what follows sequences.

        Args:
            asked: The sequences.
            guesses: Those for each, to be added to.
        """

    @abstractmethod
    def _lacking(self, asked: Asked) -> int:
        """Tokens of a sequence that are still to be computed, as far as is known."""

    def _settle(self, followed: AnyFollowed, *, keep: bool) -> None:
        """Let go of what is computed of guesses: the sequence is given up.

        Args:
            followed: What there is of it.
            keep: What is left goes to the cache.
        """

    def _shortest_first(self, asked: SequenceOf[Asked]) -> list[int]:
        """The order in which sequences are computed: prompts have what others leave."""
        return sorted(range(len(asked)), key=lambda place: self._lacking(asked[place]))

    def _most(self, asked: Asked) -> int:
        """Most guesses for a sequence."""
        return asked.most

    def _take(self, turn: Turn[AnyFollowed], token: int) -> bool:
        """Note a guess; returns whether another may follow it."""
        asked = turn.followed.asked
        turn.guesses.append(token)
        if token in self._eos_token_ids and not asked.params.ignore_eos:
            return False
        return len(turn.guesses) < self._most(asked) and turn.rows.take(token)

    def _execute(self, batch: Batch) -> SequenceOf[StepResult]:
        """Run a batch, and see what it takes."""
        began = self._clock()
        results = self._executor.execute(batch)
        seconds = self._clock() - began
        self.seconds += seconds
        if batch.num_tokens <= USUAL_TOKENS * len(batch.steps):  # no prompts among them
            self.pass_seconds = recent(self.pass_seconds, seconds)
        if len(results) != len(batch.steps):
            raise RuntimeError(f"{len(results)} results for {len(batch.steps)} sequences")
        return results

    def _finds_room(
        self, held: SequenceMemory, length: int, asking: set[int], *, proposes: bool = False
    ) -> bool:
        """Take what tokens up to `length` need, if need be of sequences that nobody asks for now,
        those first that were asked for the longest time ago.
        """
        while not self.memory.extend(held, length, proposes=proposes):
            idle = next(
                (
                    number
                    for number, each in self._followed.items()
                    if number not in asking and each.memory.blocks
                ),
                None,
            )
            if idle is None:
                return False
            self._drop(idle, keep=True)
        return True

    def _drop(self, number: int, *, keep: bool) -> None:
        """Give back what there is of a sequence.

        Args:
            number: The sequence's.
            keep: Leave it in the cache.
        """
        followed = self._followed.pop(number, None)
        if followed is None:
            return
        self._settle(followed, keep=keep)
        asked = followed.asked
        self.memory.close(followed.memory, asked.space, asked.tokens, asked.prompt, keep=keep)
