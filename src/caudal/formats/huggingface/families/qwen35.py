"""Qwen 3.5 and 3.6, dense and with experts.

Of models of text and images the text is loaded.

As converters do, value heads of the delta nets are put into another order: those that share a key
head lie side by side in checkpoints, and as far apart as there are key heads in GGUF.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys, rotated_channels
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, MLP, SHARED_EXPERT, Table
from caudal.formats.huggingface.rope_keys import FULL, rope_parameters
from caudal.formats.huggingface.rows import ColumnsReordered, Reordered, Rows, mapped, reshaped
from caudal.formats.huggingface.tensor_rules import Found, Rule, one_plus

_LINEAR = "linear_attention"
_ROTATED = 0.25  # of a head
_SECTIONS = [11, 11, 10]  # pairs that turn by time, height and width; of text all three are equal


def hybrid_keys(config: Config) -> dict[str, MetadataValue]:
    """The keys of decoders that have layers with delta nets.

    Raises:
        ModelLoadError: A key is missing, or asks for what isn't computed.
    """
    config.require("hidden_act", SILU, "silu")
    config.require("attn_output_gate", (True,), True)
    layers = config.positive("num_hidden_layers")
    kinds = config.strings("layer_types", []) or [
        FULL if index % interval == interval - 1 else _LINEAR
        for interval in [config.positive("full_attention_interval", 4)]
        for index in range(layers)
    ]
    if len(kinds) != layers or not all(kind in (FULL, _LINEAR) for kind in kinds):
        raise config.error(
            f"layer_types isn't linear_attention or full_attention for each of {layers} layers"
        )
    heads, value_dim = config.positive("linear_num_value_heads"), _value_dim(config)
    return {
        **decoder_keys(config),
        "rope.dimension_count": rotated_channels(config, _ROTATED),
        "attention.recurrent_layers": np.array([kind == _LINEAR for kind in kinds]),
        "ssm.conv_kernel": config.positive("linear_conv_kernel_dim"),
        "ssm.inner_size": heads * value_dim,
        "ssm.state_size": config.positive("linear_key_head_dim"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.positive("linear_num_key_heads"),
    }


def _keys(config: Config) -> Keys:
    sections = rope_parameters(config).get("mrope_section", list, _SECTIONS)
    if not all(type(size) is int and 0 <= size < 2**31 for size in sections):
        raise config.error("mrope_section isn't a list of sizes")
    padded = np.array([*sections, 0, 0, 0, 0][:4], np.int32)
    return {**hybrid_keys(config), "rope.dimension_sections": padded}


def _keys_with_experts(config: Config) -> Keys:
    return {**_keys(config), **expert_keys(config), "expert_weights_norm": True}


def _value_dim(config: Config) -> int:
    return config.positive("linear_value_head_dim")


def _key_rows(config: Config) -> int:
    """Rows of queries and keys, before those of values."""
    of_one = config.positive("linear_key_head_dim") * config.positive("linear_num_key_heads")
    return 2 * of_one


def _heads(config: Config) -> npt.NDArray[np.int64]:
    """Which of the checkpoint's value heads each one is."""
    heads, key_heads = (config.positive(f"linear_num_{of}_heads") for of in ("value", "key"))
    if heads % key_heads != 0:
        raise config.error(
            f"linear_num_value_heads ({heads}) is not a multiple of linear_num_key_heads "
            f"({key_heads})"
        )
    order: npt.NDArray[np.int64] = np.arange(heads).reshape(key_heads, -1).T.ravel()
    return order


def _tiled(
    name: str,
    *,
    channels: Callable[[Config], int] = lambda _config: 1,
    before: Callable[[Config], int] = lambda _config: 0,
) -> Rule:
    """Rows of value heads in the other order.

    Args:
        name: The tensor, or module.
        channels: Rows of a head.
        before: Rows before those of value heads.
    """

    def rule(found: Found) -> Mapping[str, Rows]:
        rows, config = found.rows, found.config
        shape = tuple(size for size in rows.shape if size != 1)  # of convolutions: (channels, taps)
        rows = rows if shape == rows.shape else reshaped(rows, shape)
        first, width = before(config), channels(config)
        of_heads = _heads(config)[:, None] * width + np.arange(width)
        order = np.concatenate([np.arange(first), first + of_heads.ravel()])
        if shape[0] != len(order):
            raise ValueError(f"has {shape[0]} rows instead of {len(order)}")
        if len(shape) == 1:
            return {found.named(name): mapped(rows, lambda values: values[order])}
        return {found.named(name): Reordered(rows, order)}

    return rule


def _decay(found: Found) -> Mapping[str, Rows]:
    """The logarithm of what is left of a state: -exp(A_log) times the step."""
    rows = mapped(found.rows, lambda values: -np.exp(values))
    return _tiled("ssm_a")(Found(found.config, found.layer, found.kind, rows))


def _tiled_columns(found: Found) -> Mapping[str, Rows]:
    order = _heads(found.config)
    if found.rows.shape[-1] != len(order) * _value_dim(found.config):
        raise ValueError(f"has {found.rows.shape[-1]} columns, which aren't those of value heads")
    return {found.named("ssm_out"): ColumnsReordered(found.rows, order)}


FULL_ATTENTION: Table = {
    **ATTENTION,
    "self_attn.q_norm": one_plus("attn_q_norm"),
    "self_attn.k_norm": one_plus("attn_k_norm"),
    "input_layernorm": one_plus("attn_norm"),
    "post_attention_layernorm": one_plus("post_attention_norm"),
}
OUTSIDE: Table = {
    "embed_tokens": "token_embd",
    "norm": one_plus("output_norm"),
    "lm_head": "output",
}
AHEAD: Table = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": one_plus("nextn.enorm"),
    "pre_fc_norm_hidden": one_plus("nextn.hnorm"),
    "norm": one_plus("nextn.shared_head_norm"),
}
"""What predicts a token further ahead has besides its layer, in a module of its own."""

LEFT_OUT = ("mtp", "rotary_emb")
"""Besides rotations, what predicts several tokens at once, where that isn't asked for."""

FAMILY = Family(
    model_types=("qwen3_5_text", "qwen3_5"),
    architecture="qwen35",
    keys=_keys,
    layer={
        **FULL_ATTENTION,
        **MLP,
        "linear_attn.in_proj_qkv": _tiled("attn_qkv", channels=_value_dim, before=_key_rows),
        "linear_attn.in_proj_z": _tiled("attn_gate", channels=_value_dim),
        "linear_attn.in_proj_a": _tiled("ssm_alpha"),
        "linear_attn.in_proj_b": _tiled("ssm_beta"),
        "linear_attn.conv1d": _tiled("ssm_conv1d", channels=_value_dim, before=_key_rows),
        "linear_attn.dt_bias": _tiled("ssm_dt.bias"),
        "linear_attn.A_log": _decay,
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": _tiled_columns,
    },
    others=OUTSIDE,
    left_out=LEFT_OUT,
    ahead=AHEAD,
)

EXPERTS_FAMILY = replace(
    FAMILY,
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    architecture="qwen35moe",
    keys=_keys_with_experts,
    layer={**FAMILY.layer, **EXPERTS, **SHARED_EXPERT},
)
