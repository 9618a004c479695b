"""StableLM 3B and StableLM 2."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import layer_norm_keys, rotated_channels
from caudal.formats.huggingface.name_tables import ATTENTION, MLP, NORMS
from caudal.formats.huggingface.needed import Needed, biases, biases_if
from caudal.formats.huggingface.tensor_rules import through


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    return {
        **layer_norm_keys(config),
        "rope.dimension_count": rotated_channels(config, 0.25),
        "use_parallel_residual": _is_parallel(config),
    }


def _is_parallel(config: Config) -> bool:
    return config.get("use_parallel_residual", bool, False)


def _norms_heads(config: Config) -> bool:
    return config.get("qk_layernorm", bool, False)


def _needed(config: Config) -> Needed:
    """Biases, norms of heads, and one of the MLP's own: else that stands beside the attention."""
    return {
        **biases("attn_norm", "ffn_norm", "output_norm"),
        **biases_if(config, "use_qkv_bias", ("attn_q", "attn_k", "attn_v")),
        **({"attn_q.weight": "attn_q_norm.weight"} if _norms_heads(config) else {}),
        **({"attn_k.weight": "attn_k_norm.weight"} if _norms_heads(config) else {}),
        **({} if _is_parallel(config) else {"ffn_up.weight": "ffn_norm.weight"}),
    }


FAMILY = Family(
    model_types=("stablelm",),
    architecture="stablelm",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        **NORMS,
        "self_attn.q_layernorm.norms.*": through("attn_q_norm", lambda values: values),
        "self_attn.k_layernorm.norms.*": through("attn_k_norm", lambda values: values),
    },
    needed=_needed,
    lacks=lambda config, _layer, name: name == "ffn_norm.weight" and _is_parallel(config),
)
