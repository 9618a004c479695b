"""The native sampler's draws against a plain float64 reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal._native import instruction_set, kernels, sampling
from support.sampling_reference import distribution, drawn_token, processed_logits

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_k": 400},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 0.9999},
    {"top_p": 1e-9},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"typical_p": 0.3},
    {"typical_p": 0.95},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.7, "top_k": 50, "min_p": 0.1},
    {"top_p": 0.8, "min_p": 0.01},
    {"typical_p": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 300, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.001},
]


def random_logits(vocab: int, seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [1, 9, 128, 1000, 20011])
def test_every_draw_is_the_one_of_the_reference(vocab: int, params: dict[str, Any]) -> None:
    logits = random_logits(vocab, seed=vocab)
    processed = logits.astype(np.float64)
    probabilities = distribution(processed, **params)
    filtered = bool({*params} - {"temperature"}) and params.get("top_k", 0) < vocab
    if {*params} - {"temperature", "top_k"}:
        filtered = True
    for step in range(60):
        token, *_ = sampling.sample(logits, seed=vocab, step=step, **params)
        uniform = sampling.uniform(vocab, 0, step)
        assert token in drawn_token(probabilities, processed, uniform, filtered=filtered)


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_support_and_frequencies(params: dict[str, Any]) -> None:
    logits = random_logits(24, seed=3, spread=1.0)
    expected = distribution(logits.astype(np.float64), **params)
    draws = 4000
    tokens = [sampling.sample(logits, seed=5, stream=1, step=i, **params)[0] for i in range(draws)]
    counts = np.bincount(tokens, minlength=len(logits))
    assert not counts[expected == 0].any()
    likely = expected > 20 / draws
    assert counts[likely].all()
    chi_square = np.sum(
        (counts[likely] - draws * expected[likely]) ** 2 / (draws * expected[likely])
    )
    degrees = int(likely.sum())
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 4


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": [(3, 5.0), (7, -100.0), (1, 2.5)]},
        {"banned_tokens": [0, 1, 2, 3, 150]},
        {"allowed_mask": bytes(range(0, 250, 10))},
        {"allowed_mask": b"\xff\x0f"},
        {"repetition_penalty": 1.8, "prompt_tokens": [1, 2, 2], "output_tokens": [2, 9]},
        {"repetition_penalty": 0.5, "prompt_tokens": [1, 2, 2], "output_tokens": [2, 9]},
        {"presence_penalty": 1.5, "prompt_tokens": [4], "output_tokens": [2, 9, 2, 2]},
        {"frequency_penalty": -1.5, "prompt_tokens": [4], "output_tokens": [2, 9, 2, 2]},
        {
            "repetition_penalty": 1.2,
            "presence_penalty": -0.5,
            "frequency_penalty": 0.7,
            "prompt_tokens": [5, 6, 7],
            "output_tokens": [7, 8, 8],
            "logit_bias": [(8, 4.0), (20, 6.0)],
            "banned_tokens": [20, 21],
            "allowed_mask": b"\xef" * 20,
        },
    ],
    ids=lambda changes: "+".join(changes),
)
@pytest.mark.parametrize("params", [{}, {"top_k": 8, "top_p": 0.9}, {"temperature": 0.0}], ids=str)
def test_changes_to_the_logits(changes: dict[str, Any], params: dict[str, Any]) -> None:
    logits = random_logits(197, seed=11)
    untouched = logits.copy()
    processed = processed_logits(logits, **changes)
    for step in range(60):
        token, *_ = sampling.sample(logits, seed=9, step=step, **changes, **params)
        if params.get("temperature") == 0.0:
            assert token == np.argmax(processed)
            continue
        probabilities = distribution(processed, **params)
        uniform = sampling.uniform(9, 0, step)
        assert token in drawn_token(probabilities, processed, uniform, filtered=bool(params))
    np.testing.assert_array_equal(logits, untouched)


@pytest.mark.parametrize("vocab", [1, 2, 7, 8, 9, 127, 128, 129, 1000, 49152])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 9e-6}, {"top_k": 1}])
def test_greedy_takes_the_first_of_equal_maxima(vocab: int, params: dict[str, Any]) -> None:
    logits = np.minimum(random_logits(vocab, seed=vocab), 3.0)
    for first, second in itertools.combinations_with_replacement(
        {0, vocab // 3, vocab // 2, vocab - 1}, 2
    ):
        row = logits.copy()
        row[[first, second]] = 3.5
        assert sampling.sample(row, seed=1, **params)[0] == min(first, second)


def test_ties_keep_exactly_k_tokens_with_the_lowest_ids() -> None:
    logits = np.zeros(1000, np.float32)
    logits[::2] = -0.0
    tokens = {sampling.sample(logits, top_k=7, step=step)[0] for step in range(200)}
    assert tokens == set(range(7))
    tokens = {sampling.sample(logits, top_p=0.0049, step=step)[0] for step in range(200)}
    assert tokens == set(range(5))


@pytest.mark.parametrize("params", [{"top_p": 0.5}, {"typical_p": 0.5}, {"top_k": 100_000}, {}])
def test_a_large_uniform_vocabulary(params: dict[str, Any]) -> None:
    logits = np.full(262_144, 1.25, np.float32)
    for step in range(5):
        token, *_ = sampling.sample(logits, seed=4, step=step, **params)
        kept = {"top_p": 131_072, "typical_p": 131_072, "top_k": 100_000}
        size = next((kept[name] for name in params), 262_144)
        expected = sampling.uniform(4, 0, step) * size
        assert abs(token - expected) <= 2


def test_draws_depend_on_seed_stream_and_step_alone() -> None:
    rows = [random_logits(500, seed=i) for i in range(4)]
    params: dict[str, Any] = {"temperature": 1.1, "top_p": 0.95}

    def draw(**where: Any) -> list[int]:
        return [sampling.sample(row, **where, **params)[0] for row in rows * 5]

    first = draw(seed=2**64 - 1, stream=3, step=17)
    assert first == draw(seed=2**64 - 1, stream=3, step=17)
    assert first == rows_in_reverse(rows * 5, seed=2**64 - 1, stream=3, step=17, **params)
    assert first != draw(seed=2**63 - 1, stream=3, step=17)
    assert first != draw(seed=2**64 - 1, stream=2, step=17)
    assert first != draw(seed=2**64 - 1, stream=3, step=16)


def rows_in_reverse(rows: list[NDArray[np.float32]], **params: Any) -> list[int]:
    return [sampling.sample(row, **params)[0] for row in reversed(rows)][::-1]


def test_instruction_sets_agree_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results: dict[str, list[object]] = {}
    for name in kernels.instruction_sets():
        monkeypatch.setenv("CAUDAL_ISA", name)
        assert instruction_set() == name
        results[name] = [
            sampling.sample(
                random_logits(vocab, seed=step), seed=1, step=step, logprobs=5, **params
            )
            for vocab in (3, 130, 5003)
            for step in range(8)
            for params in (*FILTERS, {"allowed_mask": b"\xa5" * (vocab // 9 + 1)})
        ]
    for result in results.values():
        assert result == results["portable"]


def test_instruction_sets_weigh_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    exponents = -np.linspace(0, 90, 100_003, dtype=np.float32)
    weights = []
    for name in kernels.instruction_sets():
        monkeypatch.setenv("CAUDAL_ISA", name)
        out = np.empty_like(exponents)
        sampling.weights(exponents, 0.0, 1.0, out)
        counted = exponents >= -87
        exact = np.exp(exponents[counted].astype(np.float64))
        assert np.max(np.abs(out[counted] / exact - 1)) < 1e-7
        assert not out[~counted].any()
        assert out[0] == 1.0
        weights.append(out)
    for other in weights[1:]:
        np.testing.assert_array_equal(weights[0], other)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            [0x00000000, 0x00000000, 0x00000000, 0x00000000],
            [0x00000000, 0x00000000],
            [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        ),
        (
            [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF],
            [0xFFFFFFFF, 0xFFFFFFFF],
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    """The vectors published with Random123 for philox4x32 with 10 rounds."""
    assert sampling.philox4x32_10(counter, key) == expected


def test_uniform_numbers_come_from_philox() -> None:
    for seed, stream, step in [(0, 0, 0), (2**64 - 1, 7, 3), (0x0123456789ABCDEF, 1, 2**32 - 1)]:
        low, high, *_ = sampling.philox4x32_10(
            [step, stream, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
        )
        assert sampling.uniform(seed, stream, step) == (((high << 32 | low) >> 11) + 1) * 2.0**-53
    numbers = np.array([sampling.uniform(42, 0, step) for step in range(20_000)])
    assert np.all(numbers > 0) and np.all(numbers <= 1)
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02
