"""OLMo 2 and 3."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import ATTENTION, MLP, Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.rope_keys import FULL, SLIDING, rope_parameters

_GLOBAL_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    keys = decoder_keys(config)
    kinds = config.get("layer_types", list, [])
    if SLIDING not in kinds:
        if any(kind != FULL for kind in kinds):
            raise config.error("layer_types has layers that are neither of the kinds known")
        return keys
    expected = [
        FULL if (layer + 1) % _GLOBAL_EVERY == 0 else SLIDING for layer in range(len(kinds))
    ]
    if kinds != expected:
        raise config.error("layer_types isn't three of sliding_attention to one of full_attention")
    local = rope_parameters(config, SLIDING)
    return {
        **keys,
        "attention.sliding_window": config.positive("sliding_window"),
        "rope.freq_base_swa": local.get("rope_theta", float, 10000.0),
    }


FAMILY = Family(
    model_types=("olmo2", "olmo3"),
    architecture="olmo2",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
)
