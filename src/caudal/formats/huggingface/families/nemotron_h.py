"""Nemotron-H and Nemotron 3, with experts and without."""

from __future__ import annotations

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys
from caudal.formats.huggingface.needed import SELECTION, biases_if
from caudal.formats.huggingface.state_space import UNLIMITED, mamba2

_KINDS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _kinds(config: Config) -> str:
    """What each layer is: M(amba), * (attention), - (MLP) or E(xperts)."""
    kinds = config.strings("layers_block_type", config.strings("layer_types", []))
    pattern = config.get("hybrid_override_pattern", str, "")
    found = "".join(_KINDS.get(kind, "?") for kind in kinds) or pattern
    layers = config.positive("num_hidden_layers", max(len(found), 1))
    if len(found) != layers or set(found) - set("M*-E"):
        raise config.error(f"layers_block_type isn't one of the kinds known for {layers} layers")
    return found


def _keys(config: Config) -> Keys:
    config.require("mlp_hidden_act", ("relu2",), "relu2")
    config.require("mamba_hidden_act", ("silu",), "silu")
    for key in ("mamba_proj_bias", "use_bias"):
        config.require(key, (False,), False)
    config.require("time_step_limit", UNLIMITED, None)
    kinds = _kinds(config)
    kv_heads = config.positive("num_key_value_heads")
    heads = config.positive("mamba_num_heads")
    width = config.positive("intermediate_size", 21504)
    inner = config.positive("moe_intermediate_size", width)
    eps = config.get("layer_norm_epsilon", float, 1e-5)
    widths = {"-": width, "E": inner}
    keys: dict[str, MetadataValue] = {
        **decoder_keys(config.with_defaults({"num_hidden_layers": len(kinds)})),
        "feed_forward_length": np.array([widths.get(kind, 0) for kind in kinds], np.int32),
        "attention.head_count_kv": np.array(
            [kv_heads if kind == "*" else 0 for kind in kinds], np.int32
        ),
        "attention.layer_norm_rms_epsilon": eps,
        "attention.layer_norm_epsilon": eps,  # where llama.cpp looks for it
        "ssm.conv_kernel": config.positive("conv_kernel", 4),
        "ssm.state_size": config.positive("ssm_state_size", 128),
        "ssm.group_count": config.positive("n_groups", 8),
        "ssm.inner_size": heads * config.positive("mamba_head_dim", 64),
        "ssm.time_step_rank": heads,
    }
    return keys | (_expert_keys(config, inner) if "E" in kinds else {})


def _expert_keys(config: Config, inner: int) -> dict[str, MetadataValue]:
    keys: dict[str, MetadataValue] = {
        "expert_count": config.positive("n_routed_experts"),
        "expert_used_count": config.positive("num_experts_per_tok"),
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": config.positive("moe_shared_expert_intermediate_size"),
        "expert_shared_count": config.positive("n_shared_experts", 1),
        "expert_weights_norm": config.get("norm_topk_prob", bool, True),
        "expert_weights_scale": config.get("routed_scaling_factor", float, 1.0),
        "expert_group_count": config.positive("n_group", 1),
        "expert_group_used_count": config.positive("topk_group", 1),
        "expert_gating_func": 2,
    }
    if "moe_latent_size" in config:
        keys["moe_latent_size"] = config.positive("moe_latent_size")
    return keys


_MATRICES = ("ffn_up", "ffn_down", "ffn_latent_down", "ffn_latent_up")

FAMILY = Family(
    model_types=("nemotron_h",),
    architecture="nemotron_h",
    architecture_of=lambda config: "nemotron_h_moe" if "E" in _kinds(config) else "nemotron_h",
    more_architectures=("nemotron_h_moe",),
    keys=_keys,
    layer={
        "norm": "attn_norm",
        **mamba2("mixer", groups_key="n_groups"),
        "mixer.q_proj": "attn_q",
        "mixer.k_proj": "attn_k",
        "mixer.v_proj": "attn_v",
        "mixer.o_proj": "attn_output",
        "mixer.up_proj": "ffn_up",
        "mixer.down_proj": "ffn_down",
        "mixer.gate": "ffn_gate_inp",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.*.up_proj": "ffn_up_exps",
        "mixer.experts.*.down_proj": "ffn_down_exps",
        "mixer.experts.up_proj": "ffn_up_exps.weight",
        "mixer.experts.down_proj": "ffn_down_exps.weight",
        "mixer.shared_experts.up_proj": "ffn_up_shexp",
        "mixer.shared_experts.down_proj": "ffn_down_shexp",
        "mixer.fc1_latent_proj": "ffn_latent_down",
        "mixer.fc2_latent_proj": "ffn_latent_up",
    },
    others={
        "embeddings": "token_embd",
        "embed_tokens": "token_embd",
        "norm_f": "output_norm",
        "lm_head": "output",
    },
    left_out=("mtp",),
    ahead={},
    lacks=lambda config, layer, name: (
        name == "ffn_gate_inp.weight" and _kinds(config)[layer] != "E"
    ),
    needed=lambda config: {
        **SELECTION,
        **biases_if(config, "attention_bias", ("attn_q", "attn_k", "attn_v", "attn_output")),
        **biases_if(config, "mlp_bias", _MATRICES),
        **biases_if(config, "use_conv_bias", ("ssm_conv1d",), default=True),
    },
    defaults={"head_dim": 128, "mamba_num_heads": 128},
)
