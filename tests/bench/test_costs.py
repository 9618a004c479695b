"""Arithmetic and traffic of a model small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases import EngineCase, HttpCase, Timing
from benchmarks.costs import AttentionLayer, ExpertLayer, Matrices, ModelCosts, SharedPrefix
from benchmarks.limits import Limits

LIMITS = Limits({"read": 100.0, "fp32/avx2": 1000.0, "int8/avx2": 4000.0})


def costs(window: int | None = None) -> ModelCosts:
    """1,000 quantised and 100 floating multiply-adds a token, 500 more for logits; one layer."""
    return ModelCosts(
        body=Matrices(quantised=1000, floating=100, bytes=600),
        head=Matrices(quantised=500, floating=0, bytes=250),
        layers=(AttentionLayer(multiply_adds=10, bytes=4, window=window),),
        vocab_size=100,
        context_length=1000,
    )


def case(sequences: int, prompt_tokens: int, steps: int) -> EngineCase:
    return EngineCase(
        name="case", title="", sequences=sequences, prompt_tokens=prompt_tokens, steps=steps
    )


def test_a_decoding_step_reads_the_weights_and_what_is_stored():
    ideal = costs().ideal(case(1, 9, 1), "output", LIMITS)
    assert ideal.seconds == pytest.approx((600 + 250 + 10 * 4) / 100)
    assert ideal.limit == "read"


def test_experts_are_read_that_tokens_choose():
    experts = ExpertLayer(count=4, used=2, bytes=100)
    model = replace(costs(), body=Matrices(1000, 100, 600, experts=(experts,)))
    alone = model.ideal(case(1, 9, 1), "output", LIMITS)
    assert alone.seconds == pytest.approx((600 + 200 + 250 + 10 * 4) / 100)
    two = model.ideal(case(2, 9, 1), "output", LIMITS)
    assert two.seconds == pytest.approx((600 + 300 + 250 + 2 * 10 * 4) / 100)


def test_a_long_prompt_is_arithmetic():
    ideal = costs().ideal(case(1, 200, 0), "prompt", LIMITS)
    int8 = 2 * (200 * 1000 + 500) / 4000
    fp32 = 2 * (200 * 100 + 10 * 200 * 201 / 2) / 1000
    assert ideal.seconds == pytest.approx(int8 + fp32)
    assert ideal.limit == "fp32"
    assert ideal.bound["int8"] == pytest.approx(int8)


def test_keys_and_values_of_8_bits_are_half_to_read_and_integers():
    whole = replace(case(1, 200, 1), kv_type="q8")
    output = costs().ideal(whole, "output", LIMITS)
    assert output.seconds == pytest.approx((600 + 250 + 201 * 4 / 2) / 100)
    prompt = costs().ideal(whole, "prompt", LIMITS)
    int8 = 2 * (200 * 1000 + 500 + 10 * 200 * 201 / 2) / 4000
    assert prompt.bound == {"int8": pytest.approx(int8), "fp32": pytest.approx(2 * 20000 / 1000)}


def test_a_window_bounds_attention():
    ideal = costs(window=5).ideal(case(1, 9, 1), "output", LIMITS)
    assert ideal.seconds == pytest.approx((600 + 250 + 5 * 4) / 100)
    ideal = costs(window=5).ideal(case(1, 200, 0), "prompt", LIMITS)
    pairs = 1 + 2 + 3 + 4 + 5 * 196
    assert ideal.bound["fp32"] == pytest.approx(2 * (200 * 100 + 10 * pairs) / 1000)


def test_all_is_both_phases():
    whole, model = case(4, 50, 7), costs()
    parts = [model.ideal(whole, "prompt", LIMITS), model.ideal(whole, "output", LIMITS)]
    assert model.ideal(whole, "all", LIMITS).seconds == pytest.approx(
        sum(part.seconds for part in parts)
    )


def test_a_served_prefix_is_computed_once():
    def http(prefixes: int, prefix_tokens: int, prompt_tokens: int) -> float:
        shape = HttpCase(
            name="http",
            title="",
            requests=8,
            concurrency=4,
            prompt_tokens=prompt_tokens,
            output_tokens=1,
            prefixes=prefixes,
            prefix_tokens=prefix_tokens,
        )
        return costs().ideal(shape, "all", LIMITS).bound["int8"]

    suffixes = 2 * (8 * 10 * 1000 + 8 * 500) / 4000
    prefix = 2 * (2 * 90 * 1000 + 2 * 500) / 4000
    assert http(2, 90, 10) == pytest.approx(suffixes + prefix)
    assert http(0, 0, 100) == pytest.approx(2 * (8 * 100 * 1000 + 8 * 500) / 4000)


def test_a_shared_prefix_is_read_once_in_a_pass():
    prefix = SharedPrefix(different=2, tokens=100)
    assert [prefix.copies(sequences) for sequences in (1, 2, 5)] == [0, 0, 3]
    assert SharedPrefix(different=0, tokens=0).copies(5) == 0
    whole = AttentionLayer(multiply_adds=2, bytes=10, window=None)
    assert whole.seen_of(prefix.tokens, position=149) == 1000
    windowed = AttentionLayer(multiply_adds=2, bytes=10, window=60)
    assert windowed.seen_of(prefix.tokens, position=149) == 100


def test_rates_count_tokens_that_went_through_the_model():
    long = EngineCase(
        name="long",
        title="",
        sequences=2,
        prompt_tokens=100,
        steps=10,
        metrics=("all", "prompt", "output"),
    )
    assert long.generated == 11
    assert long.rates(Timing(first=4.0, total=5.0)) == {"all": 44, "prompt": 50, "output": 20}


def test_costs_of_a_real_file(smollm2_path: Path):
    model = ModelCosts.of(smollm2_path)
    hidden, feed_forward, layers, vocabulary = 576, 1536, 30, 49152
    per_layer = 2 * hidden * hidden + 2 * hidden * 192 + 3 * hidden * feed_forward
    # After the last layer's attention only tokens whose logits are wanted go on.
    tail = hidden * hidden + 3 * hidden * feed_forward
    assert model.body.quantised == layers * per_layer - tail
    assert model.head.quantised == tail + vocabulary * hidden
    assert model.body.floating == model.head.floating == 0
    # Q4_1: 20 bytes for 32 weights
    assert model.body.bytes == (layers * per_layer - tail) * 20 // 32
    assert model.head.bytes == tail * 20 // 32 + vocabulary * hidden * 34 // 32  # Q8_0
    assert len(model.layers) == layers
    assert model.layers[0] == AttentionLayer(
        multiply_adds=2 * hidden, bytes=2 * 192 * 2, window=None
    )
