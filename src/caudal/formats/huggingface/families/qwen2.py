"""Qwen 2 and 2.5, and the language models of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, refuse_windows
from caudal.formats.huggingface.name_tables import ATTENTION, MLP, NORMS
from caudal.formats.huggingface.needed import biases
from caudal.formats.huggingface.rope_keys import rope_parameters


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    return decoder_keys(config)


def _vision_keys(config: Config) -> Keys:
    sections = rope_parameters(config).get("mrope_section", list, [])
    if not all(type(size) is int and 0 <= size < 2**31 for size in sections):
        raise config.error("mrope_section isn't a list of sizes")
    padded = np.array([*sections, 0, 0, 0, 0][:4], np.int32)
    return {**_keys(config), "rope.dimension_sections": padded}


FAMILY = Family(
    model_types=("qwen2",),
    architecture="qwen2",
    keys=_keys,
    layer={**ATTENTION, **MLP, **NORMS},
    needed=lambda _config: biases("attn_q", "attn_k", "attn_v"),
)

VISION_FAMILY = replace(
    FAMILY,
    model_types=("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"),
    architecture="qwen2vl",
    keys=_vision_keys,
)
