"""Ministral 3: YaRN, and queries that grow with the position."""

from __future__ import annotations

from references.reference import SIZES, Reference

REFERENCES = {
    "ministral3": Reference(
        config={
            "model_type": "ministral3",
            **SIZES,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
}
