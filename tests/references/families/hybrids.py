"""Qwen's and Liquid's families with recurrent layers beside attention, dense and with experts."""

from __future__ import annotations

from references.reference import SIZES, Reference

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "depth": 1,
    "num_heads": 2,
    "patch_size": 14,
    "out_hidden_size": 64,
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
# More heads of values than of keys, so that their order counts.
_DELTA_NET = {
    **SIZES,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [3, 3, 2],
}
_LFM2 = {
    **SIZES,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "rope_theta": 10000.0,
}
REFERENCES = {
    "qwen3_5": Reference(
        config={"model_type": "qwen3_5_text", **_DELTA_NET, "rope_parameters": _MROPE},
    ),
    "qwen3_5_text_and_images": Reference(
        config={
            "model_type": "qwen3_5",
            "text_config": {
                "model_type": "qwen3_5_text",
                **_DELTA_NET,
                "num_hidden_layers": 2,
                "layer_types": ["linear_attention", "full_attention"],
                "rope_parameters": _MROPE,
            },
            "vision_config": {"model_type": "qwen3_5_vision", **_VISION},
        },
        auto="AutoModelForImageTextToText",
    ),
    "qwen3_5_moe": Reference(
        config={
            "model_type": "qwen3_5_moe_text",
            **_DELTA_NET,
            **_EXPERTS,
            "rope_parameters": _MROPE,
        },
    ),
    "qwen3_next": Reference(
        config={
            "model_type": "qwen3_next",
            **_DELTA_NET,
            **_EXPERTS,
            # llama.cpp takes heads of keys as wide as those of values only.
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "lfm2": Reference(
        config={"model_type": "lfm2", **_LFM2, "block_multiple_of": 32},
    ),
    "lfm2_moe": Reference(
        config={
            "model_type": "lfm2_moe",
            **_LFM2,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
        },
    ),
}
