"""GLM-4 of 2025 (0414)."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, rotated_channels
from caudal.formats.huggingface.name_tables import ATTENTION
from caudal.formats.huggingface.needed import biases_if


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    return {**decoder_keys(config), "rope.dimension_count": rotated_channels(config, 0.5)}


FAMILY = Family(
    model_types=("glm4",),
    architecture="glm4",
    keys=_keys,
    layer={
        **ATTENTION,
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_self_attn_layernorm": "post_attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "post_mlp_layernorm": "post_ffw_norm",
    },
    needed=lambda config: biases_if(
        config, "attention_bias", ("attn_q", "attn_k", "attn_v"), default=True
    ),
    sizes=lambda config: {"ffn_up.weight": 2 * config.positive("intermediate_size")},
)
