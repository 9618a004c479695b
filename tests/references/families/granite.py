"""Granite 3 and 4: dense, with experts, and with Mamba-2 layers."""

from __future__ import annotations

from references.reference import SIZES, Reference

_MULTIPLIERS = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 0.5,
}
_GRANITE = {**SIZES, **_MULTIPLIERS, "rope_theta": 10000.0}
_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32}
_MAMBA = {
    **SIZES,
    **_MULTIPLIERS,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "shared_intermediate_size": 48,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
}

REFERENCES = {
    "granite": Reference(
        config={"model_type": "granite", **_GRANITE, "tie_word_embeddings": True},
    ),
    "granite_moe": Reference(
        config={"model_type": "granitemoe", **_GRANITE, **_EXPERTS},
    ),
    "granite_moe_shared": Reference(
        config={
            "model_type": "granitemoeshared",
            **_GRANITE,
            **_EXPERTS,
            "shared_intermediate_size": 48,
        },
    ),
    "granite_hybrid": Reference(
        config={"model_type": "granitemoehybrid", **_MAMBA, "num_local_experts": 0},
    ),
    "granite_hybrid_moe": Reference(
        config={"model_type": "granitemoehybrid", **_MAMBA, **_EXPERTS},
    ),
}
