"""Command R7B and Command A (Cohere 2), and with experts."""

from __future__ import annotations

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, EXPERTS, MLP, SHARED_EXPERTS, Family, Keys
from caudal.formats.huggingface.keys import (
    SIGMOID,
    SOFTMAX_OF_CHOSEN,
    decoder_keys,
    expert_keys,
    layer_norm_keys,
)
from caudal.formats.huggingface.rope_keys import FULL, SLIDING

_GLOBAL_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    layers = config.positive("num_hidden_layers")
    every = config.positive("sliding_window_pattern", _GLOBAL_EVERY)
    default = [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    kinds = config.strings("layer_types", default)
    if len(kinds) != layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.error(f"layer_types isn't {SLIDING} or {FULL} for each of {layers} layers")
    return {
        **layer_norm_keys(config),
        "attention.sliding_window": config.positive("sliding_window"),
        "attention.sliding_window_pattern": np.array([kind == SLIDING for kind in kinds]),
        "logit_scale": config.get("logit_scale", float),
    }


def _keys_with_experts(config: Config) -> Keys:
    config.require("prefix_dense_sliding_window_pattern", (1,), 1)
    if "layer_types" not in config:
        raise config.error("layer_types is missing")
    config.require("shared_expert_combination_strategy", ("average",), "average")
    config.require("expert_selection_fn", tuple(_SCORINGS), "softmax")
    layers, inner = config.positive("num_hidden_layers"), config.positive("intermediate_size")
    kinds = config.strings("mlp_layer_types", ["sparse"] * layers)
    dense = kinds.count("dense")
    if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise config.error("mlp_layer_types isn't of dense layers, then sparse ones")
    shared = config.get("num_shared_experts", int, 0)
    keys = {**_keys(config), **expert_keys(config)}
    if "rms_norm_eps" in config:
        del keys["attention.layer_norm_epsilon"]
        of_norms = "attention.layer_norm_rms_epsilon"
        keys[of_norms] = decoder_keys(config)[of_norms]
    return keys | {
        "feed_forward_length": config.positive("prefix_dense_intermediate_size", inner),
        "leading_dense_block_count": dense,
        "expert_feed_forward_length": inner,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * inner,
        "expert_gating_func": _SCORINGS[config.get("expert_selection_fn", str, "softmax")],
        "expert_weights_norm": config.get("norm_topk_prob", bool, True),
    }


_SCORINGS = {"softmax": SOFTMAX_OF_CHOSEN, "sigmoid": SIGMOID}

FAMILY = Family(
    model_types=("cohere2",),
    architecture="cohere2",
    keys=_keys,
    layer={**ATTENTION, **MLP, "input_layernorm": "attn_norm"},
    defaults={"logit_scale": 0.0625, "max_position_embeddings": 8192, "sliding_window": 4096},
    tied=True,
)

EXPERTS_FAMILY = Family(
    model_types=("cohere2_moe",),
    architecture="cohere2moe",
    keys=_keys_with_experts,
    layer={**FAMILY.layer, **EXPERTS, **SHARED_EXPERTS},
    defaults={**FAMILY.defaults, "head_dim": 128},
    tied=True,
)
