"""Gemma 4: of text, or of more, of which the text is loaded.

Layers that see all tokens have other heads. Published files say which with keys of their own
(`global_head_dim`), newer versions of transformers for each layer (`per_layer_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import GELU_TANH, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, local_layers, window_keys
from caudal.formats.huggingface.name_tables import ATTENTION, MLP
from caudal.formats.huggingface.needed import Needed
from caudal.formats.huggingface.rope_keys import (
    FULL,
    SLIDING,
    proportional_divisors,
    rope_parameters,
)
from caudal.formats.huggingface.rows import Rows
from caudal.formats.model_folder import JsonObject

_GLOBAL_EVERY = 6
_GLOBAL_HEAD_DIM = 512


def _keys(config: Config) -> Keys:
    config.require("hidden_activation", GELU_TANH, "gelu_pytorch_tanh")
    config.require("attention_bias", (False,), False)
    config.require("use_bidirectional_attention", (None, "vision"), None)
    layers = config.positive("num_hidden_layers")
    local = _local(config)
    local_rope = rope_parameters(config, SLIDING)
    if local_rope.get("rope_type", str, "default") != "default":
        raise config.error("rope_parameters scales positions of layers with windows")
    head_dim, kv_heads = _global_heads(config, local)
    local_head_dim = config.positive("head_dim")
    local_kv_heads = config.positive("num_key_value_heads")
    shared = config.get("num_kv_shared_layers", int, 0)
    own = "hidden_size_per_layer_input"
    has_own = config.get(own, int, 0) != 0
    return {
        **decoder_keys(config),
        **window_keys(config, local),
        "attention.head_count_kv": np.array(
            [local_kv_heads if each else kv_heads for each in local], np.int32
        ),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": local_head_dim,
        "attention.value_length_swa": local_head_dim,
        "attention.shared_kv_layers": shared,
        "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": local_head_dim,
        "rope.freq_base_swa": local_rope.get("rope_theta", float, 10000.0),
        "embedding_length_per_layer_input": config.positive(own) if has_own else 0,
        "final_logit_softcapping": config.get("final_logit_softcapping", float, 0.0),
        **_widths(config, layers, shared),
        **_experts(config),
    }


def _lacks(config: Config, layer: int, name: str) -> bool:
    """Layers that see all tokens may take their keys for values."""
    keys_are_values = name == "attn_v.weight" and config.get("attention_k_eq_v", bool, False)
    return keys_are_values and not _local(config)[layer]


def _local(config: Config) -> list[bool]:
    """Which layers have windows."""
    layers = config.positive("num_hidden_layers")
    return local_layers(
        config,
        [(layer + 1) % _GLOBAL_EVERY != 0 and layer + 1 < layers for layer in range(layers)],
    )


def _global_heads(config: Config, local: list[bool]) -> tuple[int, int]:
    """Channels of a head, and heads of keys, in layers that see all tokens."""
    kv_heads = config.positive("num_key_value_heads")
    each = config.part("per_layer_config")
    if not each.content:
        if config.get("attention_k_eq_v", bool, False):
            kv_heads = config.positive("num_global_key_value_heads", kv_heads)
        return config.positive("global_head_dim", _GLOBAL_HEAD_DIM), kv_heads
    own = [each.get(str(layer), dict, {}) for layer in range(len(local))]
    of_global = [given for given, is_local in zip(own, local, strict=True) if not is_local]
    if any(given for given, is_local in zip(own, local, strict=True) if is_local) or not all(
        given == of_global[0] and given.keys() <= {"head_dim", "num_key_value_heads"}
        for given in of_global
    ):
        raise config.error(
            f"per_layer_config isn't one of head_dim and num_key_value_heads for all of {FULL}"
        )
    found = JsonObject(each.source, of_global[0] if of_global else {})
    head_dim = found.positive("head_dim", config.positive("head_dim"))
    return head_dim, found.positive("num_key_value_heads", kv_heads)


def _widths(config: Config, layers: int, shared: int) -> dict[str, MetadataValue]:
    """Layers that share keys and values may have MLPs of twice the width."""
    if not config.get("use_double_wide_mlp", bool, False):
        return {}
    width = config.positive("intermediate_size")
    wide = [width * (2 if layer >= layers - shared else 1) for layer in range(layers)]
    return {"feed_forward_length": np.array(wide, np.int32)}


def _experts(config: Config) -> dict[str, MetadataValue]:
    if not config.get("enable_moe_block", bool, False):
        return {}
    return {
        "expert_count": config.positive("num_experts"),
        "expert_used_count": config.positive("top_k_experts"),
        "expert_feed_forward_length": config.positive("moe_intermediate_size"),
    }


def _divisors(config: Config) -> Mapping[str, Rows]:
    head_dim, _ = _global_heads(config, _local(config))
    return {"rope_freqs.weight": proportional_divisors(rope_parameters(config), head_dim)}


def _needed(config: Config) -> Needed:
    """A scale for each layer and each expert, and values where they aren't the keys."""
    local = _local(config)
    are_keys = config.get("attention_k_eq_v", bool, False)
    kept = len(local) - config.get("num_kv_shared_layers", int, 0)
    return {
        "attn_output.weight": "layer_output_scale.weight",
        "ffn_gate_inp.weight": "ffn_down_exps.scale",
        **{
            f"blk.{layer}.attn_k.weight": f"blk.{layer}.attn_v.weight"
            for layer, is_local in enumerate(local)
            if layer < kept and (is_local or not are_keys)
        },
    }


FAMILY = Family(
    model_types=("gemma4_text", "gemma4"),
    architecture="gemma4",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm": "post_ffw_norm",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "layer_scalar": "layer_output_scale.weight",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
        # As tools have them that quantise each matrix by itself.
        "experts.*.gate_proj": "ffn_gate_exps",
        "experts.*.up_proj": "ffn_up_exps",
        "experts.*.down_proj": "ffn_down_exps",
    },
    others={
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
    },
    made=_divisors,
    needed=_needed,
    lacks=_lacks,
    # What Gemma4TextConfig takes for keys that are missing.
    defaults={
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    tied=True,
)

# Of text, images and sound without encoders of their own (12B).
UNIFIED_FAMILY = replace(
    FAMILY,
    model_types=("gemma4_unified_text", "gemma4_unified"),
    defaults={**FAMILY.defaults, "max_position_embeddings": 262144, "sliding_window": 1024},
)
