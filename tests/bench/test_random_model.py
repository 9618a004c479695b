"""The random file has the types that llama.cpp gives a real one, and weights of a sane size."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from benchmarks.random_model import LLAMA_1B, random_matrix
from caudal._native import kernels


def test_every_layer_with_more_bits():
    more = [
        layer
        for layer in range(LLAMA_1B.layers)
        if LLAMA_1B.types(layer)["ffn_down"].name == "Q6_K"
    ]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    for layer in range(LLAMA_1B.layers):
        types = LLAMA_1B.types(layer)
        assert types["attn_v"] == types["ffn_down"]
        assert {types[name].name for name in ("attn_q", "attn_k", "ffn_gate")} == {"Q4_K"}


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K])
def test_a_product_with_ordinary_activations_is_ordinary(kind: GGMLQuantizationType):
    raw = random_matrix(np.random.default_rng(1), (64, 1024), kind)
    weights = kernels.dequantize(int(kind), raw.reshape(-1)).reshape(64, 1024)
    assert np.isfinite(weights).all()
    products = weights @ np.random.default_rng(2).standard_normal(1024)
    assert 0.2 < products.std() < 5
