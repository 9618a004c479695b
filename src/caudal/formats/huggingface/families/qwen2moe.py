"""Qwen 1.5 and 2 with experts, one of them for all tokens."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys, refuse_windows
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, NORMS, SHARED_EXPERT
from caudal.formats.huggingface.needed import biases


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("qkv_bias", (True,), True)
    refuse_windows(config)
    return {**decoder_keys(config), **expert_keys(config)}


FAMILY = Family(
    model_types=("qwen2_moe",),
    architecture="qwen2moe",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        **EXPERTS,
        **SHARED_EXPERT,
    },
    defaults={"norm_topk_prob": False},
    needed=lambda _config: biases("attn_q", "attn_k", "attn_v"),
)
