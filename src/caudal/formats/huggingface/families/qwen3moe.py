"""Qwen 3 with experts."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, EXPERTS, NORMS, Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys, refuse_windows


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    return {**decoder_keys(config), **expert_keys(config)}


FAMILY = Family(
    model_types=("qwen3_moe",),
    architecture="qwen3moe",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        **EXPERTS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    defaults={"head_dim": 128, "norm_topk_prob": False},
)
