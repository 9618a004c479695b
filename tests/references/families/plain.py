"""Families that differ from Llama in norms, rotations and fused matrices."""

from __future__ import annotations

from references.reference import SIZES, Reference

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "depth": 1,
    "num_heads": 2,
    "patch_size": 14,
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}

REFERENCES = {
    "smollm3": Reference(
        config={"model_type": "smollm3", **SIZES, "num_hidden_layers": 5, "rope_theta": 5e6},
    ),
    "olmo2": Reference(config={"model_type": "olmo2", **SIZES}),
    # llama.cpp computes something else than transformers from the second token on.
    "olmo3": Reference(
        llama_cpp=False,
        config={
            "model_type": "olmo3",
            **SIZES,
            "num_hidden_layers": 5,
            "sliding_window": 40,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
            },
        },
    ),
    "glm4": Reference(
        config={"model_type": "glm4", **SIZES, "head_dim": 16, "attention_bias": True},
    ),
    "phi3": Reference(config={"model_type": "phi3", **SIZES}),
    # Transformers takes the factors for long sequences as this prompt is over 64 tokens, Caudal
    # because longer ones are served.
    "phi3_longrope": Reference(
        config={
            "model_type": "phi3",
            **SIZES,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "original_max_position_embeddings": 64,
                "long_factor": [1.5, 2.0, 3.0, 4.0],
                "short_factor": [1.0, 1.1, 1.2, 1.3],
            },
        },
    ),
    "qwen2_vl": Reference(
        config={
            "model_type": "qwen2_vl",
            "text_config": {
                "model_type": "qwen2_vl_text",
                **SIZES,
                "rope_parameters": {**_MROPE, "rope_theta": 1e6},
            },
            "vision_config": {"model_type": "qwen2_vl", **_VISION, "embed_dim": 16},
        },
        auto="AutoModelForImageTextToText",
    ),
    "qwen3_vl": Reference(
        config={
            "model_type": "qwen3_vl",
            "text_config": {
                "model_type": "qwen3_vl_text",
                **SIZES,
                "head_dim": 16,
                "rope_parameters": _MROPE,
            },
            "vision_config": {
                "model_type": "qwen3_vl",
                **_VISION,
                "out_hidden_size": 64,
                "deepstack_visual_indexes": [0],
            },
        },
        auto="AutoModelForImageTextToText",
    ),
    "muse_glimmer": Reference(
        config={
            "model_type": "muse_glimmer",
            "text_config": {
                "model_type": "muse_glimmer_text",
                **SIZES,
                "num_hidden_layers": 4,
                "head_dim": 16,
                "sliding_window": 48,
                "qk_scale_factor": 1.5,
                "output_multiplier": 0.5,
                "final_logit_softcapping": 3.0,
            },
            "vision_config": {
                "model_type": "muse_glimmer_vision",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "pos_emb_height": 2,
                "pos_emb_width": 2,
            },
            "out_hidden_size": 64,
            "projector_hidden_size": 16,
            "image_token_id": 319,
            "video_token_id": 315,
        },
        auto="AutoModelForImageTextToText",
    ),
}
