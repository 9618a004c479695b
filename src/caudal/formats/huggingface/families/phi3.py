"""Phi-3, Phi-3.5 and Phi-4, of text."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, rotated_channels
from caudal.formats.huggingface.name_tables import NORMS
from caudal.formats.huggingface.rope_keys import longrope_factors, rope_parameters
from caudal.formats.huggingface.rows import Rows


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    return {**decoder_keys(config), "rope.dimension_count": rotated_channels(config, 1.0)}


def _made(config: Config) -> Mapping[str, Rows]:
    return longrope_factors(rope_parameters(config), rotated_channels(config, 1.0))


FAMILY = Family(
    model_types=("phi3",),
    architecture="phi3",
    keys=_keys,
    layer={
        **NORMS,
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
    made=_made,
    sizes=lambda config: {"ffn_up.weight": 2 * config.positive("intermediate_size")},
)
