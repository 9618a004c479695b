"""OLMoE."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, NORMS


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("clip_qkv", (None,), None)
    return {**decoder_keys(config), **expert_keys(config)}


FAMILY = Family(
    model_types=("olmoe",),
    architecture="olmoe",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        **EXPERTS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    defaults={"norm_topk_prob": False},
)
