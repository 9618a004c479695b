"""Guesses: answers are the same with them, whoever makes them and however wrong they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.engine.drafting.lookup import PLACES, LookupIndex
from caudal.engine.drafting.proposer import Asked, Proposer
from support.engine_harness import Harness
from support.fake_executor import next_token

PROMPT = [11, 12, 13, 14, 15]


class Seer(Proposer):
    """Knows what will be drawn, and says something else from time to time.

    Args:
        rightness: The share of tokens that are right.
        vocab_size: Tokens there are.
    """

    def __init__(self, rightness: float, vocab_size: int = 50) -> None:
        self._rightness = rightness
        self._vocab_size = vocab_size
        self._random = random.Random(4)
        self.seen: dict[int, list[int]] = {}
        self.closed = False

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        assert not self.closed
        return [self._guess(each) for each in asked]

    def ended(self, number: int) -> None:
        del self.seen[number]

    def close(self) -> None:
        self.closed = True

    def _guess(self, asked: Asked) -> list[int]:
        tokens = list(asked.tokens)
        before = self.seen.get(asked.number, tokens[: asked.prompt])
        assert tokens[: len(before)] == before, "what it was shown wasn't final"
        self.seen[asked.number] = tokens.copy()
        assert asked.most >= 1
        guess: list[int] = []
        for _ in range(asked.most):
            token = next_token(tokens, asked.seed, asked.stream, self._vocab_size)
            if self._random.random() > self._rightness:
                token = self._random.randrange(self._vocab_size)
            tokens.append(token)
            guess.append(token)
        return guess


@settings(max_examples=100)
@given(
    prompts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1, max_size=6),
    rightness=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    num_blocks=st.integers(16, 40),
    budget=st.integers(6, 40),
    num_slots=st.sampled_from([0, 0, 7, 12]),
    window=st.none() | st.integers(1, 9),
    prefix_cache=st.booleans(),
    n=st.integers(1, 3),
)
def test_an_answer_is_the_same_with_guesses(
    prompts: list[list[int]],
    rightness: float,
    num_blocks: int,
    budget: int,
    num_slots: int,
    window: int | None,
    prefix_cache: bool,
    n: int,
) -> None:
    seer = Seer(rightness)
    harness = Harness(
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=32,
        max_num_seqs=5,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
        num_slots=num_slots,
        windows=() if window is None else [(num_blocks, window)],
        proposer=seer,
    )
    for number, prompt in enumerate(prompts):
        harness.submit(prompt, n=n, max_tokens=20, seed=number, repetition_penalty=1.1)
    while harness.engine.has_work:
        harness.step()
        harness.check_invariants()
    harness.check_outputs()
    assert not seer.seen
    harness.engine.close()
    assert seer.closed


def test_right_guesses_take_fewer_iterations() -> None:
    harness = Harness(proposer=Seer(1.0), num_slots=4)
    request = harness.submit(PROMPT, max_tokens=40, ignore_eos=True)
    harness.run()
    assert len(harness.output(request)) == 40
    assert len(harness.executor.batches) == 3
    assert harness.executor.rejected == 0


def test_what_fails_to_guess_is_not_asked_again() -> None:
    class Broken(Seer):
        asked = 0

        def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
            self.asked += 1
            raise RuntimeError("out of order")

    broken = Broken(1.0)
    harness = Harness(proposer=broken)
    harness.submit(PROMPT, max_tokens=20)
    harness.run()
    harness.check_outputs()
    assert broken.asked == 1
    harness.engine.close()
    assert broken.closed


def test_a_request_may_go_without() -> None:
    harness = Harness(proposer=Seer(1.0))
    harness.submit(PROMPT, max_tokens=20, speculative="off")
    harness.run()
    harness.check_outputs()
    assert harness.executor.accepted == 0


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 12),
)
def test_a_look_up_finds_what_followed_the_longest_run(
    tokens: list[int], least: int, more: int, length: int
) -> None:
    grown: list[int] = []
    index = LookupIndex(grown, least, least + more)
    for token in tokens:
        grown.append(token)
        guess = list(index.guess(length))
    places = {  # by its end, how much is the same before it
        end: next(
            (
                n
                for n in range(least + more, 0, -1)
                if n <= end and tokens[end - n : end] == tokens[-n:]
            ),
            0,
        )
        for end in range(1, len(tokens))
    }
    near = [end for end in sorted(places, reverse=True) if places[end] >= least][:PLACES]
    if not near:
        assert guess == []
        return
    best = max(near, key=lambda end: (places[end], end))
    expected = tokens.copy()
    for i in range(length):
        expected.append(expected[best + i])
    assert guess == expected[len(tokens) :]
