"""Qwen 3 with experts, and the language models of Qwen3-VL with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.families import qwen3
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys, refuse_windows
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, NORMS
from caudal.formats.huggingface.rows import Rows, transposed
from caudal.formats.huggingface.tensor_rules import Found, split


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    return {**decoder_keys(config), **expert_keys(config)}


FAMILY = Family(
    model_types=("qwen3_moe",),
    architecture="qwen3moe",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        **EXPERTS,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    defaults={"head_dim": 128, "norm_topk_prob": False},
)


def _vision_keys(config: Config) -> Keys:
    return {**qwen3.VISION_FAMILY.keys(config), **expert_keys(config), "expert_weights_norm": True}


def _stack(found: Found) -> Mapping[str, Rows]:
    """Inputs are the rows of the experts' matrices; later files may have them as columns."""
    inputs = found.config.positive("hidden_size")
    rows = found.rows if found.rows.shape[-1] == inputs else transposed(found.rows)
    return split("ffn_gate_exps.weight", "ffn_up_exps.weight")(replace(found, rows=rows))


def _down_stack(found: Found) -> Mapping[str, Rows]:
    inner = found.config.positive("moe_intermediate_size")
    rows = found.rows if found.rows.shape[-1] == inner else transposed(found.rows)
    return {"ffn_down_exps.weight": rows}


VISION_FAMILY = replace(
    FAMILY,
    model_types=("qwen3_vl_moe_text", "qwen3_vl_moe"),
    architecture="qwen3vlmoe",
    keys=_vision_keys,
    layer={
        **FAMILY.layer,
        "mlp.experts.gate_up_proj": _stack,
        "mlp.experts.down_proj": _down_stack,
    },
    defaults={},
)
