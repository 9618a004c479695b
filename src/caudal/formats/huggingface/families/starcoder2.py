"""StarCoder 2."""

from __future__ import annotations

from caudal.formats.huggingface.config import GELU_TANH, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import layer_norm_keys
from caudal.formats.huggingface.name_tables import ATTENTION, NORMS
from caudal.formats.huggingface.needed import biases


def _keys(config: Config) -> Keys:
    config.require("hidden_act", GELU_TANH, "gelu_pytorch_tanh")
    config.require("use_bias", (True,), True)
    keys = layer_norm_keys(config, "norm_epsilon")
    if "sliding_window" in config:
        keys["attention.sliding_window"] = config.positive("sliding_window")
    return keys


FAMILY = Family(
    model_types=("starcoder2",),
    architecture="starcoder2",
    keys=_keys,
    layer={**ATTENTION, **NORMS, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    needed=lambda _config: biases(
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_up",
        "ffn_down",
        "output_norm",
    ),
    tied=True,
)
