"""Which of llama.cpp's names stand for a checkpoint's: tables that families share."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats.huggingface.tensor_rules import Rule, one_plus, permuted_heads, split

Table = Mapping[str, str | Rule]
"""From names without prefixes (`self_attn.q_proj`, or `A_log` of a tensor that is no module's) to
llama.cpp's, or to rules. A number of an expert is `*`: `mlp.experts.*.up_proj`; tensors that differ
in it alone are stacked."""


def _projections(module: str, suffix: str = "") -> Table:
    """The three matrices of a gated MLP."""
    return {f"{module}.{name}_proj": f"ffn_{name}{suffix}" for name in ("gate", "up", "down")}


MLP = _projections("mlp")
EXPERTS: Table = {
    "mlp.gate": "ffn_gate_inp",
    **_projections("mlp.experts.*", "_exps"),
    "mlp.experts.gate_up_proj": split("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
SHARED_EXPERT: Table = {
    **_projections("mlp.shared_expert", "_shexp"),
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
SHARED_EXPERTS = _projections("mlp.shared_experts", "_shexp")
ATTENTION: Table = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
NORMS: Table = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Names that most families share."""

PERMUTED_ATTENTION: Table = {
    **ATTENTION,
    "self_attn.q_proj": permuted_heads("attn_q", "num_attention_heads"),
    "self_attn.k_proj": permuted_heads("attn_k", "num_key_value_heads"),
}
"""Attention whose RoPE pairs halves of a head here, and neighbours in llama.cpp's files."""

GEMMA_NORMS: Table = {
    "input_layernorm": one_plus("attn_norm"),
    "post_attention_layernorm": one_plus("post_attention_norm"),
    "pre_feedforward_layernorm": one_plus("ffn_norm"),
    "post_feedforward_layernorm": one_plus("post_ffw_norm"),
}
"""Norms before and behind both halves of a layer, with weights relative to 1."""

AHEAD: Table = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
"""What a layer that predicts tokens further ahead has besides what layers have."""

DECODER: Table = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}
"""Names outside of layers that most families share."""
