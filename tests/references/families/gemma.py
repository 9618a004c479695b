"""Gemma 2 to 4."""

from __future__ import annotations

from references.reference import SIZES, Reference

TEXT = {
    **SIZES,
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 48,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}

_GEMMA4 = {
    "model_type": "gemma4_text",
    **SIZES,
    "num_hidden_layers": 6,
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 0,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 48,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0,
}
# Weights of norms that keep scores, which aren't scaled, from choosing one token alone.
_GEMMA4_SPREAD = {"q_norm": (0.5, 0.1), "k_norm": (0.5, 0.1)}

REFERENCES = {
    "gemma2": Reference(
        config={
            "model_type": "gemma2",
            **SIZES,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "sliding_window": 48,
            "query_pre_attn_scalar": 32,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    # llama.cpp takes the scale of attention from the size of the model.
    "gemma3": Reference(config={"model_type": "gemma3_text", **TEXT}, llama_cpp=False),
    "gemma3_text_and_images": Reference(
        config={
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", **TEXT, "query_pre_attn_scalar": 32},
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 319,
            "boi_token_index": 318,
            "eoi_token_index": 317,
        },
        auto="AutoModelForImageTextToText",
    ),
    # Windows, sparse layers, shared keys, and a table that lacks the last tokens. llama.cpp takes
    # which layers are sparse and have keys from the number of them in E2B and E4B.
    "gemma3n": Reference(
        config={
            "model_type": "gemma3n_text",
            **SIZES,
            "num_hidden_layers": 6,
            "head_dim": 16,
            "sliding_window": 48,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3,
            "vocab_size_per_layer_input": 310,
            "hidden_size_per_layer_input": 16,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.8, 0.95, 0.0, 0.5, 0.0, 0.0],
            "intermediate_size": [96, 96, 64, 96, 96, 96],
            "final_logit_softcapping": 3.0,
        },
        spread={"q_norm": (0.5, 0.1), "k_norm": (0.5, 0.1), "correct_output_scale": (1.0, 0.3)},
        llama_cpp=False,
    ),
    # E2B: keys and values are shared by the last layers, which are wider; each has an embedding.
    "gemma4_small": Reference(
        config={
            **_GEMMA4,
            "hidden_size_per_layer_input": 16,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
        spread=_GEMMA4_SPREAD,
    ),
    # 12B, the text of it. llama.cpp's GELU, of half precision, takes it a little over 1e-3 away.
    "gemma4_unified": Reference(
        config={
            "model_type": "gemma4_unified",
            "text_config": {
                **_GEMMA4,
                "model_type": "gemma4_unified_text",
                "num_hidden_layers": 3,
                "layer_types": _GEMMA4["layer_types"][:3],
            },
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "mm_embed_dim": 16,
                "output_proj_dims": 16,
                "patch_size": 2,
                "pooling_kernel_size": 1,
                "model_patch_size": 2,
                "mm_posemb_size": 4,
            },
            "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 16},
            "image_token_id": 319,
            "video_token_id": 315,
            "audio_token_id": 312,
        },
        auto="AutoModelForImageTextToText",
        spread=_GEMMA4_SPREAD,
        llama_cpp=False,
    ),
    # 26B-A4B: experts, and keys that are values, in layers that see all.
    "gemma4_experts": Reference(
        config={
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": _GEMMA4["layer_types"][:3],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
        spread=_GEMMA4_SPREAD,
    ),
}
