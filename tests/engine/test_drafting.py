"""Guesses: answers are the same with them, whoever makes them and however wrong they are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from caudal.engine.drafting.chances import OF_TEXTS, Chances, CommonChances
from caudal.engine.drafting.costs import Costs
from caudal.engine.drafting.lengths import choose_lengths
from caudal.engine.drafting.lookup import PLACES, LookupIndex, OwnText, PredictedText
from caudal.engine.drafting.proposer import Asked, Proposer
from caudal.engine.drafting.speculation import Speculation, speculation_of_config
from caudal.errors import ParameterError
from support.engine_harness import Harness
from support.fake_executor import next_token

PROMPT = [11, 12, 13, 14, 15]


class Seer(Proposer):
    """Knows what will be drawn, and says something else from time to time, tokens that there
    aren't among it.

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
        self.seen.pop(number, None)

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
                token = self._random.randrange(-2, self._vocab_size + 2)
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
    adaptive=st.booleans(),
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
    adaptive: bool,
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
        speculative=Speculation(adaptive=adaptive),
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
    harness = Harness(proposer=Seer(1.0), num_slots=4, speculative=Speculation(adaptive=False))
    request = harness.submit(PROMPT, max_tokens=40, ignore_eos=True)
    harness.run()
    assert len(harness.output(request)) == 40
    assert len(harness.executor.batches) == 3
    assert harness.executor.rejected == 0


class Broken(Seer):
    """Right in the beginning, and out of order from some call on.

    Args:
        method: The method that fails.
        calls: Calls of it that go well.
        guesses: What it guesses instead, where that isn't raised but makes no sense.
    """

    sees_states = True

    def __init__(self, method: str, calls: int, guesses: Any = None) -> None:
        super().__init__(1.0)
        self._method = method
        self._left = calls
        self._guesses = guesses
        self.calls: Counter[str] = Counter()

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        fails = self._fails("propose")
        guesses: Any = [self._guesses] * len(asked) if self._guesses else []
        return guesses if fails else super().propose(asked)

    def saw(self, asked: Asked, context: int, states: NDArray[np.float32]) -> None:
        self._fails("saw")

    def ended(self, number: int) -> None:
        self._fails("ended")
        super().ended(number)

    def close(self) -> None:
        self._fails("close")
        super().close()

    def _fails(self, method: str) -> bool:
        self.calls[method] += 1
        if method != self._method:
            return False
        self._left -= 1
        if self._left < 0 and self._guesses is None:
            raise RuntimeError("out of order")
        return self._left < 0


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize(
    ("method", "guesses"),
    [
        ("propose", None),
        ("propose", ()),  # for nobody
        ("propose", (3, None)),
        ("propose", (2.5,)),
        ("saw", None),
        ("ended", None),
        ("close", None),
    ],
)
def test_what_fails_to_guess_fails_nothing_else(
    caplog: pytest.LogCaptureFixture, method: str, guesses: Any, calls: int
) -> None:
    broken = Broken(method, calls, guesses)
    harness = Harness(proposer=broken, speculative=Speculation(adaptive=False))
    for prompt in (PROMPT, PROMPT[::-1], PROMPT * 2):
        harness.submit(prompt, max_tokens=20)
    harness.run()
    harness.check_outputs()
    harness.check_invariants()
    if method == "close":
        assert not caplog.records
    else:
        asked = broken.calls["propose"]
        harness.submit(PROMPT * 3, max_tokens=20)
        harness.run()
        harness.check_outputs()
        assert broken.calls["propose"] == asked, "it is asked again"
    assert broken.calls["ended"] >= 3  # whether it works or not: what it has is memory
    harness.engine.close()
    assert harness.executor.closed
    if method != "close" or not calls:
        [record] = caplog.records
        assert record.exc_info is not None
        failures = harness.engine.stats().drafts.failures
        assert failures == 1 or method == "ended"


def test_a_request_may_go_without() -> None:
    harness = Harness(proposer=Seer(1.0))
    harness.submit(PROMPT, max_tokens=20, speculative="off")
    harness.run()
    harness.check_outputs()
    assert harness.executor.accepted == 0


@given(st.lists(st.integers(1, 3), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 3))
def test_a_look_up_finds_the_longest_run(tokens: list[int], least: int, more: int) -> None:
    grown: list[int] = []
    index = LookupIndex(grown, least, least + more)
    found = 0, 0
    for token in tokens:
        grown.append(token)
        found = index.find(grown)
    same = {
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
    near = [end for end in sorted(same, reverse=True) if same[end] >= least][:PLACES]
    best = max(near, key=lambda end: (same[end], end), default=0)
    assert found == ((best, same[best]) if near else (0, 0))


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
    st.lists(st.integers(1, 3), max_size=60),
)
def test_texts_are_followed_as_far_as_they_agree(prompt: list[int], answer: list[int]) -> None:
    tokens = prompt.copy()
    common = CommonChances(OF_TEXTS)
    own = OwnText(tokens, Chances(common), 2, 8)
    predicted = PredictedText(tokens, Chances(common), len(prompt), answer, 2, 8)
    for token in answer:
        own.advance()
        predicted.advance()
        assert predicted.guess(3) == answer[len(tokens) - len(prompt) :][:3]
        guess = own.guess(9)
        assert bool(own.same) == bool(guess)
        if guess:
            assert len(guess) == 9
            same = own.same  # a shorter period may give the same guess, with less before it
            assert any(
                agrees(tokens, guess, p) and tokens[-same:] == tokens[-same - p : -p]
                for p in range(1, len(tokens) + 1)
            )
        tokens.append(token)
    predicted.advance()
    assert predicted.right == len(answer)


def test_where_a_text_differed_before_it_is_likely_to_differ_again() -> None:
    form = list(range(10, 30))
    tokens = [token for name in range(100, 104) for token in (*form, name)]
    own = OwnText(tokens, Chances(CommonChances(OF_TEXTS)), 3, 16)
    for name in range(104, 108):
        for token in (*form, name):
            tokens.append(token)
            own.advance()
    for token in form[:15]:
        tokens.append(token)
        own.advance()
    chances = own.along(8)  # five of the form, a name, and what comes behind it
    assert chances[4] > 0.9
    assert len(chances) == 5 or chances[5] < 0.2


def agrees(tokens: list[int], guess: list[int], period: int) -> bool:
    """Whether tokens are guessed from those so far before the end, round and round."""
    both = tokens + guess
    return all(both[i] == both[i - period] for i in range(len(tokens), len(both))) and (
        tokens[-2:] == tokens[-2 - period : -period]
    )


def test_what_was_answered_before_is_guessed_and_nobody_elses() -> None:
    harness = Harness(block_size=4, speculative=Speculation(), max_model_len=100)
    first = harness.submit(PROMPT, max_tokens=60, ignore_eos=True, cache_salt="a")
    harness.run()
    alone = len(harness.executor.batches)
    second = harness.submit(PROMPT, max_tokens=60, ignore_eos=True, cache_salt="a")
    harness.run()
    again = len(harness.executor.batches) - alone
    assert harness.output(second) == harness.output(first) == harness.expected(first)
    assert again < alone / 4
    accepted = harness.executor.accepted
    harness.submit(PROMPT, max_tokens=60, ignore_eos=True, cache_salt="b")
    harness.run()
    harness.check_outputs()
    assert harness.executor.accepted < accepted + 10  # by chance, in its own text


class TestLengths:
    def test_nothing_is_guessed_where_it_costs_more_than_it_brings(self) -> None:
        assert lengths([[0.3, 0.2, 0.1]], 1, lambda rows: 1 + 0.5 * rows) == [0]
        assert lengths([[0.9, 0.8, 0.7]], 1, lambda rows: 1 + 0.1 * rows) == [3]
        assert lengths([[0.9, 0.8, 0.7]], 1, lambda rows: 1.0 if rows < 2 else 9.0) == [1]

    def test_one_that_gains_leaves_the_others_most_of_the_time(self) -> None:
        likely = [0.95**n for n in range(1, 20)]
        cost = lambda rows: 1 + 0.05 * rows  # noqa: E731
        assert lengths([likely], 8, cost)[0] < 4
        assert min(lengths([likely] * 8, 8, cost)) >= lengths([likely], 8, cost)[0]

    def test_no_more_are_taken_than_there_is_room_for(self) -> None:
        chosen = choose_lengths([[0.9] * 9, [0.8] * 9], 2, 5, lambda rows: 1.0, repeats=False)
        assert sum(chosen) == 5
        assert chosen[0] >= chosen[1]

    def test_guesses_are_shorter_where_wrong_ones_repeat_the_step(self) -> None:
        along = [0.8**n for n in range(1, 20)]
        cost = lambda rows: 1 + 0.1 * rows  # noqa: E731
        repeated = choose_lengths([along], 1, 99, cost, repeats=True)[0]
        assert 0 < repeated < lengths([along], 1, cost)[0]


def lengths(
    chances: list[list[float]], sequences: int, factor: Callable[[float], float]
) -> list[int]:
    return choose_lengths(chances, sequences, 99, factor, repeats=False)


def test_costs_are_what_was_measured() -> None:
    costs = Costs()
    for _ in range(200):
        for guesses in (0, 1, 5, 20, 0, 60):
            costs.observe(4, guesses, 0.010 + 0.001 * guesses)
        costs.observe(4, 0, 1.0 if _ % 50 == 0 else 0.010)  # somebody else's turn
    factor = costs.curve(3)  # nearly as many
    for guesses in (1, 5, 20, 40):
        assert factor(guesses) == pytest.approx(1 + 0.1 * guesses, rel=0.2)
    for _ in range(300):  # it takes longer, and costs as much in relation
        for guesses in (0, 20):
            costs.observe(4, guesses, 0.030 + 0.003 * guesses)
    assert costs.curve(4)(20) == pytest.approx(3, rel=0.2)
    assert costs.seconds(4) == pytest.approx(0.030, rel=0.1)


def test_what_was_dear_by_chance_is_tried_again() -> None:
    costs = Costs()
    for _ in range(20):
        costs.observe(8, 0, 0.010)
        costs.observe(8, 8, 0.012)
    for _ in range(8):
        costs.observe(8, 24, 0.060)  # something else ran meanwhile
    assert costs.curve(8)(24) > 2.5
    for _ in range(300):
        if costs.wants_plain(8):
            costs.observe(8, 0, 0.010)
        costs.observe(8, 8, 0.012)
    assert costs.curve(8)(24) < 2
    assert costs.curve(8)(8) == pytest.approx(1.2, rel=0.1)


def test_what_rows_cost_is_known_for_numbers_of_sequences_that_have_not_run() -> None:
    costs = Costs()
    for _ in range(100):
        for sequences, guesses in ((8, 0), (8, 8), (8, 24), (1, 0), (1, 15)):
            costs.observe(sequences, guesses, 0.003 + 0.0005 * (sequences + guesses))
    assert costs.curve(4)(8) == pytest.approx(9 / 5, rel=0.15)


@pytest.mark.parametrize(
    ("config", "made"),
    [
        ('{"method": "ngram", "prompt_lookup_max": 2}', {"prompt_lookup_min": 2}),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, {"method": "ngram"}),
        ({"model": "small"}, {"method": "draft", "model": "small"}),
        ({"method": "deepseek_mtp"}, {"method": "mtp"}),
        (
            '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}',
            {"num_speculative_tokens": 5, "prompt_lookup_min": 4, "prompt_lookup_max": 4},
        ),
        ({"method": "ngram_gpu", "prompt_lookup_min": 2}, {"method": "ngram"}),
        (
            {
                "model": "small",
                "num_speculative_tokens": 3,
                "draft_tensor_parallel_size": 1,
                "enforce_eager": True,
            },
            {"method": "draft", "num_speculative_tokens": 3},
        ),
        ({"method": "qwen3_next_mtp", "num_speculative_tokens": 2}, {"num_speculative_tokens": 2}),
    ],
)
def test_vllms_configurations_mean_the_same(config: Any, made: dict[str, Any]) -> None:
    speculation = speculation_of_config(config)
    assert {name: getattr(speculation, name) for name in made} == made


@pytest.mark.parametrize(
    "config",
    [
        "ngram",
        "[]",
        {"method": "medusa"},
        {"method": "draft_model"},
        {"method": "ngram", "num_speculative_tokens": 0},
        {"prompt_lookup_min": 5, "prompt_lookup_max": 3},
        {"method": ["ngram"]},
        {"method": "ngram", "draft_tensor_parallel_size": 2},
        {"method": "ngram", "draft_tensor_parallel_size": True},
        {"model": "small", "quantization": "fp8"},
    ],
)
def test_what_makes_no_sense_is_refused(config: Any) -> None:
    with pytest.raises(ParameterError, match=r"^speculative: ") as refused:
        speculation_of_config(config)
    assert refused.value.param == "speculative"


@pytest.mark.parametrize(
    ("method", "instead"),
    [("eagle", "mtp"), ("eagle3", "draft_model"), ("medusa", "draft_model"), ("suffix", "ngram")],
)
def test_vllms_other_methods_are_refused_with_what_would_do(method: str, instead: str) -> None:
    config = {"method": method, "model": "heads", "num_speculative_tokens": 3}
    with pytest.raises(ParameterError, match=f"no method {method}[,.].* {instead}"):
        speculation_of_config(config)
