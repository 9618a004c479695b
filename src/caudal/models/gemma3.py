"""Gemma 3 (arXiv 2503.19786): norms around each sublayer, five local layers to one global.

Local layers see a sliding window and rotate with a base of their own; the embedding is scaled by
sqrt(hidden). The "1 +" of Gemma's norm weights is already in the file.
"""

from __future__ import annotations

from caudal.formats.gguf import GGUFFile
from caudal.models.config import ModelConfig, positive
from caudal.models.decoder import decoder_pooling, head_name
from caudal.models.program import Program, ProgramBuilder
from caudal.models.rope import rope_table

_GLOBAL_EVERY = 6
_LAYERS_OF_27B = 62


def build(file: GGUFFile) -> Program:
    """The program."""
    config = ModelConfig.from_gguf(file)
    window = positive(file, "gemma3.attention.sliding_window")
    b = ProgramBuilder(file)
    hidden = b.buffer("hidden", config.hidden)
    normed = b.buffer("normed", config.hidden)
    sublayer = b.buffer("sublayer", config.hidden)
    q = b.buffer("q", config.heads * config.head_dim)
    k = b.buffer("k", config.kv_heads * config.head_dim)
    v = b.buffer("v", config.kv_heads * config.head_dim)
    attended = b.buffer("attended", config.heads * config.head_dim)
    gate = b.buffer("gate", config.feed_forward)
    up = b.buffer("up", config.feed_forward)
    logits = b.buffer("logits", config.vocab_size)
    global_rope = rope_table(
        file, dimensions=config.rope_dimensions, base=config.rope_base, interleaved=False
    )
    local_rope = rope_table(
        file,
        dimensions=config.rope_dimensions,
        base=file.get_float("gemma3.rope.freq_base_swa", 10000.0),
        interleaved=False,
        scaled=False,
    )
    # The 27B model scales by its hidden size per head, which differs from its head size.
    scaled_by = (
        config.hidden // config.heads if config.layers == _LAYERS_OF_27B else config.head_dim
    )

    b.embed(hidden, "token_embd.weight", scale=config.hidden**0.5)
    body_ops = 0  # up to the last layer's attention: no other token needs what comes after
    for layer in range(config.layers):
        block = f"blk.{layer}"
        is_global = (layer + 1) % _GLOBAL_EVERY == 0
        rope = global_rope if is_global else local_rope
        b.rms_norm(hidden, f"{block}.attn_norm.weight", normed, eps=config.norm_eps)
        b.linear(normed, f"{block}.attn_q", q)
        b.linear(normed, f"{block}.attn_k", k)
        b.linear(normed, f"{block}.attn_v", v)
        b.rms_norm(q, f"{block}.attn_q_norm.weight", q, eps=config.norm_eps)
        b.rms_norm(k, f"{block}.attn_k_norm.weight", k, eps=config.norm_eps)
        b.rope(q, config.head_dim, rope)
        b.rope(k, config.head_dim, rope)
        b.attention(
            attended,
            q,
            k,
            v,
            head_dim=config.head_dim,
            scale=scaled_by**-0.5,
            window=None if is_global else window,
        )
        body_ops = b.num_ops
        b.linear(attended, f"{block}.attn_output", sublayer)
        b.rms_norm(sublayer, f"{block}.post_attention_norm.weight", sublayer, eps=config.norm_eps)
        b.add(hidden, sublayer, hidden)
        b.rms_norm(hidden, f"{block}.ffn_norm.weight", normed, eps=config.norm_eps)
        b.linear(normed, f"{block}.ffn_gate", gate)
        b.linear(normed, f"{block}.ffn_up", up)
        b.gated(gate, up, up, "gelu_tanh")
        b.linear(up, f"{block}.ffn_down", sublayer)
        b.rms_norm(sublayer, f"{block}.post_ffw_norm.weight", sublayer, eps=config.norm_eps)
        b.add(hidden, sublayer, hidden)
    tail_ops = b.num_ops - body_ops
    b.rms_norm(hidden, "output_norm.weight", normed, eps=config.norm_eps)
    b.linear(normed, head_name(file), logits)
    cap = file.get_float("gemma3.final_logit_softcapping", 0.0)
    if cap > 0:
        b.softcap(logits, cap)
    return b.finish(
        carried=(hidden, attended),
        hidden=hidden,
        body_ops=body_ops,
        tail_ops=tail_ops,
        state=normed,
        state_ops=1,
        logits=logits,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        pooling=decoder_pooling(file),
    )
