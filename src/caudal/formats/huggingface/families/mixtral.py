"""Mixtral: Mistral with experts."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, expert_keys
from caudal.formats.huggingface.name_tables import NORMS, PERMUTED_ATTENTION


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("sliding_window", (None,), None)
    return {**decoder_keys(config), **expert_keys(config)}


FAMILY = Family(
    model_types=("mixtral",),
    architecture="llama",
    keys=_keys,
    layer={
        **PERMUTED_ATTENTION,
        **NORMS,
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
        "block_sparse_moe.experts.*.w2": "ffn_down_exps",
        "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    },
)
