"""The keys that most decoders' configurations come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import GELU_TANH, SILU, Config
from caudal.formats.huggingface.rope_keys import FULL, SLIDING, rope_keys, rope_parameters

_ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(GELU_TANH, "gelu_tanh"),
    "relu": "relu",
    **dict.fromkeys(SILU, "silu"),
}


def head_dim(config: Config) -> int:
    """Channels of a head."""
    default = config.positive("hidden_size") // config.positive("num_attention_heads")
    return config.positive("head_dim", max(default, 1))


def decoder_keys(config: Config, *, yarn_truncates: bool = True) -> dict[str, MetadataValue]:
    """Sizes, norms and rotary positions, below `{architecture}.`.

    Args:
        config: The configuration.
        yarn_truncates: See `rope_keys`.

    Raises:
        ModelLoadError: A key is missing, or asks for what isn't computed.
    """
    heads = config.positive("num_attention_heads")
    channels = head_dim(config)
    return {
        "block_count": config.positive("num_hidden_layers"),
        "context_length": config.positive("max_position_embeddings"),
        "embedding_length": config.positive("hidden_size"),
        "feed_forward_length": _feed_forward(config),
        "attention.head_count": heads,
        "attention.head_count_kv": config.positive("num_key_value_heads", heads),
        "attention.key_length": channels,
        "attention.value_length": channels,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float, 1e-6),
        "rope.dimension_count": channels,
        "vocab_size": config.positive("vocab_size"),
        **rope_keys(config, rope_parameters(config), yarn_truncates=yarn_truncates),
    }


def local_layers(config: Config, default: Sequence[bool]) -> list[bool]:
    """Which layers have windows, by `layer_types`.

    Args:
        config: The configuration.
        default: Which do where it doesn't say.

    Raises:
        ModelLoadError: `layer_types` isn't one of the two for each layer.
    """
    kinds = config.strings("layer_types", [])
    if not kinds:
        return list(default)
    if len(kinds) != len(default) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.error(
            f"layer_types isn't {FULL} or {SLIDING} for each of {len(default)} layers"
        )
    return [kind == SLIDING for kind in kinds]


def window_keys(config: Config, local: Sequence[bool]) -> dict[str, MetadataValue]:
    """The window, and which layers have it, below `{architecture}.`.

    Raises:
        ModelLoadError: There is no window.
    """
    return {
        "attention.sliding_window": config.positive("sliding_window"),
        "attention.sliding_window_pattern": np.array(local),
    }


def _feed_forward(config: Config) -> int:
    """The width inside MLPs; where all of them are experts, there may be theirs alone."""
    of_experts = "moe_intermediate_size"
    default = config.positive(of_experts) if of_experts in config else None
    return config.positive("intermediate_size", default)


def layer_norm_keys(config: Config, epsilon: str = "layer_norm_eps") -> dict[str, MetadataValue]:
    """Those of decoders whose norms are LayerNorms.

    Args:
        config: The configuration.
        epsilon: What it calls that which norms add.

    Raises:
        ModelLoadError: A key is missing, or asks for what isn't computed.
    """
    keys = decoder_keys(config)
    del keys["attention.layer_norm_rms_epsilon"]
    return keys | {"attention.layer_norm_epsilon": config.get(epsilon, float, 1e-5)}


def refuse_windows(config: Config) -> None:
    """Refuse sliding windows, which are off in most files of families that could have them.

    Raises:
        ModelLoadError: Some layers have windows.
    """
    config.require("use_sliding_window", (False,), False)
    kinds = config.strings("layer_types", [])
    if any(kind != "full_attention" for kind in kinds):
        raise config.error("layer_types has layers other than full_attention")


def rotated_channels(config: Config, default: float) -> int:
    """Channels of a head that are rotated: the share `partial_rotary_factor` of them.

    Args:
        config: The configuration.
        default: The share where it isn't said.

    Raises:
        ModelLoadError: The share isn't one.
    """
    rope = rope_parameters(config)
    key = "partial_rotary_factor"
    share = rope.get(key, float, config.get(key, float, default))
    if not 0 < share <= 1:
        raise config.error(f"{key} must be over 0 and at most 1, but is {share}")
    return int(head_dim(config) * share)


def encoder_activation(config: Config, key: str) -> str:
    """A program's name for the activation inside an encoder's MLPs.

    Raises:
        ModelLoadError: It isn't computed; names it, and those that are.
    """
    name = config.get(key, str, "gelu")
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise config.error(f"{key} is {name!r:.50}; supported are {known}")
    return _ACTIVATIONS[name]


def expert_keys(config: Config) -> dict[str, MetadataValue]:
    """Sizes of experts in all layers, and how they are weighed, below `{architecture}.`.

    Raises:
        ModelLoadError: A key is missing, or asks for what isn't computed.
    """
    config.require("decoder_sparse_step", (1,), 1)
    config.require("mlp_only_layers", ([],), [])
    # Newer versions of transformers write one name for all families.
    count = "num_local_experts" if "num_local_experts" in config else "num_experts"
    keys: dict[str, MetadataValue] = {
        "expert_count": config.positive(count),
        "expert_used_count": config.positive("num_experts_per_tok"),
    }
    for ours, theirs in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        if theirs in config:
            keys[ours] = config.positive(theirs)
    if "norm_topk_prob" in config:
        keys["expert_weights_norm"] = config.get("norm_topk_prob", bool)
    return keys


SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""GGUF's numbers for how experts are scored."""


def leading_dense_layers(config: Config, default: int) -> int:
    """Layers before the first with experts, by `mlp_layer_types`.

    Args:
        config: The configuration.
        default: How many, where it doesn't say.

    Raises:
        ModelLoadError: It doesn't say it of each layer, or others are without experts, too.
    """
    layers = config.positive("num_hidden_layers")
    kinds = config.strings("mlp_layer_types", [])
    dense = kinds.count("dense")
    if kinds and kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise config.error(f"mlp_layer_types isn't dense, then sparse for each of {layers} layers")
    return dense if kinds else default


def deepseek_expert_keys(config: Config, *, scoring: int = SIGMOID) -> dict[str, MetadataValue]:
    """Experts as DeepSeek has them, below `{architecture}.`.

    Args:
        config: The configuration.
        scoring: How they are scored.

    Raises:
        ModelLoadError: A key is missing, or asks for what isn't computed.
    """
    config.require("moe_layer_freq", (1,), 1)
    # Newer versions of transformers write one name for all families.
    count = "n_routed_experts" if "n_routed_experts" in config else "num_local_experts"
    return {
        "expert_count": config.positive(count),
        "expert_used_count": config.positive("num_experts_per_tok"),
        "expert_shared_count": config.get("n_shared_experts", int, 0),
        "expert_feed_forward_length": config.positive("moe_intermediate_size"),
        "expert_weights_norm": config.get("norm_topk_prob", bool, True),
        "expert_weights_scale": config.get("routed_scaling_factor", float, 1.0),
        "expert_group_count": config.positive("n_group", 1),
        "expert_group_used_count": config.positive("topk_group", 1),
        "expert_gating_func": scoring,
        "leading_dense_block_count": config.get("first_k_dense_replace", int, 0),
    }
