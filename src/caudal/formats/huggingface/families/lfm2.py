"""LFM2 and LFM2.5, dense and with experts: short convolutions and attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys
from caudal.formats.huggingface.needed import SELECTION, biases_if
from caudal.formats.huggingface.rope_keys import FULL
from caudal.formats.huggingface.tensor_rules import squeezed

_SIGMOID = 2
"""llama.cpp's number of how experts are scored."""


def _hybrid_keys(config: Config) -> dict[str, MetadataValue]:
    layers = config.positive("num_hidden_layers")
    kinds = _kinds(config, layers)
    heads = config.positive("num_key_value_heads", config.positive("num_attention_heads"))
    of_layers = [heads if kind == FULL else 0 for kind in kinds]
    return {
        **decoder_keys(config),
        "attention.head_count_kv": np.array(of_layers, np.int32),
        "attention.layer_norm_rms_epsilon": config.get("norm_eps", float, 1e-5),
        "shortconv.l_cache": config.positive("conv_L_cache", 3),
    }


def _keys(config: Config) -> Keys:
    return {**_hybrid_keys(config), "feed_forward_length": _feed_forward(config)}


def _keys_with_experts(config: Config) -> Keys:
    config.require("use_expert_bias", (True,), True)
    return {
        **_hybrid_keys(config),
        **expert_keys(config),
        "expert_weights_scale": config.get("routed_scaling_factor", float, 1.0),
        "expert_gating_func": _SIGMOID,
        "leading_dense_block_count": config.get("num_dense_layers", int, 2),
    }


def _kinds(config: Config, layers: int) -> list[str]:
    kinds = config.strings("layer_types", [])
    if not kinds:
        attending = config.get("full_attn_idxs", list, list(range(layers)))
        kinds = [FULL if index in attending else "conv" for index in range(layers)]
    if len(kinds) != layers or not all(kind in (FULL, "conv") for kind in kinds):
        raise config.error(f"layer_types isn't conv or full_attention for each of {layers} layers")
    return kinds


def _feed_forward(config: Config) -> int:
    """The width inside MLPs: two thirds of what is said, as a rule, and a round number."""
    width = config.positive("block_ff_dim", config.positive("intermediate_size", 12288))
    if not config.get("block_auto_adjust_ff_dim", bool, True):
        return width
    width = int(config.get("block_ffn_dim_multiplier", float, 1.0) * int(2 * width / 3))
    multiple = config.positive("block_multiple_of", 256)
    return -(-width // multiple) * multiple


_CONVOLUTION = ("shortconv.conv", "shortconv.in_proj", "shortconv.out_proj")

FAMILY = Family(
    model_types=("lfm2",),
    architecture="lfm2",
    keys=_keys,
    layer={
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
        "conv.conv": squeezed("shortconv.conv"),
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
    },
    others={
        "embed_tokens": "token_embd",
        "embedding_norm": "token_embd_norm",
        "lm_head": "output",
    },
    defaults={
        "rope_theta": 1000000.0,
        "max_position_embeddings": 128000,
        "intermediate_size": 12288,
    },
    tied=True,
    needed=lambda config: biases_if(config, "conv_bias", _CONVOLUTION),
)

EXPERTS_FAMILY = replace(
    FAMILY,
    model_types=("lfm2_moe",),
    architecture="lfm2moe",
    keys=_keys_with_experts,
    layer={
        **FAMILY.layer,
        "feed_forward.gate": "ffn_gate_inp",
        "feed_forward.expert_bias": "exp_probs_b.bias",
        "feed_forward.experts.*.w1": "ffn_gate_exps",
        "feed_forward.experts.*.w3": "ffn_up_exps",
        "feed_forward.experts.*.w2": "ffn_down_exps",
    },
    defaults={
        "rope_theta": 1000000.0,
        "max_position_embeddings": 128000,
        "norm_topk_prob": True,
    },
    needed=lambda config: {
        **biases_if(config, "conv_bias", _CONVOLUTION),
        **SELECTION,
    },
)
