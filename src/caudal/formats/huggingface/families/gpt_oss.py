"""gpt-oss, with MXFP4 weights as it was published, or with plain ones.

Rows of gates and of what they let through take turns in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys, local_layers, window_keys
from caudal.formats.huggingface.name_tables import ATTENTION
from caudal.formats.huggingface.needed import biases
from caudal.formats.huggingface.rows import Reordered, Rows, made_of_floats, mapped, transposed
from caudal.formats.huggingface.tensor_rules import Found, chained, swapped

_GATE, _UP, _DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("attention_bias", (True,), True)
    config.require("swiglu_alpha", (1.702,), 1.702)
    config.require("swiglu_limit", (7.0,), 7.0)
    layers = config.positive("num_hidden_layers")
    local = local_layers(config, [layer % 2 == 0 for layer in range(layers)])
    return {
        **decoder_keys(config, yarn_truncates=False),
        **expert_keys(config),
        **window_keys(config, local),
        "expert_feed_forward_length": config.positive("intermediate_size"),
    }


def _taken_apart(found: Found) -> Mapping[str, Rows]:
    rows = found.rows
    if len(rows.shape) != 3 or rows.shape[1] % 2 != 0:
        raise ValueError(f"has the shape {list(rows.shape)}, not [experts, 2 · rows, columns]")
    count, both, columns = rows.shape
    every = np.arange(count * both)
    shape = (count, both // 2, columns)
    return {
        f"{name}.weight": Reordered(rows, every[first::2], shape)
        for first, name in enumerate((_GATE, _UP))
    }


def _biases(found: Found) -> Mapping[str, Rows]:
    rows = found.rows
    if len(rows.shape) != 2 or rows.shape[1] % 2 != 0:
        raise ValueError(f"has the shape {list(rows.shape)}, not [experts, 2 · rows]")
    shape = (rows.shape[0], rows.shape[1] // 2)

    def every_other(first: int) -> Rows:
        return made_of_floats(rows.name, shape, lambda: rows.floats()[:, first::2])

    return {f"{name}.bias": every_other(first) for first, name in enumerate((_GATE, _UP))}


def _down_bias(found: Found) -> Mapping[str, Rows]:
    return {f"{_DOWN}.bias": mapped(found.rows, lambda values: values)}


FAMILY = Family(
    model_types=("gpt_oss",),
    architecture="gpt-oss",
    keys=_keys,
    layer={
        **ATTENTION,
        "self_attn.sinks": "attn_sinks.weight",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "mlp.router": "ffn_gate_inp",
        "mlp.experts.gate_up_proj": chained(transposed, _taken_apart),
        "mlp.experts.gate_up_proj_blocks": _taken_apart,
        "mlp.experts.gate_up_proj_bias": _biases,
        "mlp.experts.down_proj": swapped(f"{_DOWN}.weight"),
        "mlp.experts.down_proj_blocks": f"{_DOWN}.weight",
        "mlp.experts.down_proj_bias": _down_bias,
    },
    # What GptOssConfig takes for keys that are missing.
    defaults={
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "rope_theta": 150000.0,
    },
    needed=lambda _config: biases(
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", _GATE, _UP, _DOWN
    ),
)
