"""Nemotron-H and Nemotron 3."""

from __future__ import annotations

from typing import Any

from references.reference import SIZES, Reference

_SIZES: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
    "model_type": "nemotron_h",
    "head_dim": 16,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 64,
    # As the kernels that train it have it: steps are not kept from being small.
    "time_step_min": 1e-12,
}

REFERENCES = {
    "nemotron_h": Reference(
        config={
            **_SIZES,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        },
    ),
    "nemotron_h_moe": Reference(
        config={
            **_SIZES,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "moe_latent_size": 32,
            "routed_scaling_factor": 2.5,
        },
    ),
}
