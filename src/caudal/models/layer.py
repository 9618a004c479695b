"""The blocks that layers are put together from, of decoders and encoders alike.

A block is a method of `Layer`, or a function that takes one: it names tensors below `blk.N`, emits
their operations, and returns the buffer of its result. A family's layers are the blocks that it
calls, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caudal.models.builder import ProgramBuilder
from caudal.models.program import ActivationName, Buffer
from caudal.models.rope import RopeTable

NormName = Literal["rms", "layer"]
"""RMSNorm, or LayerNorm, which subtracts the mean and may have a bias."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What an attention works on: heads of `dim` channels, side by side.

    Attributes:
        q: Queries, shape (tokens, heads · dim).
        k: Keys, shape (tokens, kv_heads · dim).
        v: Values, as k.
        dim: Channels of a head.
    """

    q: Buffer
    k: Buffer
    v: Buffer
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a model; `dataclasses.replace` gives one of other sizes.

    Attributes:
        b: Takes the operations.
        index: Which layer it is, from 0.
        hidden: The residual stream.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Channels of a head.
        feed_forward: Width inside the MLP.
        eps: Added in norms before the root is taken.
        norms: Of which kind the norms of the residual stream are.
    """

    b: ProgramBuilder
    index: int
    hidden: Buffer
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    eps: float
    norms: NormName = "rms"

    def tensor(self, name: str) -> str:
        """A tensor's full name, e.g. `blk.3.attn_q`."""
        return f"blk.{self.index}.{name}"

    def norm(self, name: str) -> Buffer:
        """The residual stream through a norm."""
        normed = self.b.buffer("normed", self.hidden.width)
        add_norm = self.b.rms_norm if self.norms == "rms" else self.b.layer_norm
        add_norm(self.hidden, self.tensor(name), normed, eps=self.eps)
        return normed

    def add(self, x: Buffer, name: str, *, scale: float = 1.0) -> None:
        """Add a linear layer of x, times a number, to the residual stream."""
        if scale == 1.0:
            self.b.linear(x, self.tensor(name), self.hidden, accumulate=True)
            return
        sublayer = self.b.buffer("sublayer", self.hidden.width)
        self.b.linear(x, self.tensor(name), sublayer)
        self.b.scale(sublayer, scale)
        self.b.add(self.hidden, sublayer, self.hidden)

    def add_normed(self, x: Buffer, name: str, norm: str, *, eps: float | None = None) -> None:
        """Add a linear layer of x, through an RMSNorm of its own, to the residual stream.

        `eps` is that norm's; None: the layer's.
        """
        eps = self.eps if eps is None else eps
        sublayer = self.b.buffer("sublayer", self.hidden.width)
        self.b.linear(x, self.tensor(name), sublayer)
        self.b.rms_norm(sublayer, self.tensor(norm), sublayer, eps=eps)
        self.b.add(self.hidden, sublayer, self.hidden)

    def project(self, x: Buffer) -> Heads:
        """Queries, keys and values: from a matrix each, or from one that has all three."""
        q = self.b.buffer("q", self.heads * self.head_dim)
        k = self.b.buffer("k", self.kv_heads * self.head_dim)
        v = self.b.buffer("v", self.kv_heads * self.head_dim)
        fused = self.tensor("attn_qkv")
        if self.b.has(f"{fused}.weight"):
            self.b.linear(x, fused, q, first_row=0)
            self.b.linear(x, fused, k, first_row=q.width)
            self.b.linear(x, fused, v, first_row=q.width + k.width)
        else:
            outs = {self.tensor("attn_q"): q, self.tensor("attn_k"): k, self.tensor("attn_v"): v}
            self.b.require_all_or_none([f"{name}.bias" for name in outs])
            for name, out in outs.items():
                self.b.linear(x, name, out)
        return Heads(q, k, v, self.head_dim)

    def project_gated(self, x: Buffer) -> tuple[Heads, Buffer]:
        """Queries, keys and values, and a gate for each channel of what queries find.

        Head by head, rows of `attn_q` are those of the query, then those of the gate.
        """
        packed = self.b.buffer("q_and_gate", 2 * self.heads * self.head_dim)
        self.b.linear(x, self.tensor("attn_q"), packed)
        q, gate = (self.b.buffer(name, packed.width // 2) for name in ("q", "attention_gate"))
        self.b.columns(packed, q, first=0, period=2 * self.head_dim)
        self.b.columns(packed, gate, first=self.head_dim, period=2 * self.head_dim)
        k, v = (self.b.buffer(name, self.kv_heads * self.head_dim) for name in ("k", "v"))
        self.b.linear(x, self.tensor("attn_k"), k)
        self.b.linear(x, self.tensor("attn_v"), v)
        return Heads(q, k, v, self.head_dim), gate

    def norm_heads(self, heads: Heads, *, together: bool = False) -> None:
        """Normalise queries and keys (QK norm, arXiv 2302.05442).

        Every one by itself, with the same weight; or those of all heads together.
        """
        period = None if together else heads.dim
        for name, x in (("attn_q_norm", heads.q), ("attn_k_norm", heads.k)):
            self.b.rms_norm(x, self.tensor(name), x, eps=self.eps, period=period)

    def rotate(self, heads: Heads, rope: RopeTable) -> None:
        """Give queries and keys their positions."""
        self.b.rope(heads.q, heads.dim, rope)
        self.b.rope(heads.k, heads.dim, rope)

    def attend(
        self,
        heads: Heads,
        *,
        scale: float | None = None,
        window: int | None = None,
        causal: bool = True,
        chunked: bool = False,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> Buffer:
        """Attention; see `Attention`. The scale is 1 / sqrt(head_dim) unless given."""
        attended = self.b.buffer("attended", heads.q.width)
        self.b.attention(
            attended,
            heads.q,
            heads.k,
            heads.v,
            head_dim=heads.dim,
            scale=heads.dim**-0.5 if scale is None else scale,
            window=window,
            causal=causal,
            chunked=chunked,
            softcap=softcap,
            sinks=None if sinks is None else self.tensor(sinks),
        )
        return attended

    def gated_mlp(
        self, x: Buffer, activation: ActivationName, *, deviations: float | None = None
    ) -> Buffer:
        """The inside of a gated MLP: activation(gate(x)) · up(x).

        Where `ffn_up` has twice the rows, the first half are the gate's. With `deviations` only the
        largest gates count, and what they have above that; see `Cut`.
        """
        gate = self.b.buffer("gate", self.feed_forward)
        up = self.b.buffer("up", self.feed_forward)
        has_gate = self.b.has(self.tensor("ffn_gate.weight"))
        if not has_gate and self.b.rows(self.tensor("ffn_up.weight")) == 2 * self.feed_forward:
            self.b.linear(x, self.tensor("ffn_up"), gate, first_row=0)
            self.b.linear(x, self.tensor("ffn_up"), up, first_row=gate.width)
        else:
            self.b.linear(x, self.tensor("ffn_gate"), gate)
            self.b.linear(x, self.tensor("ffn_up"), up)
        if deviations is not None:
            self.b.cut(gate, deviations=deviations)
        self.b.gated(gate, up, up, activation)
        return up

    def mlp(self, x: Buffer, activation: ActivationName) -> Buffer:
        """The inside of an MLP without a gate: activation(up(x))."""
        inner = self.b.buffer("inner", self.feed_forward)
        self.b.linear(x, self.tensor("ffn_up"), inner)
        self.b.activate(inner, activation)
        return inner
