"""OLMo 2 and 3."""

from __future__ import annotations

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.name_tables import ATTENTION, MLP
from caudal.formats.huggingface.rope_keys import FULL, SLIDING, rope_parameters


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    keys = decoder_keys(config)
    kinds = config.strings("layer_types", [])
    if any(kind not in (FULL, SLIDING) for kind in kinds):
        raise config.error(f"layer_types has layers that are neither {FULL} nor {SLIDING}")
    if SLIDING not in kinds:
        return keys
    local = rope_parameters(config, SLIDING)
    return {
        **keys,
        "attention.sliding_window": config.positive("sliding_window"),
        "attention.sliding_window_pattern": np.array([kind == SLIDING for kind in kinds]),
        "rope.freq_base_swa": local.get("rope_theta", float, 10000.0),
    }


FAMILY = Family(
    model_types=("olmo2", "olmo3"),
    architecture="olmo2",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
)
