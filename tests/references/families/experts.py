"""Families whose MLPs are experts."""

from __future__ import annotations

from references.reference import SIZES, Reference

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}

_GPT_OSS = {
    "model_type": "gpt_oss",
    **SIZES,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 48,
}
# Sinks that weigh, and experts whose gates reach their limit.
_GPT_OSS_SPREAD = {"sinks": (0.0, 1.0), "gate_up_proj_bias": (0.0, 5.0)}

_LLAMA4 = {
    "model_type": "llama4_text",
    **SIZES,
    "num_hidden_layers": 5,
    "head_dim": 16,
    "intermediate_size": 32,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
}

REFERENCES = {
    "llama4": Reference(config=_LLAMA4),
    # Chunks, positions that make queries grow, dense layers between: llama.cpp has Scout's alone.
    "llama4_chunks": Reference(
        config={
            **_LLAMA4,
            "attention_chunk_size": 48,
            "floor_scale": 16,
            "attn_scale": 0.5,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
            "num_experts_per_tok": 2,
        },
        llama_cpp=False,
    ),
    "glm4_moe": Reference(
        config={
            "model_type": "glm4_moe",
            **SIZES,
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
        },
    ),
    "minimax_m2": Reference(
        config={
            "model_type": "minimax_m2",
            **SIZES,
            "head_dim": 32,
            "rotary_dim": 16,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
        },
    ),
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
    "gpt_oss": Reference(
        config={**_GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 1500.0}},
        spread=_GPT_OSS_SPREAD,
    ),
    # llama.cpp has YaRN's ramp begin and end at whole pairs.
    "gpt_oss_yarn": Reference(
        config={
            **_GPT_OSS,
            "num_hidden_layers": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1500.0,
                "factor": 8.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
        spread=_GPT_OSS_SPREAD,
        llama_cpp=False,
    ),
    "qwen3_vl_moe": Reference(
        config={
            "model_type": "qwen3_vl_moe",
            "text_config": {
                "model_type": "qwen3_vl_moe_text",
                **SIZES,
                **_EXPERTS,
                "head_dim": 16,
                "moe_intermediate_size": 32,
                "tie_word_embeddings": False,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [3, 3, 2],
                },
            },
            "vision_config": {
                "model_type": "qwen3_vl_moe_vision",
                "hidden_size": 16,
                "intermediate_size": 16,
                "depth": 1,
                "num_heads": 2,
                "patch_size": 14,
                "out_hidden_size": 64,
                "deepstack_visual_indexes": [0],
            },
        },
        auto="AutoModelForImageTextToText",
    ),
}
