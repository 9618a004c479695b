"""Command R7B and Command A (Cohere 2)."""

from __future__ import annotations

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, MLP, Family, Keys
from caudal.formats.huggingface.keys import layer_norm_keys
from caudal.formats.huggingface.rope_keys import FULL, SLIDING

_GLOBAL_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    layers = config.positive("num_hidden_layers")
    every = config.positive("sliding_window_pattern", _GLOBAL_EVERY)
    default = [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    kinds = config.get("layer_types", list, default)
    if len(kinds) != layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.error(f"layer_types isn't {SLIDING} or {FULL} for each of {layers} layers")
    return {
        **layer_norm_keys(config),
        "attention.sliding_window": config.positive("sliding_window"),
        "attention.sliding_window_pattern": np.array([kind == SLIDING for kind in kinds]),
        "logit_scale": config.get("logit_scale", float),
    }


FAMILY = Family(
    model_types=("cohere2",),
    architecture="cohere2",
    keys=_keys,
    layer={**ATTENTION, **MLP, "input_layernorm": "attn_norm"},
    defaults={"logit_scale": 0.0625, "max_position_embeddings": 8192, "sliding_window": 4096},
    tied=True,
)
