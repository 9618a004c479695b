"""A layer that predicts further ahead is given each state with the token behind it, and once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.backends.executor import Batch, SampledToken, SequenceStep, StepResult
from caudal.engine.drafting.ahead import AheadModel
from caudal.engine.drafting.proposer import Asked
from caudal.engine.drafting.speculation import Speculation
from support.engine_harness import Harness
from support.fake_executor import FakeExecutor, next_token, state_row

VOCABULARY = 50

State = tuple[float, ...]


class FakeLayer(FakeExecutor):
    """Predicts what the fake model draws, but for one of `wrong` tokens, where all it is given is
    right: states of the model's own tokens, or those that it left with its guesses.

    Attributes:
        texts: The histories that states are of.
        guesses: How many it has drawn.
    """

    def __init__(self, texts: dict[State, list[int]], num_blocks: int, wrong: int) -> None:
        super().__init__(num_blocks, vocab_size=VOCABULARY)
        self.texts = texts
        self.guesses = 0
        self._wrong = wrong
        self._kept: dict[tuple[int, int], list[int]] = {}  # by block and place: the text up to it
        self._batch: Batch | None = None

    def launch(self, batch: Batch) -> None:
        self._batch = batch

    def collect(self) -> Sequence[StepResult]:
        assert self._batch is not None
        return [self._run(step) for step in self._batch.steps]

    def _run(self, step: SequenceStep) -> StepResult:
        assert step.given is not None
        assert step.given.shape == (len(step.tokens), 3)
        text: list[int] = []
        for place, (token, given) in enumerate(zip(step.tokens, step.given, strict=True)):
            position = step.context + place
            text = [*self.texts[tuple(given.tolist())], token]
            self._kept[step.block_table[position // 4], position % 4] = text
            for before in range(position):
                kept = self._kept[step.block_table[before // 4], before % 4]
                assert kept == text[: len(text) - position + before], "what it attends to"
        if not step.samples:
            return StepResult()
        row = step.samples[0]
        token = next_token(text, row.seed, row.stream, VOCABULARY)
        self.guesses += 1
        if self.guesses % self._wrong == 0:
            token = (token + 1) % VOCABULARY
        own = np.array([state_row(text)], np.float32)
        self.texts[tuple(own[0].tolist())] = text
        return StepResult([SampledToken(token)] * len(step.samples), states=own)


class Bounded(AheadModel):
    """Never keeps more states than it may, and knows how many.

    Attributes:
        most: The most that it has ever had.
    """

    most = 0

    def saw(self, asked: Asked, context: int, states: NDArray[np.float32]) -> None:
        super().saw(asked, context, states)
        pieces = [piece for each in self._followed.values() for piece in each.shown]
        assert sum(map(len, pieces)) == self._waiting <= self._max_states
        assert all(piece.base is None or piece.base.size == piece.size for piece in pieces)
        self.most = max(self.most, self._waiting)


@pytest.mark.parametrize(
    ("num_slots", "num_blocks", "max_states"), [(0, 64, 500), (12, 64, 20), (0, 14, 9)]
)
def test_what_is_given_is_right_whatever_was_accepted(
    num_slots: int, num_blocks: int, max_states: int
) -> None:
    texts: dict[State, list[int]] = {}
    layer = FakeLayer(texts, num_blocks, wrong=4)
    ahead = Bounded(layer, max_tokens=8, max_states=max_states)
    harness = Harness(
        num_blocks=num_blocks,
        num_slots=num_slots,
        max_num_batched_tokens=16,
        max_num_seqs=6,
        proposer=ahead,
        speculative=Speculation(adaptive=False, num_speculative_tokens=5),
    )
    saw = harness.executor.collect

    def collect() -> Sequence[StepResult]:
        batch = harness.executor._launched
        results = saw()
        assert batch is not None
        for step, result in zip(batch.steps, results, strict=True):
            text = [*harness.executor.read(0, step.block_table, 0, step.context), *step.tokens]
            assert result.states is not None
            for end, row in enumerate(result.states.tolist(), step.context + 1):
                texts[tuple(row)] = text[:end]
        return results

    harness.executor.collect = collect  # type: ignore[method-assign]
    for number in range(8):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9][: 4 + number % 6] + [10 + number] * (number * 2)
        harness.submit(prompt, max_tokens=14, n=1 + number % 2)
    harness.run()
    drafting = harness.engine.stats().drafts
    assert drafting.accepted > drafting.proposed / 2
    assert drafting.proposed > 40
    assert ahead.memory.pool.num_used == ahead._waiting == 0
    assert (ahead.most == max_states) == (max_states < 500)
