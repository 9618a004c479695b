"""The pre-norm decoder that Llama made the standard; families differ in a few switches."""

from __future__ import annotations

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models.config import ModelConfig
from caudal.models.pooling import Pooling, PoolingKind
from caudal.models.program import Program, ProgramBuilder
from caudal.models.rope import rope_table

POOLING_TYPES: dict[int, PoolingKind] = {1: "mean", 2: "cls", 3: "last"}
"""Values of `{architecture}.pooling_type`; 0 is none, 4 a ranking head."""


def head_name(file: GGUFFile) -> str:
    """The output matrix: its own, or the embedding where the file ties them."""
    return "output" if "output.weight" in file.tensors else "token_embd"


def decoder_pooling(file: GGUFFile) -> Pooling:
    """How a decoder embeds: as its file says, else by its last token, which has seen all others.

    Raises:
        ModelLoadError: The file asks for pooling that a decoder can't do.
    """
    key = f"{file.architecture}.pooling_type"
    number = file.get_int(key, 0)
    if number == 0:
        return Pooling(kind="last", normalize=True)
    if POOLING_TYPES.get(number) not in ("mean", "last"):
        raise ModelLoadError(
            str(file.path), f"{key} is {number}; supported are 0 (none), 1 (mean) and 3 (last)"
        )
    return Pooling(kind=POOLING_TYPES[number], normalize=True)


def pre_norm_decoder(
    file: GGUFFile, *, interleaved_rope: bool, qk_norm: bool = False, window: int | None = None
) -> Program:
    """The program of a decoder with RMSNorm before attention and MLP, GQA, RoPE and SwiGLU.

    Args:
        file: The model.
        interleaved_rope: See `RopeTable`; depends on how a family's files order channels.
        qk_norm: Queries and keys are normalised per head (arXiv 2302.05442).
        window: Sliding window of all layers, or None.
    """
    config = ModelConfig.from_gguf(file)
    b = ProgramBuilder(file)
    hidden = b.buffer("hidden", config.hidden)
    normed = b.buffer("normed", config.hidden)
    q = b.buffer("q", config.heads * config.head_dim)
    k = b.buffer("k", config.kv_heads * config.head_dim)
    v = b.buffer("v", config.kv_heads * config.head_dim)
    attended = b.buffer("attended", config.heads * config.head_dim)
    gate = b.buffer("gate", config.feed_forward)
    up = b.buffer("up", config.feed_forward)
    logits = b.buffer("logits", config.vocab_size)
    rope = rope_table(
        file,
        dimensions=config.rope_dimensions,
        base=config.rope_base,
        interleaved=interleaved_rope,
        divisors=b.vector_values("rope_freqs.weight", config.rope_dimensions // 2),
    )

    b.embed(hidden, "token_embd.weight")
    body_ops = 0  # up to the last layer's attention: no other token needs what comes after
    for layer in range(config.layers):
        block = f"blk.{layer}"
        b.rms_norm(hidden, f"{block}.attn_norm.weight", normed, eps=config.norm_eps)
        b.linear(normed, f"{block}.attn_q", q)
        b.linear(normed, f"{block}.attn_k", k)
        b.linear(normed, f"{block}.attn_v", v)
        if qk_norm:
            b.rms_norm(q, f"{block}.attn_q_norm.weight", q, eps=config.norm_eps)
            b.rms_norm(k, f"{block}.attn_k_norm.weight", k, eps=config.norm_eps)
        b.rope(q, config.head_dim, rope)
        b.rope(k, config.head_dim, rope)
        b.attention(
            attended, q, k, v, head_dim=config.head_dim, scale=config.head_dim**-0.5, window=window
        )
        body_ops = b.num_ops
        b.linear(attended, f"{block}.attn_output", hidden, accumulate=True)
        b.rms_norm(hidden, f"{block}.ffn_norm.weight", normed, eps=config.norm_eps)
        b.linear(normed, f"{block}.ffn_gate", gate)
        b.linear(normed, f"{block}.ffn_up", up)
        b.gated(gate, up, up, "silu")
        b.linear(up, f"{block}.ffn_down", hidden, accumulate=True)
    tail_ops = b.num_ops - body_ops
    b.rms_norm(hidden, "output_norm.weight", normed, eps=config.norm_eps)
    b.linear(normed, head_name(file), logits)
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
