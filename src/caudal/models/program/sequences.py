"""Operations that go through a sequence's tokens in order, and keep a state of it."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.models.program.op import Buffer, Op, VectorName
from caudal.models.program.rows import GateName


@dataclass(frozen=True, slots=True)
class CausalConv(Op):
    """A depthwise convolution over a sequence's tokens, of which a state keeps the last inputs.

    Attributes:
        out: As wide as x; out = activation(bias + Σ weight[:, j] · the input taps - 1 - j tokens
            ago), with zeros before the beginning.
        x: The inputs.
        weight: Shape (channels, taps).
        bias: Shape (channels,), or None.
        layer: Which of `Program.state_layers`: (taps - 1) · channels numbers.
        activation: `none`, or what is applied.
    """

    out: Buffer
    x: Buffer
    weight: VectorName
    bias: VectorName | None
    layer: int
    activation: GateName


@dataclass(frozen=True, slots=True)
class GatedDelta(Op):
    """A gated delta net (arXiv 2412.06464), head by head, token by token.

    With S [key channels][value channels] the state of a head, zeros in the beginning:
    S = decay · S; S = S + k ⊗ (beta · (v - Sᵀk)); out = scale · Sᵀq.

    Attributes:
        out: As v.
        q: Shape (tokens, key_heads · key channels).
        k: As q; heads of length 1, or states may grow without bound.
        v: Shape (tokens, heads · value channels), of which a head has a multiple of 16.
        decay: What is left of a state, 0 to 1, shape (tokens, heads).
        beta: How much is written, as decay.
        layer: Which of `Program.state_layers`: heads · key channels · value channels numbers.
        key_heads: Heads of q and k; each is for heads / key_heads of v.
        tiled: Head i has key head i modulo key_heads; else it is neighbouring heads that share one.
        scale: Multiplies what is read.
    """

    out: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    decay: Buffer
    beta: Buffer
    layer: int
    key_heads: int
    tiled: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Mamba2(Op):
    """Mamba-2's state space (arXiv 2405.21060), head by head, token by token.

    With h [state size][channels] the state of a head, zeros in the beginning:
    h = decay · h + b ⊗ (dt · x); out = hᵀc + skip · x.

    Attributes:
        out: As x.
        x: Shape (tokens, heads · channels), of which a head has a multiple of 16.
        b: Shape (tokens, groups · state size); neighbouring heads share a group's.
        c: As b.
        dt: Step sizes, shape (tokens, heads).
        decay: What is left of a state, exp(dt · A), as dt.
        skip: Shape (heads,); often called D.
        layer: Which of `Program.state_layers`: heads · channels · state size numbers.
        groups: Of b and c.
    """

    out: Buffer
    x: Buffer
    b: Buffer
    c: Buffer
    dt: Buffer
    decay: Buffer
    skip: VectorName
    layer: int
    groups: int
