"""Families with LayerNorms."""

from __future__ import annotations

from references.reference import SIZES, Reference

_UNTIED = {"tie_word_embeddings": False}

REFERENCES = {
    # Three layers with windows to one without. llama.cpp keeps to that pattern, whatever files say.
    "cohere2": Reference(
        config={
            "model_type": "cohere2",
            **SIZES,
            "num_hidden_layers": 5,
            "sliding_window": 40,
            "logit_scale": 0.5,
        },
    ),
    "cohere2_moe": Reference(
        config={
            "model_type": "cohere2_moe",
            **SIZES,
            "num_hidden_layers": 5,
            "head_dim": 16,
            "sliding_window": 40,
            "logit_scale": 0.5,
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 80,
            "intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
        },
    ),
    # llama.cpp knows no windows here.
    "starcoder2": Reference(
        config={"model_type": "starcoder2", **SIZES, "sliding_window": 48}, llama_cpp=False
    ),
    "starcoder2_no_window": Reference(config={"model_type": "starcoder2", **SIZES, **_UNTIED}),
    "stablelm": Reference(
        config={
            "model_type": "stablelm",
            **SIZES,
            "use_qkv_bias": True,
            "partial_rotary_factor": 0.5,
        },
    ),
    "stablelm_parallel": Reference(
        config={
            "model_type": "stablelm",
            **SIZES,
            "use_parallel_residual": True,
            "qk_layernorm": True,
        },
    ),
}
