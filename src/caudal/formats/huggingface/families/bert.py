"""BERT, RoBERTa and XLM-RoBERTa: embeddings, or scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caudal.formats import embedding_keys
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import encoder_activation
from caudal.formats.huggingface.needed import biases
from caudal.formats.huggingface.rows import Rows, Slice
from caudal.formats.huggingface.sentence_keys import scores_pairs
from caudal.formats.huggingface.tensor_rules import Found


def _keys(config: Config) -> Keys:
    config.require("position_embedding_type", ("absolute",), "absolute")
    config.require("is_decoder", (False,), False)
    return {
        "block_count": config.positive("num_hidden_layers"),
        "context_length": config.positive("max_position_embeddings"),
        "embedding_length": config.positive("hidden_size"),
        "feed_forward_length": config.positive("intermediate_size"),
        "attention.head_count": config.positive("num_attention_heads"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float, 1e-12),
        "attention.causal": False,
    }


def _pooler(found: Found) -> Mapping[str, Rows]:
    """The head's first layer, which models that make embeddings have without using it."""
    return {found.named("cls"): found.rows} if scores_pairs(found.config) else {}


def _offset(config: Config) -> int:
    """The position of RoBERTa's first token: those up to the padding's number stand for nothing."""
    return config.get("pad_token_id", int, 1) + 1


def _roberta_keys(config: Config) -> Keys:
    offset, positions = _offset(config), config.positive("max_position_embeddings")
    if not 0 <= offset < positions:
        raise config.error(f"pad_token_id + 1 is {offset} of {positions} positions")
    return {
        **_keys(config),
        "context_length": positions - offset,
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float, 1e-5),
    }


def _positions(found: Found) -> Mapping[str, Rows]:
    offset, (count, width) = _offset(found.config), found.rows.shape
    return {found.named("position_embd"): Slice(found.rows, offset, (count - offset, width))}


FAMILY = Family(
    model_types=("bert",),
    architecture="bert",
    keys=_keys,
    own_keys=lambda config: {
        embedding_keys.ACTIVATION: encoder_activation(config, "hidden_act"),
    },
    layers=("encoder.layer.",),
    layer={
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    others={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "pooler.dense": _pooler,
        "classifier": "cls.output",
    },
    # Constants, and the head for guessing masked words.
    left_out=("embeddings.position_ids", "cls"),
    is_encoder=lambda _config: True,
    needed=lambda _config: biases(
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "attn_output_norm",
        "ffn_up",
        "ffn_down",
        "layer_output_norm",
        "token_embd_norm",
        "cls",
        "cls.output",
    ),
)

ROBERTA_FAMILY = replace(
    FAMILY,
    model_types=("roberta", "xlm-roberta"),
    keys=_roberta_keys,
    others={
        **FAMILY.others,
        "embeddings.position_embeddings": _positions,
        "classifier.dense": "cls",
        "classifier.out_proj": "cls.output",
    },
    left_out=("embeddings.position_ids", "lm_head", "pooler"),
)
