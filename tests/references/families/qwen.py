"""Qwen 2 and 3, dense."""

from __future__ import annotations

from references.reference import SIZES, Reference

REFERENCES = {
    "qwen2": Reference(
        config={"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
        spread={"_proj.bias": (0.0, 0.5)},
    ),
    "qwen3": Reference(config={"model_type": "qwen3", **SIZES, "head_dim": 32}),
}
