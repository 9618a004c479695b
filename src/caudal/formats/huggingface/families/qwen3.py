"""Qwen 3 (dense)."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, MLP, NORMS, Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, refuse_windows


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    return decoder_keys(config)


FAMILY = Family(
    model_types=("qwen3",),
    architecture="qwen3",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        **NORMS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    defaults={"head_dim": 128},
)
