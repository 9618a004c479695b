"""A model's own layer that predicts a token further ahead (multi-token prediction).

DeepSeek-V3, arXiv 2412.19437. It takes a state of the model with the token behind it, and predicts
the token behind that; for more tokens it goes on from the state that it has left itself, as vLLM
and llama.cpp do. It attends to what it has taken before, whose keys and values it has a memory for,
computed of the model's own states: those of guesses are computed anew once they are tokens.

It follows a sequence from the first state that it is shown: where a prompt's beginning was cached,
or is too long ago, from behind that. States wait until they are computed with, which they are when
there is to be a guess; so many may wait and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import Batch, Executor, SequenceStep, StepResult
from caudal.engine.drafting.guess_rows import GuessRows
from caudal.engine.drafting.guessing_model import Followed, GuessingModel, Turn
from caudal.engine.drafting.proposer import Asked
from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.steps import RowsAhead
from caudal.engine.tables import SequenceMemory
from caudal.engine.turns import Turns

MOST_SHOWN = 512
"""States of a sequence that wait at most, and an iteration's: the latest of a prompt."""

STATES_EACH = 64
"""States that may wait of each sequence where all that may run have as many."""


def most_states(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Most states that may wait, of all sequences together.

    Args:
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most tokens of an iteration.
    """
    return max(MOST_SHOWN, STATES_EACH * max_num_seqs) + max_num_batched_tokens


class _Followed(Followed):
    """What there is of a sequence.

    Attributes:
        first: The position of the first state that is computed with: `memory` has the keys and
            values from there on.
        shown: States behind those, which wait, in pieces; shape (tokens, width) each.
        waiting: How many there are.
        end: The position behind the last of them.
        latest: The position of the first of the latest guesses; None before there are any.
    """

    __slots__ = ("end", "first", "latest", "shown", "waiting")

    def __init__(
        self, asked: Asked, memory: SequenceMemory, first: int, drawing: GuessRows
    ) -> None:
        super().__init__(asked, memory, drawing)
        self.latest: int | None = None
        self.first = first
        self.shown: list[NDArray[np.float32]] = []
        self.waiting = 0
        self.end = first

    @property
    def computed(self) -> int:
        """The position behind the last state that is computed with."""
        return self.first + self.memory.length

    def show(self, states: NDArray[np.float32]) -> None:
        """Take states in that are behind all others."""
        whole = states.base
        if whole is not None and whole.size > states.size:  # which would be kept, too
            states = states.copy()
        self.shown.append(states)
        self.waiting += len(states)
        self.end += len(states)

    def take(self, count: int) -> list[NDArray[np.float32]]:
        """The first of the states that wait, which are taken out."""
        taken: list[NDArray[np.float32]] = []
        self.waiting -= count
        while count:
            piece = self.shown[0]
            taken.append(piece[:count])
            if len(piece) <= count:
                del self.shown[0]
            else:
                self.shown[0] = piece[count:].copy()
            count -= len(taken[-1])
        return taken


@dataclass(slots=True)
class _Turn(Turn[_Followed]):
    """A sequence in a round of guesses.

    Attributes:
        state: What the latest guess was computed of; shape (1, width).
    """

    state: NDArray[np.float32]


class AheadModel(GuessingModel[_Followed]):
    """Guesses (see `Proposer`) by a model's own layer that predicts further ahead.

    Args:
        executor: Runs it, on states that it is given. This owns it and closes it.
        max_states: Most states that may wait; see `most_states`.
        max_tokens, eos_token_ids, turns, clock: See `GuessingModel`.
    """

    sees_states = True

    def __init__(
        self,
        executor: Executor,
        *,
        max_states: int,
        max_tokens: int,
        eos_token_ids: frozenset[int] = frozenset(),
        turns: Turns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = executor.info
        super().__init__(
            executor,
            Memory(info.num_blocks, info.block_size, prefix_cache=False),
            max_tokens=max_tokens,
            eos_token_ids=eos_token_ids,
            turns=turns,
            clock=clock,
        )
        self._max_states = max_states
        self._waiting = 0  # states, of all sequences

    def saw(self, asked: Asked, context: int, states: NDArray[np.float32]) -> None:
        """Take in what the model has computed of a sequence; see `Proposer.saw`."""
        followed = self._followed.get(asked.number)
        if followed is None or context > followed.end:
            self._drop(asked.number, keep=False)
            followed = self._begin(asked, context)
            self._followed[asked.number] = followed
        new = states[followed.end - context :]  # the others were computed twice
        if len(new):
            followed.show(new)
            self._waiting += len(new)
        if followed.waiting > MOST_SHOWN + self._max_tokens:
            self._begin_later(followed, MOST_SHOWN)
        while self._waiting > self._max_states:
            most = max(self._followed.values(), key=lambda each: each.waiting)
            self._begin_later(most, most.waiting // 2)

    def _guess(self, asked: SequenceOf[Asked], guesses: SequenceOf[list[int]]) -> None:
        turns = self._catch_up(asked, guesses)
        following = [turn.followed for turn in turns]
        lengths = [followed.memory.length for followed in following]
        while turns:
            turns = self._go_on(turns)
        for followed, length in zip(following, lengths, strict=True):
            # What is behind was computed of guesses' states, not the model's.
            self.memory.trim(followed.memory, length, length)

    def _catch_up(self, asked: SequenceOf[Asked], guesses: SequenceOf[list[int]]) -> list[_Turn]:
        """Compute with the states that there are, and draw the first guess where it is all of them.

        Returns:
            The sequences that have a first guess and may have another.
        """
        left = self._max_tokens
        asking = {each.number for each in asked}
        steps: list[tuple[_Followed, SequenceStep]] = []
        drawing: list[tuple[RowsAhead, list[int]] | None] = []
        for place in self._shortest_first(asked):
            each = asked[place]
            followed = self._followed.pop(each.number, None)
            if followed is None:
                continue
            self._followed[each.number] = followed
            held = followed.memory
            last = len(each.tokens) - 1  # a state for each but this one
            count = min(left, min(followed.end, last) - followed.computed)
            if count <= 0:
                continue
            if not self._finds_room(held, held.length + count + each.most, asking):
                continue
            left -= count
            begin = followed.computed
            step = SequenceStep(
                each.tokens[begin + 1 : begin + 1 + count],
                held.length,
                held.blocks,
                given=self._given(followed, count),
            )
            drawn = None
            if begin + count == last:
                rows = each.ahead()
                row = rows.guess_row()
                if row is not None:
                    if followed.latest is not None:
                        followed.drawing.learn(each.tokens[followed.latest])
                    followed.latest = last + 1
                    step.samples = followed.drawing.first(row)
                    step.states = 1
                    drawn = rows, guesses[place]
            steps.append((followed, step))
            drawing.append(drawn)
        turns: list[_Turn] = []
        for (followed, _), drawn, result in zip(steps, drawing, self._run(steps), strict=True):
            if drawn is not None and result.samples and result.states is not None:
                turn = _Turn(followed, *drawn, result.states)
                if self._take(turn, followed.drawing.take(result.samples)):
                    turns.append(turn)
        return turns

    def _go_on(self, turns: list[_Turn]) -> list[_Turn]:
        """Draw the next guesses, of the latest and the states that were left with them.

        Returns:
            The sequences that may have another.
        """
        steps: list[tuple[_Followed, SequenceStep]] = []
        going: list[_Turn] = []
        for turn in turns:
            row = turn.rows.guess_row()
            if row is None:
                continue
            held = turn.followed.memory
            rows = (turn.followed.drawing.later(row),)
            step = SequenceStep(
                turn.guesses[-1:], held.length, held.blocks, rows, states=1, given=turn.state
            )
            steps.append((turn.followed, step))
            going.append(turn)
        turns = []
        for turn, result in zip(going, self._run(steps), strict=True):
            if result.samples and result.states is not None:
                turn.state = result.states
                if self._take(turn, result.samples[0].token):
                    turns.append(turn)
        return turns

    def _run(self, steps: SequenceOf[tuple[_Followed, SequenceStep]]) -> SequenceOf[StepResult]:
        if not steps:
            return ()
        results = self._execute(Batch([step for _, step in steps]))
        for followed, step in steps:
            followed.memory.length += len(step.tokens)
        return results

    def _given(self, followed: _Followed, count: int) -> NDArray[np.float32]:
        """The first of a sequence's states that wait, to be computed with."""
        self._waiting -= count
        taken = followed.take(count)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def _begin_later(self, followed: _Followed, kept: int) -> None:
        """Follow a sequence from the last `kept` of the states that wait: none goes before them."""
        lost = followed.waiting - kept
        self._waiting -= lost
        followed.take(lost)
        asked = followed.asked
        self.memory.close(followed.memory, asked.space, (), 0, keep=False)
        followed.memory = self.memory.open(Match())
        followed.first = followed.end - kept

    def _settle(self, followed: _Followed, *, keep: bool) -> None:
        self._waiting -= followed.waiting

    def _begin(self, asked: Asked, first: int) -> _Followed:
        """What there is of a sequence before anything is."""
        return _Followed(asked, self.memory.open(Match()), first, GuessRows(self._rates))

    def _lacking(self, asked: Asked) -> int:
        followed = self._followed.get(asked.number)
        return 0 if followed is None else followed.end - followed.computed
