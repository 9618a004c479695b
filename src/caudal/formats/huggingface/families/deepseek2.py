"""DeepSeek V2, V3 and R1, and GLM-4.7-Flash."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import (
    SOFTMAX,
    decoder_keys,
    deepseek_expert_keys,
    leading_dense_layers,
)
from caudal.formats.huggingface.name_tables import EXPERTS, MLP, NORMS, SHARED_EXPERTS
from caudal.formats.huggingface.needed import SELECTION, Needed, biases_if
from caudal.formats.huggingface.rope_keys import rope_parameters, yarn_multiplier_keys
from caudal.formats.huggingface.rows import Rows
from caudal.formats.huggingface.tensor_rules import Found
from caudal.formats.old_latents import split_latents

_V2 = "deepseek_v2"


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    config.require("rope_interleave", (True,), True)
    rope = rope_parameters(config)
    yarn = yarn_multiplier_keys(rope, of_rotated=None)
    if yarn:
        # Files have a tenth of it in this architecture.
        yarn["rope.scaling.yarn_log_multiplier"] = 0.1 * rope.get("mscale_all_dim", float, 0.0)
    rank, rotated = config.positive("kv_lora_rank"), config.positive("qk_rope_head_dim")
    keys: dict[str, MetadataValue] = {
        **decoder_keys(config),
        **yarn,
        "attention.head_count_kv": 1,  # what is kept is a latent for all heads
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config.positive("qk_nope_head_dim") + rotated,
        "attention.value_length_mla": config.positive("v_head_dim"),
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
    }
    if "q_lora_rank" in config:
        keys["attention.q_lora_rank"] = config.positive("q_lora_rank")
    return {**keys, **_expert_keys(config)}


def _expert_keys(config: Config) -> dict[str, MetadataValue]:
    if _V2 not in config.model_types:
        config.require("scoring_func", ("sigmoid",), "sigmoid")
        config.require("topk_method", ("noaux_tc",), "noaux_tc")
        default = 1 if "glm4_moe_lite" in config.model_types else 3
        dense = config.get("first_k_dense_replace", int, default)
        return {
            **deepseek_expert_keys(config),
            "leading_dense_block_count": leading_dense_layers(config, dense),
        }
    config.require("scoring_func", ("softmax",), "softmax")
    config.require("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    keys = deepseek_expert_keys(config, scoring=SOFTMAX)
    if config.get("topk_method", str, "greedy") == "greedy":
        keys |= {"expert_group_count": 1, "expert_group_used_count": 1}
    return keys | {"expert_weights_norm": False}  # transformers takes no notice of it


def _up_projections(found: Found) -> Mapping[str, Rows]:
    """Keys and values of a latent: apart, head by head, keys with rows and columns exchanged."""
    config, rows = found.config, found.rows
    heads, values = config.positive("num_attention_heads"), config.positive("v_head_dim")
    plain, rank = config.positive("qk_nope_head_dim"), config.positive("kv_lora_rank")
    keys, of_values = split_latents(rows, heads=heads, plain=plain, values=values, rank=rank)
    return {found.named("attn_k_b"): keys, found.named("attn_v_b"): of_values}


def _needed(config: Config) -> Needed:
    attention = ("attn_q_a", "attn_kv_a_mqa", "attn_output")
    return {
        **biases_if(config, "attention_bias", attention),
        **biases_if(config, "mlp_bias", ("ffn_gate", "ffn_up", "ffn_down")),
        **({} if _V2 in config.model_types else SELECTION),
    }


FAMILY = Family(
    model_types=(_V2, "deepseek_v3", "glm4_moe_lite"),
    architecture="deepseek2",
    keys=_keys,
    layer={
        **NORMS,
        **MLP,
        **EXPERTS,
        **SHARED_EXPERTS,
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "self_attn.q_proj": "attn_q",
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": _up_projections,
        "self_attn.o_proj": "attn_output",
    },
    needed=_needed,
)
