"""StableLM 3B and StableLM 2."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, MLP, NORMS, Family, Keys
from caudal.formats.huggingface.keys import layer_norm_keys, rotated_channels
from caudal.formats.huggingface.needed import Needed, biases, biases_if


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("qk_layernorm", (False,), False)
    return {
        **layer_norm_keys(config),
        "rope.dimension_count": rotated_channels(config, 0.25),
        "use_parallel_residual": _is_parallel(config),
    }


def _is_parallel(config: Config) -> bool:
    return config.get("use_parallel_residual", bool, False)


def _needed(config: Config) -> Needed:
    """Biases, and a norm of the MLP's own, without which it would stand beside the attention."""
    return {
        **biases("attn_norm", "ffn_norm", "output_norm"),
        **biases_if(config, "use_qkv_bias", ("attn_q", "attn_k", "attn_v")),
        **({} if _is_parallel(config) else {"ffn_up.weight": "ffn_norm.weight"}),
    }


FAMILY = Family(
    model_types=("stablelm",),
    architecture="stablelm",
    keys=_keys,
    layer={**ATTENTION, **MLP, **NORMS},
    needed=_needed,
)
