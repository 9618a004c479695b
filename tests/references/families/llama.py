"""Llama, and what is computed as Llama."""

from __future__ import annotations

from references.reference import SIZES, Reference

REFERENCES = {
    "llama": Reference(config={"model_type": "llama", **SIZES, "rope_theta": 10000.0}),
    "llama_tied_biases_llama3": Reference(
        config={
            "model_type": "llama",
            **SIZES,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        }
    ),
    "llama_yarn": Reference(
        config={
            "model_type": "llama",
            **SIZES,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        }
    ),
    "mistral_window": Reference(
        config={"model_type": "mistral", **SIZES, "sliding_window": 48, "head_dim": 16},
        llama_cpp=False,
    ),
}
