"""ModernBERT: embeddings, or scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats import embedding_keys
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import encoder_activation
from caudal.formats.huggingface.needed import Needed, biases, biases_if
from caudal.formats.huggingface.rope_keys import FULL, SLIDING, rope_parameters
from caudal.formats.huggingface.rows import Rows
from caudal.formats.huggingface.sentence_keys import scores_pairs
from caudal.formats.huggingface.tensor_rules import Found, Rule


def _keys(config: Config) -> Keys:
    if scores_pairs(config):
        config.require("classifier_pooling", ("cls", "mean"), "cls")
        config.require("classifier_activation", ("gelu",), "gelu")
    return {
        "block_count": config.positive("num_hidden_layers"),
        "context_length": config.positive("max_position_embeddings"),
        "embedding_length": config.positive("hidden_size"),
        "feed_forward_length": config.positive("intermediate_size"),
        "attention.head_count": config.positive("num_attention_heads"),
        "attention.layer_norm_epsilon": config.get("norm_eps", float),
        "attention.causal": False,
        "attention.sliding_window": config.positive("local_attention"),
        "attention.sliding_window_pattern": _global_every(config),
        "rope.freq_base": _base(config, FULL, "global_rope_theta", 160000.0),
        "rope.freq_base_swa": _base(config, SLIDING, "local_rope_theta", 10000.0),
    }


def _global_every(config: Config) -> int:
    """Which layers see all tokens: the first, and then one of so many."""
    every = config.positive("global_attn_every_n_layers", 3)
    kinds = config.strings("layer_types", [])
    if not kinds:
        return every
    every = next((layer for layer, kind in enumerate(kinds) if layer and kind == FULL), len(kinds))
    if kinds != [SLIDING if layer % every else FULL for layer in range(len(kinds))]:
        raise config.error(
            "layer_types isn't one of full_attention to the same number of sliding_attention, "
            "over and over"
        )
    return every


def _base(config: Config, kind: str, older: str, default: float) -> float:
    base = config.get(older, float, default)
    if not config.part("rope_parameters").content:
        config.require("rope_scaling", (None,), None)
        return base
    rope = rope_parameters(config, kind)
    if rope.get("rope_type", str, "default") != "default":
        raise config.error("rope_parameters scales positions, which is not supported here")
    return rope.get("rope_theta", float, base)


def _of_head(name: str) -> Rule:
    """What scores pairs; what guesses masked words is named the same, and isn't used."""

    def rule(found: Found) -> Mapping[str, Rows]:
        return {found.named(name): found.rows} if scores_pairs(found.config) else {}

    return rule


def _needed(config: Config) -> Needed:
    norms = ("attn_norm", "ffn_norm", "token_embd_norm", "output_norm", "cls.norm")
    return {
        **biases("cls.output"),
        "cls.weight": "cls.norm.weight",
        **biases_if(config, "attention_bias", ("attn_qkv", "attn_output")),
        **biases_if(config, "mlp_bias", ("ffn_up", "ffn_down")),
        **biases_if(config, "norm_bias", norms),
        **biases_if(config, "classifier_bias", ("cls",)),
    }


FAMILY = Family(
    model_types=("modernbert",),
    architecture="modern-bert",
    keys=_keys,
    own_keys=lambda config: {
        embedding_keys.ACTIVATION: encoder_activation(config, "hidden_activation"),
        embedding_keys.SCORE_POOLING: config.get("classifier_pooling", str, "cls"),
    },
    layer={
        "attn_norm": "attn_norm",
        "attn.Wqkv": "attn_qkv",
        "attn.Wo": "attn_output",
        "mlp_norm": "ffn_norm",
        "mlp.Wi": "ffn_up",
        "mlp.Wo": "ffn_down",
    },
    others={
        "embeddings.tok_embeddings": "token_embd",
        "embeddings.norm": "token_embd_norm",
        "final_norm": "output_norm",
        "head.dense": _of_head("cls"),
        "head.norm": _of_head("cls.norm"),
        "classifier": "cls.output",
    },
    left_out=("decoder", "rotary_emb"),
    is_encoder=lambda _config: True,
    needed=_needed,
    # What ModernBertConfig takes for keys that files leave out.
    defaults={
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "local_attention": 128,
    },
)
