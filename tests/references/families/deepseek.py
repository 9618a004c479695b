"""DeepSeek V2 and V3, and GLM-4.7-Flash: latent attention, and experts in groups."""

from __future__ import annotations

from references.reference import SIZES, Reference

_SIZES = {
    **SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

REFERENCES = {
    # llama.cpp has no groups here.
    "deepseek_v2": Reference(
        config={
            "model_type": "deepseek_v2",
            **_SIZES,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
        llama_cpp=False,
    ),
    "deepseek_v3": Reference(
        config={
            "model_type": "deepseek_v3",
            **_SIZES,
            "q_lora_rank": 48,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe_lite": Reference(
        config={"model_type": "glm4_moe_lite", **_SIZES, "q_lora_rank": 48},
    ),
}
