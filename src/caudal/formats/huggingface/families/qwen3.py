"""Qwen 3 (dense), and the language models of Qwen3-VL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, refuse_windows
from caudal.formats.huggingface.name_tables import ATTENTION, MLP, NORMS
from caudal.formats.huggingface.rope_keys import rope_parameters


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    return decoder_keys(config)


def _vision_keys(config: Config) -> Keys:
    sections = rope_parameters(config).get("mrope_section", list, [])
    deepstack = config.part("vision_config").get("deepstack_visual_indexes", list, [])
    if not all(type(size) is int and 0 <= size < 2**31 for size in sections):
        raise config.error("mrope_section isn't a list of sizes")
    padded = np.array([*sections, 0, 0, 0, 0][:4], np.int32)
    return {
        **_keys(config),
        "rope.dimension_sections": padded,
        "n_deepstack_layers": len(deepstack),
    }


FAMILY = Family(
    model_types=("qwen3",),
    architecture="qwen3",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        **NORMS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    defaults={"head_dim": 128},
)

VISION_FAMILY = replace(
    FAMILY, model_types=("qwen3_vl_text", "qwen3_vl"), architecture="qwen3vl", keys=_vision_keys
)
