"""Gemma 2."""

from __future__ import annotations

from caudal.formats.huggingface.config import GELU_TANH, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, local_layers, window_keys
from caudal.formats.huggingface.name_tables import ATTENTION, GEMMA_NORMS, MLP
from caudal.formats.huggingface.tensor_rules import one_plus


def _keys(config: Config) -> Keys:
    config.require("hidden_activation", GELU_TANH, "gelu_pytorch_tanh")
    config.require("use_bidirectional_attention", (False,), False)
    layers = config.positive("num_hidden_layers")
    local = local_layers(config, [layer % 2 == 0 for layer in range(layers)])
    return {
        **decoder_keys(config),
        **window_keys(config, local),
        "attn_logit_softcapping": config.get("attn_logit_softcapping", float),
        "final_logit_softcapping": config.get("final_logit_softcapping", float),
        "attention.scale": config.get("query_pre_attn_scalar", float) ** -0.5,
    }


FAMILY = Family(
    model_types=("gemma2",),
    architecture="gemma2",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        **GEMMA_NORMS,
    },
    others={"embed_tokens": "token_embd", "norm": one_plus("output_norm")},
    # What Gemma2Config takes for keys that published files leave out.
    defaults={
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    },
    tied=True,
)
