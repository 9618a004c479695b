"""Ministral 3 and Devstral 2: the text of both."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.name_tables import MLP, NORMS, PERMUTED_ATTENTION
from caudal.formats.huggingface.rope_keys import rope_parameters, yarn_multiplier_keys


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("sliding_window", (None,), None)
    rope = rope_parameters(config)
    keys = {**decoder_keys(config), **yarn_multiplier_keys(rope, of_rotated=1.0)}
    scale = rope.get("llama_4_scaling_beta", float, 0.0)
    if scale:
        keys["attention.temperature_scale"] = scale
        keys["attention.temperature_length"] = rope.positive("original_max_position_embeddings")
    return keys


FAMILY = Family(
    model_types=("ministral3",),
    architecture="mistral3",
    keys=_keys,
    layer={
        **PERMUTED_ATTENTION,
        **MLP,
        **NORMS,
    },
    defaults={"head_dim": 128, "rms_norm_eps": 1e-5},
)
