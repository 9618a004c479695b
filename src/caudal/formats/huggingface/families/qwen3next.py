"""Qwen3-Next: delta nets and attention, with experts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families.qwen35 import (
    AHEAD,
    FULL_ATTENTION,
    LEFT_OUT,
    OUTSIDE,
    hybrid_keys,
)
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import expert_keys
from caudal.formats.huggingface.name_tables import EXPERTS, SHARED_EXPERT
from caudal.formats.huggingface.rows import Reordered, Rows
from caudal.formats.huggingface.tensor_rules import Found, negative_exp, squeezed


def _keys(config: Config) -> Keys:
    return {**hybrid_keys(config), **expert_keys(config)}


def _packed(found: Found) -> Mapping[str, Rows]:
    """Rows of queries, keys, values and gates, which are key head by key head, one after the other.

    Raises:
        ValueError: There are more rows, or fewer.
    """
    config, rows = found.config, found.rows
    key_heads = config.positive("linear_num_key_heads")
    of_key = config.positive("linear_key_head_dim")
    values = config.positive("linear_num_value_heads") * config.positive("linear_value_head_dim")
    of_values = values // key_heads
    needed = 2 * key_heads * (of_key + of_values)
    if rows.shape[0] != needed:
        raise ValueError(f"has {rows.shape[0]} rows instead of {needed}")
    heads = np.arange(needed).reshape(key_heads, -1)
    ends = [of_key, 2 * of_key, 2 * of_key + of_values]
    q, k, v, gate = (part.ravel() for part in np.split(heads, ends, axis=1))

    def part(order: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Rows:
        return Reordered(rows, order, (len(order), *rows.shape[1:]))

    return {
        found.named("attn_qkv"): part(np.concatenate([q, k, v])),
        found.named("attn_gate"): part(gate),
    }


FAMILY = Family(
    model_types=("qwen3_next",),
    architecture="qwen3next",
    keys=_keys,
    layer={
        **FULL_ATTENTION,
        **EXPERTS,
        **SHARED_EXPERT,
        "linear_attn.in_proj_qkvz": _packed,
        "linear_attn.in_proj_ba": "ssm_ba",
        "linear_attn.conv1d": squeezed("ssm_conv1d"),
        "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.A_log": negative_exp("ssm_a"),
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
    },
    others=OUTSIDE,
    left_out=LEFT_OUT,
    ahead=AHEAD,
    defaults={"norm_topk_prob": True},
)
