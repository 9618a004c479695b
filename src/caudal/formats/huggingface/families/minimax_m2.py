"""MiniMax M2."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import SIGMOID, decoder_keys, expert_keys, rotated_channels
from caudal.formats.huggingface.name_tables import ATTENTION, NORMS
from caudal.formats.huggingface.needed import SELECTION


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("scoring_func", ("sigmoid",), "sigmoid")
    return {
        **decoder_keys(config),
        **expert_keys(config),
        "expert_feed_forward_length": config.positive("intermediate_size"),
        "expert_gating_func": SIGMOID,
        "rope.dimension_count": config.positive("rotary_dim", rotated_channels(config, 1.0)),
    }


FAMILY = Family(
    model_types=("minimax_m2",),
    architecture="minimax-m2",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
        "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
        "block_sparse_moe.experts.*.w2": "ffn_down_exps",
        "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    },
    defaults={"head_dim": 128, "rope_theta": 5000000.0},
    needed=lambda _config: SELECTION,
)
