"""Gemma 3."""

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

REFERENCES = {
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
}
