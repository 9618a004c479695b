"""Gemma 3: of text, or of text and images, of which the text is loaded; and EmbeddingGemma."""

from __future__ import annotations

from caudal.formats.huggingface.config import GELU_TANH, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.name_tables import ATTENTION, GEMMA_NORMS, MLP
from caudal.formats.huggingface.rope_keys import FULL, SLIDING, rope_parameters
from caudal.formats.huggingface.tensor_rules import one_plus

_GLOBAL_EVERY = 6
_LOCAL_BASE = 10000.0


def _keys(config: Config) -> Keys:
    config.require("hidden_activation", GELU_TANH, "gelu_pytorch_tanh")
    config.require("attn_logit_softcapping", (None,), None)
    _check_pattern(config)
    keys = decoder_keys(config)
    local_base = config.get("rope_local_base_freq", float, _LOCAL_BASE)
    local = rope_parameters(config, SLIDING)
    if config.part("rope_parameters").content:
        local_base = local.get("rope_theta", float, local_base)
        if local.get("rope_type", str, "default") != "default":
            raise config.error("rope_parameters scales positions of layers with windows")
    keys |= {
        "attention.sliding_window": config.positive("sliding_window"),
        "attention.scale": config.get("query_pre_attn_scalar", float) ** -0.5,
        "rope.freq_base_swa": local_base,
    }
    cap = config.get("final_logit_softcapping", float, 0.0)
    if cap:
        keys["final_logit_softcapping"] = cap
    return keys


def _attends_both_ways(config: Config) -> bool:
    return config.get("use_bidirectional_attention", bool, False)


def _check_pattern(config: Config) -> None:
    """Five layers with windows, then one that sees all."""
    config.require("sliding_window_pattern", (_GLOBAL_EVERY,), _GLOBAL_EVERY)
    kinds = config.strings("layer_types", [])
    expected = [
        FULL if (layer + 1) % _GLOBAL_EVERY == 0 else SLIDING for layer in range(len(kinds))
    ]
    if kinds != expected:
        raise config.error("layer_types isn't five of sliding_attention to one of full_attention")


FAMILY = Family(
    model_types=("gemma3_text", "gemma3"),
    architecture="gemma3",
    architecture_of=lambda config: "gemma-embedding" if _attends_both_ways(config) else "gemma3",
    more_architectures=("gemma-embedding",),
    is_encoder=lambda config: _attends_both_ways(config),
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        "self_attn.q_norm": one_plus("attn_q_norm"),
        "self_attn.k_norm": one_plus("attn_k_norm"),
        **GEMMA_NORMS,
    },
    others={"embed_tokens": "token_embd", "norm": one_plus("output_norm")},
    # What Gemma3TextConfig takes for keys that published files leave out.
    defaults={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    },
    tied=True,
)
