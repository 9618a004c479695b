"""GLM-4.5 to 4.7 with experts."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, deepseek_expert_keys, rotated_channels
from caudal.formats.huggingface.name_tables import ATTENTION, EXPERTS, MLP, SHARED_EXPERTS
from caudal.formats.huggingface.needed import SELECTION, biases_if


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    return {
        **decoder_keys(config),
        **deepseek_expert_keys(config),
        "rope.dimension_count": rotated_channels(config, 0.5),
    }


def _norms_heads(config: Config) -> bool:
    return config.get("use_qk_norm", bool, False)


FAMILY = Family(
    model_types=("glm4_moe",),
    architecture="glm4moe",
    keys=_keys,
    layer={
        **ATTENTION,
        **MLP,
        **EXPERTS,
        **SHARED_EXPERTS,
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
    },
    defaults={"first_k_dense_replace": 1, "n_shared_experts": 1, "rms_norm_eps": 1e-5},
    needed=lambda config: {
        **SELECTION,
        **biases_if(config, "attention_bias", ("attn_q", "attn_k", "attn_v")),
        **({"attn_output.weight": "attn_q_norm.weight"} if _norms_heads(config) else {}),
    },
    lacks=lambda config, _layer, name: (
        name in ("attn_q_norm.weight", "attn_k_norm.weight") and not _norms_heads(config)
    ),
)
