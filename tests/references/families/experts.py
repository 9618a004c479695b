"""Families whose MLPs are experts."""

from __future__ import annotations

from references.reference import SIZES, Reference

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}

REFERENCES = {
    "mixtral": Reference(
        config={
            "model_type": "mixtral",
            **SIZES,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    ),
    # llama.cpp takes as many key heads as query heads only.
    "olmoe": Reference(
        config={"model_type": "olmoe", **SIZES, **_EXPERTS, "num_key_value_heads": 4}
    ),
    "qwen2_moe": Reference(
        config={
            "model_type": "qwen2_moe",
            **SIZES,
            **_EXPERTS,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen3_moe": Reference(
        config={
            "model_type": "qwen3_moe",
            **SIZES,
            **_EXPERTS,
            "head_dim": 32,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
}
