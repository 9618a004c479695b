"""The native sampler at its limits: log-probabilities, hostile rows, errors, long histories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal._native import sampling
from caudal.backends.native.batch import LEAST_TOP_P
from support.sampling_reference import by_score, processed_logits

NAN, INF = math.nan, math.inf
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_k": 3},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"typical_p": 0.9},
    {"logit_bias": [(0, 0.0)]},
]


def row(*values: float, length: int = 0, fill: float = -INF) -> NDArray[np.float32]:
    out = np.full(max(length, len(values)), fill, np.float32)
    out[: len(values)] = values
    return out


def random_logits(vocab: int, seed: int) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * 4).astype(np.float32)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    return np.asarray(wide - wide.max() - np.log(np.exp(wide - wide.max()).sum()))


@pytest.mark.parametrize("vocab", [1, 5, 127, 129, 3000, 49_152])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_of_the_raw_distribution(vocab: int, top: int) -> None:
    logits = random_logits(vocab, seed=vocab)
    expected = log_softmax(logits)
    order = by_score(logits.astype(np.float64))[:top]
    for changes in ({}, {"logit_bias": [(vocab - 1, 50.0)]}, {"temperature": 5.0, "top_k": 50}):
        token, logprob, rank, best = sampling.sample(logits, seed=1, logprobs=top, **changes)
        assert logprob == pytest.approx(expected[token], abs=1e-5)
        assert rank == 1 + int((logits > logits[token]).sum())
        assert [entry[0] for entry in best] == order.tolist()
        assert [entry[1] for entry in best] == pytest.approx(expected[order], abs=1e-5)


def test_logprobs_are_returned_only_where_asked_for() -> None:
    logits = random_logits(100, seed=0)
    token, logprob, rank, best = sampling.sample(logits, temperature=0.0)
    assert (token, logprob, rank, best) == (int(np.argmax(logits)), None, None, [])


@pytest.mark.parametrize("vocab", [1, 129, 5000])
def test_score(vocab: int) -> None:
    logits = random_logits(vocab, seed=vocab)
    expected = log_softmax(logits)
    for target in {0, vocab // 2, vocab - 1}:
        token, logprob, rank, best = sampling.score(logits, target, 3)
        assert token == target
        assert logprob == pytest.approx(expected[target], abs=1e-5)
        assert rank == 1 + int((logits > logits[target]).sum())
        assert [entry[0] for entry in best] == by_score(logits.astype(np.float64))[:3].tolist()
        assert sampling.score(logits, target)[3] == []


def test_equal_logits_share_a_rank_and_come_by_id() -> None:
    logits = row(1.0, 2.0, 2.0, 1.0, 2.0)
    assert [sampling.score(logits, token)[2] for token in range(5)] == [4, 1, 1, 4, 1]
    assert [token for token, _ in sampling.score(logits, 0, 5)[3]] == [1, 2, 4, 0, 3]


def test_a_certain_token_has_logprob_zero() -> None:
    logits = row(500.0, length=300, fill=-500.0)
    assert sampling.score(logits, 0)[1] == 0.0
    assert sampling.score(logits, 1)[1] == -1000.0


def test_nan_and_minus_infinity_are_impossible() -> None:
    logits = row(NAN, -INF, 1.0, NAN, 1.5, -INF, length=200, fill=NAN)
    for way in WAYS:
        tokens = {sampling.sample(logits, step=step, **way)[0] for step in range(40)}
        assert tokens <= {2, 4}
    token, logprob, rank, best = sampling.score(logits, 2, 20)
    assert logprob == pytest.approx(-math.log1p(math.exp(0.5)), abs=1e-6)
    assert (token, rank) == (2, 2)
    assert [entry[0] for entry in best] == [4, 2]  # the impossible ones are left out
    for impossible in (0, 1, 199):
        assert sampling.score(logits, impossible)[1:3] == (-INF, 3)


def test_plus_infinity_takes_all_the_mass() -> None:
    logits = row(3.0, INF, 1e38, INF, length=300, fill=0.0)
    for way in WAYS:
        tokens = {sampling.sample(logits, step=step, **way)[0] for step in range(40)}
        assert tokens == ({1} if way == {"temperature": 0.0} else {1, 3})
    _, logprob, rank, _ = sampling.score(logits, 3)
    assert logprob == pytest.approx(-math.log(2))
    assert rank == 1


@pytest.mark.parametrize("scale", [1e-30, 1e30, 3e38])
def test_extreme_logits(scale: float) -> None:
    logits = np.clip(random_logits(1000, seed=2), -1, 1) * np.float32(scale)
    allowed = set(np.flatnonzero(logits == logits.max()).tolist())
    for way in WAYS:
        token, *_ = sampling.sample(logits, seed=1, **way)
        assert token in allowed or scale < 1
        _, logprob, _, _ = sampling.sample(logits, logprobs=2, **way)
        assert logprob is not None and np.isfinite(logprob)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("value", [NAN, -INF])
def test_a_row_without_usable_logits_is_an_error(value: float, way: dict[str, Any]) -> None:
    for length in (0, 1, 128, 300):
        logits = np.full(length, value, np.float32)
        with pytest.raises(ValueError, match="no usable logits"):
            sampling.sample(logits, **way)
    with pytest.raises(ValueError, match="no usable logits"):
        sampling.score(np.full(10, value, np.float32), 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"allowed_mask": bytes(40)},
        {"allowed_mask": b"\x00"},
        {"banned_tokens": list(range(300))},
        {"allowed_mask": b"\x06", "banned_tokens": [1, 2]},
    ],
    ids=lambda changes: "+".join(changes),
)
@pytest.mark.parametrize("way", WAYS[:-1], ids=str)
def test_nothing_allowed_is_an_error(changes: dict[str, Any], way: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no token can be chosen"):
        sampling.sample(random_logits(300, seed=1), **changes, **way)


@pytest.mark.parametrize("token", [-1, 10, 2**31 - 1, -(2**31)])
def test_scoring_an_unknown_token_is_an_error(token: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampling.score(random_logits(10, seed=1), token)


def test_a_mask_may_be_longer_or_shorter_than_the_vocabulary() -> None:
    logits = np.zeros(13, np.float32)
    for mask, expected in [
        (b"\xff" * 50, set(range(13))),
        (b"\xff", set(range(8))),
        (b"\x00\xff\xff", set(range(8, 13))),
        (b"\x81\x10", {0, 7, 12}),
    ]:
        tokens = {sampling.sample(logits, step=step, allowed_mask=mask)[0] for step in range(200)}
        assert tokens == expected


def test_ids_outside_the_vocabulary_have_no_effect() -> None:
    logits = random_logits(100, seed=1)
    outside = [-1, 100, 2**31 - 1, -(2**31)]
    for step in range(20):
        plain = sampling.sample(logits, step=step, logprobs=3, repetition_penalty=1.5)
        assert plain == sampling.sample(
            logits,
            step=step,
            logprobs=3,
            repetition_penalty=1.5,
            presence_penalty=1.0,
            prompt_tokens=outside,
            output_tokens=outside,
            banned_tokens=outside,
            logit_bias=[(token, 100.0) for token in outside],
        )


def test_a_ban_outweighs_a_bias() -> None:
    logits = random_logits(50, seed=1)
    token, *_ = sampling.sample(
        logits, temperature=0.0, banned_tokens=[7], logit_bias=[(7, 100.0), (8, 60.0)]
    )
    assert token == 8


@pytest.mark.parametrize("top_k", [-1, 0, 10, 100, 2**40])
def test_top_k_beyond_the_possible_tokens_keeps_them_all(top_k: int) -> None:
    logits = row(*[0.5] * 10, length=50)
    tokens = {sampling.sample(logits, top_k=top_k, step=step)[0] for step in range(300)}
    assert tokens == set(range(10))


def test_a_long_history_leaves_nothing_behind() -> None:
    logits = random_logits(60_000, seed=5)
    rng = np.random.default_rng(6)
    output = rng.integers(0, 60_000, 100_000).tolist()
    penalties: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "temperature": 0.0,
    }
    counts = np.bincount(output, minlength=len(logits))
    expected = logits.astype(np.float64)
    expected = np.where(expected > 0, expected / 1.3, expected * 1.3)
    expected = np.where(counts > 0, expected - 0.4 * counts, logits)
    token, *_ = sampling.sample(logits, output_tokens=output, **penalties)
    assert token == np.argmax(expected)
    # The next call on this thread sees only its own history, also with another vocabulary.
    for vocab in (60_000, 300, 70_000):
        other = random_logits(vocab, seed=vocab)
        best = int(np.argmax(other))
        processed = processed_logits(
            other, repetition_penalty=1.3, frequency_penalty=0.4, output_tokens=[best]
        )
        token, *_ = sampling.sample(other, output_tokens=[best], **penalties)
        assert token == np.argmax(processed)


def test_parameters_that_are_no_numbers_are_harmless() -> None:
    """They are refused long before; here they must only not read or write out of bounds."""
    logits = random_logits(500, seed=3)
    names = ("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "repetition_penalty")
    for name in names:
        for value in (NAN, INF, -INF, -1.0):
            for other in WAYS[1:]:
                params = {**other, name: value, "output_tokens": [1, 2]}
                assert 0 <= sampling.sample(logits, **params)[0] < 500


@pytest.mark.parametrize("vocab", [5, 3000, 49_152])
def test_the_least_top_p_keeps_the_likeliest_token(vocab: int) -> None:
    logits = random_logits(vocab, seed=vocab)
    drawn = {
        sampling.sample(logits, temperature=2.0, top_p=LEAST_TOP_P, seed=seed)[0]
        for seed in range(50)
    }
    assert drawn == {int(np.argmax(logits))}
