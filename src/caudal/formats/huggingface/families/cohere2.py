"""Command R7B and Command A (Cohere 2), and with experts."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import (
    SIGMOID,
    SOFTMAX_OF_CHOSEN,
    decoder_keys,
    expert_keys,
    layer_norm_keys,
    leading_dense_layers,
    local_layers,
    window_keys,
)
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, MLP, SHARED_EXPERTS

_GLOBAL_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    layers = config.positive("num_hidden_layers")
    every = config.positive("sliding_window_pattern", _GLOBAL_EVERY)
    local = local_layers(config, [(layer + 1) % every != 0 for layer in range(layers)])
    return {
        **layer_norm_keys(config),
        **window_keys(config, local),
        "logit_scale": config.get("logit_scale", float),
    }


def _keys_with_experts(config: Config) -> Keys:
    config.require("prefix_dense_sliding_window_pattern", (1,), 1)
    if "layer_types" not in config:
        raise config.error("layer_types is missing")
    config.require("shared_expert_combination_strategy", ("average",), "average")
    config.require("expert_selection_fn", tuple(_SCORINGS), "softmax")
    inner = config.positive("intermediate_size")
    shared = config.get("num_shared_experts", int, 0)
    keys = {**_keys(config), **expert_keys(config)}
    if "rms_norm_eps" in config:
        del keys["attention.layer_norm_epsilon"]
        of_norms = "attention.layer_norm_rms_epsilon"
        keys[of_norms] = decoder_keys(config)[of_norms]
    return keys | {
        "feed_forward_length": config.positive("prefix_dense_intermediate_size", inner),
        "leading_dense_block_count": leading_dense_layers(config, 0),
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
