"""Nomic's BERT, with experts or without: as published, or as newer versions of transformers save
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats import embedding_keys
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import encoder_activation
from caudal.formats.huggingface.name_tables import ATTENTION, MLP
from caudal.formats.huggingface.needed import Needed, biases, biases_if
from caudal.formats.huggingface.rope_keys import rope_parameters
from caudal.formats.huggingface.rows import Rows, reshaped, transposed
from caudal.formats.huggingface.tensor_rules import Found

_TRAINED_POSITIONS = 2048
_BASE = 1000.0


def _keys(config: Config) -> Keys:
    if "n_embd" not in config:
        return _newer_keys(config)
    for key, allowed in (
        ("prenorm", False),
        ("parallel_block", False),
        ("causal", False),
        ("use_rms_norm", False),
        ("rotary_emb_fraction", 1.0),
        ("rotary_emb_interleaved", False),
        ("moe_normalize_expert_weights", False),
        ("num_shared_experts", 0),
        ("expert_choice_router", False),
    ):
        config.require(key, (allowed,), allowed)
    config.require("rotary_emb_scale_base", (None,), None)
    gated = () if _has_experts(config) else ("swiglu",)
    config.require("activation_function", ("gelu", *gated), "gelu")
    # Longer inputs were not trained on: positions are stretched for them, which isn't computed.
    trained = config.positive("max_trained_positions", _TRAINED_POSITIONS)
    keys: dict[str, MetadataValue] = {
        "block_count": config.positive("n_layer"),
        "context_length": min(config.positive("n_positions"), trained),
        "embedding_length": config.positive("n_embd"),
        "feed_forward_length": config.positive("n_inner"),
        "attention.head_count": config.positive("n_head"),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
        "attention.causal": False,
        "rope.freq_base": config.get("rotary_emb_base", float, 10000.0),
    }
    if _has_experts(config):
        keys |= {
            "moe_every_n_layers": config.positive("moe_every_n_layers"),
            "expert_count": config.positive("num_experts"),
            "expert_used_count": config.positive("moe_top_k"),
        }
    return keys


def _newer_keys(config: Config) -> Keys:
    config.require("hidden_act", ("silu", "swish"), "silu")
    rope = rope_parameters(config)
    if rope.get("rope_type", str, "default") != "default":
        raise config.error("rope_parameters scales positions, which is not supported here")
    return {
        "block_count": config.positive("num_hidden_layers"),
        "context_length": config.positive("max_position_embeddings", _TRAINED_POSITIONS),
        "embedding_length": config.positive("hidden_size"),
        "feed_forward_length": config.positive("intermediate_size"),
        "attention.head_count": config.positive("num_attention_heads"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float, 1e-12),
        "attention.causal": False,
        "rope.freq_base": rope.get("rope_theta", float, _BASE),
    }


def _has_experts(config: Config) -> bool:
    return config.get("moe_every_n_layers", int, 0) > 0


def _own_keys(config: Config) -> Keys:
    if config.get("activation_function", str, "swiglu") == "swiglu":
        return {}
    return {embedding_keys.ACTIVATION: encoder_activation(config, "activation_function")}


def _needed(config: Config) -> Needed:
    """Biases; of matrices, those that older files say there are, which newer ones have none of."""
    needed = {
        **biases("token_embd_norm", "attn_output_norm", "layer_output_norm"),
        "token_embd.weight": "token_types.weight",
    }
    if "n_embd" not in config:
        return needed
    return {
        **needed,
        **biases_if(config, "qkv_proj_bias", ("attn_qkv", "attn_output"), default=True),
        **biases_if(config, "mlp_fc1_bias", ("ffn_up", "ffn_gate"), default=True),
        **biases_if(config, "mlp_fc2_bias", ("ffn_down",), default=True),
    }


def _up(found: Found) -> Mapping[str, Rows]:
    return {"ffn_up_exps.weight": reshaped(found.rows, _stack(found))}


def _down(found: Found) -> Mapping[str, Rows]:
    """Inputs are the rows of each matrix."""
    return {"ffn_down_exps.weight": transposed(reshaped(found.rows, _stack(found)))}


def _stack(found: Found) -> tuple[int, int, int]:
    count, columns = found.config.positive("num_experts"), found.rows.shape[-1]
    if len(found.rows.shape) != 2 or found.rows.shape[0] % count != 0:
        raise ValueError(f"{list(found.rows.shape)} isn't the matrices of {count} experts")
    return count, found.rows.shape[0] // count, columns


FAMILY = Family(
    model_types=("nomic_bert",),
    architecture="nomic-bert",
    architecture_of=lambda config: "nomic-bert-moe" if _has_experts(config) else "nomic-bert",
    more_architectures=("nomic-bert-moe",),
    keys=_keys,
    own_keys=_own_keys,
    layers=("encoder.layers.", "layers."),
    layer={
        **ATTENTION,
        **MLP,
        "attn.Wqkv": "attn_qkv",
        "attn.out_proj": "attn_output",
        "norm1": "attn_output_norm",
        "post_attention_layernorm": "attn_output_norm",
        "mlp.fc1": "ffn_up",
        "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate",
        "mlp.fc2": "ffn_down",
        "mlp.router.layer": "ffn_gate_inp",
        "mlp.experts.mlp.w1": _up,
        "mlp.experts.mlp.w2": _down,
        "mlp.experts.bias": lambda found: {"ffn_exps.bias": found.rows},
        "norm2": "layer_output_norm",
        "post_mlp_layernorm": "layer_output_norm",
    },
    others={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "emb_ln": "token_embd_norm",
    },
    left_out=("embeddings.position_ids", "pooler", "cls", "rotary_emb"),
    is_encoder=lambda _config: True,
    needed=_needed,
)
