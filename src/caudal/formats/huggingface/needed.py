"""Tensors that have to be beside others: what lacks them would be computed as another model.

Most are biases, which config.json says are there. Programs take them up where a file has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from caudal.formats.huggingface.config import Config

Needed = Mapping[str, str]
"""From a tensor to the one that has to be beside it: by llama.cpp's names, those of layers without
`blk.N.`, or with it where only that layer is meant."""

SELECTION: Needed = {"ffn_gate_inp.weight": "exp_probs_b.bias"}
"""What is added to experts' scores for choosing them."""


def biases(*modules: str) -> Needed:
    """Biases of modules, wherever these are."""
    return {f"{module}.weight": f"{module}.bias" for module in modules}


def declared_biases(config: Config) -> Needed:
    """Those that `attention_bias` and `mlp_bias` stand for in most families."""
    attention = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")
    return {
        **biases_if(config, "attention_bias", attention),
        **biases_if(config, "mlp_bias", ("ffn_gate", "ffn_up", "ffn_down")),
    }


def biases_if(config: Config, key: str, modules: Iterable[str], *, default: bool = False) -> Needed:
    """Biases of modules, if config.json says so by a key."""
    return biases(*modules) if config.get(key, bool, default) else {}


def first_lacking(needed: Needed, names: Iterable[str]) -> str | None:
    """The first tensor that is needed and isn't there."""
    have = set(names)
    for name in have:
        layer, rest = "", name
        if name.startswith("blk."):
            number, _, rest = name.removeprefix("blk.").partition(".")
            layer = f"blk.{number}."
        for wanted in (needed.get(name), layer + needed[rest] if rest in needed else None):
            if wanted is not None and wanted not in have:
                return wanted
    return None
