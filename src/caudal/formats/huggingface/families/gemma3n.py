"""Gemma 3n: of text, or of text, images and sound, of which the text is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from caudal.formats.huggingface.config import GELU_TANH, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, local_layers, window_keys
from caudal.formats.huggingface.name_tables import ATTENTION, MLP
from caudal.formats.huggingface.rope_keys import SLIDING, rope_parameters
from caudal.formats.huggingface.rows import Reordered, Rows
from caudal.formats.huggingface.tensor_rules import Found

_GLOBAL_EVERY = 5
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
"""Where config.json doesn't say: of the first layers' gates the largest 5 % count."""


def _keys(config: Config) -> Keys:
    config.require("hidden_activation", GELU_TANH, "gelu_pytorch_tanh")
    config.require("attention_bias", (False,), False)
    config.require("altup_correct_scale", (True,), True)
    layers = config.positive("num_hidden_layers")
    local = local_layers(config, [(layer + 1) % _GLOBAL_EVERY != 0 for layer in range(layers)])
    local_rope = rope_parameters(config, SLIDING)
    if local_rope.get("rope_type", str, "default") != "default":
        raise config.error("rope_parameters scales positions of layers with windows")
    local_base = config.get("rope_local_base_freq", float, 10000.0)
    if config.part("rope_parameters").content:
        local_base = local_rope.get("rope_theta", float, local_base)
    widths = _widths(config, layers)
    return {
        **decoder_keys(config.with_values({"intermediate_size": widths[0]})),
        **window_keys(config, local),
        "feed_forward_length": np.array(widths, np.int32),
        "attention.shared_kv_layers": config.get("num_kv_shared_layers", int, 15),
        "rope.freq_base_swa": local_base,
        "embedding_length_per_layer_input": config.positive("hidden_size_per_layer_input"),
        "altup.active_idx": config.get("altup_active_idx", int, 0),
        "altup.num_inputs": config.positive("altup_num_inputs"),
        "activation_sparsity_scale": np.array(_deviations(config, layers), np.float32),
        "final_logit_softcapping": config.get("final_logit_softcapping", float, 30.0),
    }


def _widths(config: Config, layers: int) -> list[int]:
    """Widths inside the MLPs: one for all in config.json, or a list."""
    key = "intermediate_size"
    if not isinstance(config.content.get(key), list):
        return [config.positive(key)] * layers
    widths = config.get(key, list)
    if len(widths) != layers or not all(type(width) is int and width > 0 for width in widths):
        raise config.error(f"{key} isn't a width for each of {layers} layers")
    return widths


def _deviations(config: Config, layers: int) -> list[float]:
    """How far above their mean gates have to be to count, for each layer.

    Those of a normal distribution then are so rare as `activation_sparsity_pattern` says.
    """
    key = "activation_sparsity_pattern"
    sparse = min(_SPARSE_LAYERS, layers) if layers > _SPARSE_LAYERS else 0
    shares = config.get(key, list, [_SPARSITY] * sparse + [0.0] * (layers - sparse))
    if len(shares) != layers or not all(
        type(share) in (int, float) and 0 <= share < 1 for share in shares
    ):
        raise config.error(f"{key} isn't a share below 1 for each of {layers} layers")
    return [NormalDist().inv_cdf(share) if share > 0 else -math.inf for share in shares]


def _padded(found: Found) -> Mapping[str, Rows]:
    """Tokens of images and sound, which the table has no rows for, have the first's."""
    rows = found.rows
    tokens = found.config.positive("vocab_size")
    if len(rows.shape) != 2 or rows.shape[0] > tokens:
        raise ValueError(f"has the shape {list(rows.shape)} for {tokens} tokens")
    if rows.shape[0] < tokens:
        order = np.arange(tokens)
        order[rows.shape[0] :] = 0
        rows = Reordered(rows, order, (tokens, rows.shape[1]))
    return {found.named("per_layer_token_embd"): rows}


FAMILY = Family(
    model_types=("gemma3n_text", "gemma3n"),
    architecture="gemma3n",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "altup.correction_coefs": "altup_correct_coef",
        "altup.correct_output_scale": "altup_correct_scale.weight",
        "altup.prediction_coefs": "altup_predict_coef",
        "altup.modality_router": "altup_router",
        "altup.router_norm": "altup_router_norm",
        "laurel.linear_left": "laurel_l",
        "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm",
    },
    others={
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "embed_tokens_per_layer": _padded,
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
        "altup_projections.*": "altup_proj",
        "altup_unembed_projections.*": "altup_unembd_proj",
    },
    # What Gemma3nTextConfig takes for keys that are missing.
    defaults={
        "vocab_size": 262400,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
    },
    tied=True,
    sizes=lambda config: {"laurel_l.weight": config.positive("laurel_rank")},
)
