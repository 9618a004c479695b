"""Attention, and the rotations that tell it where tokens are."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.models.program.op import Buffer, Op, VectorName
from caudal.models.rope import RopeTable


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotates every head of x in place by its token's position (RoPE, arXiv 2104.09864).

    Attributes:
        x: Shape (tokens, heads · head_dim).
        head_dim: Channels of a head.
        table: How far.
        first: The first channel of a head that is rotated; as many are as the table has.
    """

    x: Buffer
    head_dim: int
    table: RopeTable
    first: int = 0


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Stores k and v in the KV pool, then attends over all the sequence has stored.

    Attributes:
        out: Shape (tokens, heads · value_dim); sizes are those of the layer.
        q: Queries, shape (tokens, heads · head_dim).
        k: Keys, shape (tokens, kv_heads · head_dim); None: an attention before has stored the
            layer, and this one reads it too.
        v: Values, shape (tokens, kv_heads · value_dim); None where k is, or the layer is latent.
        layer: Which of `Program.kv_layers`.
        heads: Query heads; several share a KV head (GQA, arXiv 2305.13245).
        scale: Multiplies q · k.
        window: A query sees itself and `window - 1` tokens before it; None: all before it.
        chunked: Positions are cut into chunks of `window` tokens instead, and a query sees what is
            before it in its own.
        causal: False: a query sees all of its sequence, which is never cut then. Its window is
            as far in both directions: `window // 2` tokens before it, and as many after it.
        softcap: Scores, scaled, become softcap · tanh(score / softcap); 0 leaves them as they are.
        sinks: For each query head, what stands in the softmax beside the scores without a value
            of its own (attention sinks, arXiv 2309.17453, learned).
    """

    out: Buffer
    q: Buffer
    k: Buffer | None
    v: Buffer | None
    layer: int
    heads: int
    scale: float
    window: int | None
    causal: bool
    chunked: bool = False
    softcap: float = 0.0
    sinks: VectorName | None = None
