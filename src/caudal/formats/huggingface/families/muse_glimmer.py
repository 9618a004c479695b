"""Muse Glimmer: of text, or of text and images, of which the text is loaded.

As converters do, the factor of queries becomes the weight of a norm that has none, and a head's
halves, which RoPE pairs, become neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, head_dim, local_layers, window_keys
from caudal.formats.huggingface.name_tables import GEMMA_NORMS, MLP, PERMUTED_ATTENTION
from caudal.formats.huggingface.rows import Rows, made_of_floats

_GLOBAL_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_activation", SILU, "silu")
    config.require("attention_bias", (False,), False)
    config.require("post_norm_eps", (1e-8,), 1e-8)
    layers = config.positive("num_hidden_layers")
    local = local_layers(
        config, [(layers - 1 - layer) % _GLOBAL_EVERY != 0 for layer in range(layers)]
    )
    turned = config.get("layer_rope_theta", list, [])
    keys = decoder_keys(config)
    base = keys["rope.freq_base"]
    expected = [base if each else 0 for each in local]
    if turned and turned != expected:
        raise config.error(
            "layer_rope_theta isn't that of rope_parameters for layers with windows, and 0 for all "
            "others"
        )
    return {
        **keys,
        **window_keys(config, local),
        "logit_scale": config.get("output_multiplier", float),
        "final_logit_softcapping": config.get("final_logit_softcapping", float),
    }


def _norms(config: Config) -> Mapping[str, Rows]:
    """Weights of queries' and keys' norms, which checkpoints don't have."""
    channels = head_dim(config)
    factors = {"q": config.get("qk_scale_factor", float), "k": 1.0}
    made = {}
    for layer in range(config.positive("num_hidden_layers")):
        for what, factor in factors.items():
            values = np.full(channels, factor, np.float32)
            name = f"blk.{layer}.attn_{what}_norm.weight"
            made[name] = made_of_floats(name, values.shape, values.copy)
    return made


FAMILY = Family(
    model_types=("muse_glimmer_text", "muse_glimmer"),
    architecture="muse-glimmer",
    keys=_keys,
    layer={
        **PERMUTED_ATTENTION,
        **MLP,
        "self_attn.gate_proj": "attn_gate",
        **GEMMA_NORMS,
    },
    made=_norms,
    # What MuseGlimmerTextConfig takes for keys that are missing.
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
    },
)
