"""Granite 3 and 4, dense and with experts, with Mamba-2 layers and without."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys
from caudal.formats.huggingface.name_tables import MLP, NORMS, PERMUTED_ATTENTION, Table
from caudal.formats.huggingface.needed import biases_if, declared_biases
from caudal.formats.huggingface.rows import Rows
from caudal.formats.huggingface.state_space import UNLIMITED, mamba2
from caudal.formats.huggingface.tensor_rules import Found, split


def _multipliers(config: Config) -> dict[str, MetadataValue]:
    return {
        "embedding_scale": config.get("embedding_multiplier", float, 1.0),
        "residual_scale": config.get("residual_multiplier", float, 1.0),
        "attention.scale": config.get("attention_multiplier", float, 1.0),
        "logit_scale": config.get("logits_scaling", float, 1.0),
    }


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    return {**decoder_keys(config), **_multipliers(config)}


def _keys_with_experts(config: Config) -> Keys:
    keys = {**_keys(config), **expert_keys(config), "expert_weights_norm": True}
    shared = config.get("shared_intermediate_size", int, 0)
    return {**keys, "expert_shared_feed_forward_length": shared} if shared else keys


def _hybrid_keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("mamba_proj_bias", (False,), False)
    config.require("mamba_n_groups", (1,), 1)  # of more, norms would be of all together
    config.require("position_embedding_type", (None, "nope", "rope"), None)
    config.require("time_step_limit", UNLIMITED, None)
    layers = config.positive("num_hidden_layers")
    kinds = config.strings("layer_types", config.strings("layers_block_type", []))
    if len(kinds) != layers or not all(kind in _KINDS for kind in kinds):
        raise config.error(f"layer_types isn't mamba or attention for each of {layers} layers")
    kv_heads = config.positive("num_key_value_heads", config.positive("num_attention_heads"))
    heads, of_head = config.positive("mamba_n_heads"), _mamba_head(config)
    feed_forward: Keys = {"feed_forward_length": config.positive("shared_intermediate_size")}
    return {
        **decoder_keys(config),
        **_multipliers(config),
        **(_keys_with_experts(config) if _has_experts(config) else feed_forward),
        "attention.head_count_kv": np.array([kv_heads * _KINDS[kind] for kind in kinds], np.int32),
        "rope.scaling.finetuned": config.get("position_embedding_type", str, "nope") == "rope",
        "ssm.conv_kernel": config.positive("mamba_d_conv"),
        "ssm.state_size": config.positive("mamba_d_state"),
        "ssm.group_count": 1,
        "ssm.inner_size": heads * of_head,
        "ssm.time_step_rank": heads,
    }


def _has_experts(config: Config) -> bool:
    return config.get("num_local_experts", int, 8) > 0


_KINDS = {"mamba": 0, "linear_attention": 0, "attention": 1, "full_attention": 1}
"""Names of layers, and whether they attend."""


def _mamba_head(config: Config) -> int:
    if config.content.get("mamba_d_head") in (None, "auto"):
        inner = config.positive("mamba_expand") * config.positive("hidden_size")
        return max(inner // config.positive("mamba_n_heads"), 1)
    return config.positive("mamba_d_head")


def _shared(found: Found) -> Mapping[str, Rows]:
    """What all tokens pass: beside experts, or where there are none."""
    names = ("ffn_gate", "ffn_up")
    if _has_experts(found.config):
        names = ("ffn_gate_shexp", "ffn_up_shexp")
    return split(*names)(found)


def _shared_down(found: Found) -> Mapping[str, Rows]:
    name = "ffn_down_shexp" if _has_experts(found.config) else "ffn_down"
    return {found.named(name): found.rows}


_EXPERTS: Table = {
    "shared_mlp.input_linear": _shared,
    "shared_mlp.output_linear": _shared_down,
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": split("ffn_gate_exps", "ffn_up_exps"),
    "block_sparse_moe.output_linear": "ffn_down_exps",
}

FAMILY = Family(
    model_types=("granite",),
    architecture="granite",
    keys=_keys,
    layer={**PERMUTED_ATTENTION, **MLP, **NORMS},
)

EXPERTS_FAMILY = Family(
    model_types=("granitemoe", "granitemoeshared"),
    architecture="granitemoe",
    keys=_keys_with_experts,
    layer={**PERMUTED_ATTENTION, **NORMS, **_EXPERTS},
)

HYBRID_FAMILY = Family(
    model_types=("granitemoehybrid",),
    architecture="granitehybrid",
    keys=_hybrid_keys,
    layer={
        **PERMUTED_ATTENTION,
        **NORMS,
        **_EXPERTS,
        **mamba2("mamba"),
    },
    needed=lambda config: {
        **declared_biases(config),
        **biases_if(config, "mamba_conv_bias", ("ssm_conv1d",), default=True),
        **({} if _has_experts(config) else {"ffn_up.weight": "ffn_gate.weight"}),
    },
)
