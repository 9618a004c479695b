"""Llama 4: of text, or of text and images, of which the text is loaded."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.families.llama import made_divisors
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.name_tables import ATTENTION, NORMS
from caudal.formats.huggingface.rows import transposed
from caudal.formats.huggingface.tensor_rules import chained, split, swapped

_GLOBAL_EVERY = 4
_CHUNKED, _FULL = "chunked_attention", "full_attention"


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("attention_bias", (False,), False)
    layers = config.positive("num_hidden_layers")
    _check_layers(config, layers)
    tuned = config.content.get("attn_temperature_tuning")
    width = config.positive("intermediate_size_mlp")
    return {
        **decoder_keys(config.with_values({"intermediate_size": width})),
        "attention.sliding_window": config.positive("attention_chunk_size"),
        "attention.qk_norm": config.get("use_qk_norm", bool, True),
        "attention.temperature_scale": (
            config.get("attn_scale", float, 0.1) if tuned is None or tuned else 0.0
        ),
        "attention.temperature_length": config.positive("floor_scale", 8192),
        "interleave_moe_layer_step": _step(config, layers),
        "expert_count": config.positive("num_local_experts"),
        "expert_used_count": config.positive("num_experts_per_tok"),
        "expert_feed_forward_length": config.positive("intermediate_size"),
    }


def _check_layers(config: Config, layers: int) -> None:
    """Three layers that rotate and have chunks, then one that does neither."""
    config.require("no_rope_layer_interval", (_GLOBAL_EVERY,), _GLOBAL_EVERY)
    local = [(layer + 1) % _GLOBAL_EVERY != 0 for layer in range(layers)]
    rotated = config.get("no_rope_layers", list, [])  # 1 for a layer that is rotated
    if rotated and [bool(on) for on in rotated[:layers]] != local:
        raise config.error("no_rope_layers isn't one layer without RoPE in four")
    kinds = config.strings("layer_types", [])
    if kinds and kinds != [_CHUNKED if each else _FULL for each in local]:
        raise config.error(f"layer_types isn't three of {_CHUNKED} to one of {_FULL}")


def _step(config: Config, layers: int) -> int:
    """Every how manieth layer has experts."""
    step = config.positive("interleave_moe_layer_step", 1)
    with_experts = config.get("moe_layers", list, [])
    if with_experts and with_experts != list(range(step - 1, layers, step)):
        raise config.error(f"moe_layers isn't every {step}th of {layers} layers")
    return step


FAMILY = Family(
    model_types=("llama4_text", "llama4"),
    architecture="llama4",
    keys=_keys,
    layer={
        **ATTENTION,
        **NORMS,
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
        "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
        "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
        "feed_forward.experts.gate_up_proj": chained(
            transposed, split("ffn_gate_exps.weight", "ffn_up_exps.weight")
        ),
        "feed_forward.experts.down_proj": swapped("ffn_down_exps.weight"),
        # As tools have them that quantise each matrix by itself.
        "feed_forward.experts.*.gate_proj": "ffn_gate_exps",
        "feed_forward.experts.*.up_proj": "ffn_up_exps",
        "feed_forward.experts.*.down_proj": "ffn_down_exps",
    },
    made=made_divisors,
    # What Llama4TextConfig takes for keys that are missing.
    defaults={
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "attention_chunk_size": 8192,
    },
)
