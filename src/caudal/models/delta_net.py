"""Layers that are a gated delta net (arXiv 2412.06464) instead of attention, as Qwen has them.

Files have had three layouts of the matrices. `attn_qkv` has all queries, all keys and all values,
`attn_gate` the gates; both in one are `ssm_in`, key head by key head: its query, its key, its
values, their gates. `ssm_alpha` and `ssm_beta` are decays and what is written; both in one are
`ssm_ba`, key head by key head: first what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import MAX_HEAD_DIM, positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer

_UNIT_EPS = 1e-6  # for queries and keys of length 1; no file says another


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Sizes of the layers.

    Attributes:
        key_heads: Heads of queries and keys.
        heads: Heads of values; as many share a key head as there are for each.
        key_dim: Channels of a head of queries, or keys.
        value_dim: Channels of a head of values: a multiple of 16.
        tiled: Value heads that share a key head lie `key_heads` apart; else side by side.
        taps: Of the convolution before.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    tiled: bool
    taps: int

    @classmethod
    def from_gguf(cls, file: ModelFile, *, tiled: bool) -> Self:
        """Read `{architecture}.ssm.*`.

        Raises:
            ModelLoadError: A key is missing or contradicts another.
        """
        prefix = f"{file.architecture}.ssm"
        key_heads = positive(file, f"{prefix}.group_count")
        heads = positive(file, f"{prefix}.time_step_rank")
        key_dim = positive(file, f"{prefix}.state_size")
        inner = positive(file, f"{prefix}.inner_size")
        value_dim = inner // heads
        fits = inner % heads == 0 and heads % key_heads == 0 and value_dim % 16 == 0
        if not fits or max(key_dim, value_dim) > MAX_HEAD_DIM:
            raise ModelLoadError(
                str(file.path),
                f"{prefix}: {heads} heads (time_step_rank) of values of {inner} channels "
                f"(inner_size), {key_heads} of keys (group_count) of {key_dim} (state_size); "
                "supported are whole numbers of value heads for a key head, of a multiple of 16 "
                f"channels, up to {MAX_HEAD_DIM}",
            )
        return cls(
            key_heads=key_heads,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            tiled=tiled,
            taps=positive(file, f"{prefix}.conv_kernel"),
        )

    def emit(self, layer: Layer, x: Buffer) -> Buffer:
        """The inside of such a layer: all up to its output matrix."""
        b = layer.b
        values = self.heads * self.value_dim
        gate = b.buffer("delta_gate", values)
        q, k, v = self._convolved(layer, x, gate)
        decay, beta = self._decay_and_beta(layer, x)
        for each in (q, k):
            b.l2_norm(each, each, group=self.key_dim, eps=_UNIT_EPS)
        # exp(a · softplus(alpha + bias)), with a negative
        b.shift_by(decay, layer.tensor("ssm_dt.bias"))
        b.activate(decay, "softplus")
        b.scale_by(decay, layer.tensor("ssm_a"))
        b.activate(decay, "exp")
        b.activate(beta, "sigmoid")
        out = b.buffer("delta_out", values)
        b.gated_delta(
            *(q, k, v, decay, beta, out),
            key_heads=self.key_heads,
            scale=self.key_dim**-0.5,
            tiled=self.tiled,
        )
        b.rms_norm(out, layer.tensor("ssm_norm"), out, eps=layer.eps, period=self.value_dim)
        b.gated(gate, out, out, "silu")
        return out

    def _convolved(self, layer: Layer, x: Buffer, gate: Buffer) -> tuple[Buffer, Buffer, Buffer]:
        """Queries, keys and values behind the convolution; puts the gates into `gate`."""
        b, name = layer.b, layer.tensor("ssm_conv1d")
        keys, values = self.key_heads * self.key_dim, gate.width
        q, k, v = b.buffer("delta_q", keys), b.buffer("delta_k", keys), b.buffer("delta_v", values)
        if not b.has(layer.tensor("ssm_in.weight")):
            mixed = b.buffer("delta_mixed", 2 * keys + values)
            convolved = b.buffer("delta_convolved", mixed.width)
            b.linear(x, layer.tensor("attn_qkv"), mixed)
            b.linear(x, layer.tensor("attn_gate"), gate)
            b.causal_conv(mixed, name, convolved, "silu", taps=self.taps)
            for first, out in ((0, q), (keys, k), (2 * keys, v)):
                b.columns(convolved, out, first=first)
            return q, k, v
        packed = b.buffer("delta_packed", 2 * (keys + values))
        b.linear(x, layer.tensor("ssm_in"), packed)
        of_key, of_values = self.key_dim, values // self.key_heads
        period = 2 * (of_key + of_values)
        first = row = 0
        for width, out in ((of_key, q), (of_key, k), (of_values, v)):
            mixed = b.buffer("delta_mixed", out.width)
            b.columns(packed, mixed, first=first, period=period)
            b.causal_conv(mixed, name, out, "silu", taps=self.taps, first_row=row)
            first, row = first + width, row + out.width
        b.columns(packed, gate, first=first, period=period)
        return q, k, v

    def _decay_and_beta(self, layer: Layer, x: Buffer) -> tuple[Buffer, Buffer]:
        """What the file's matrices say of decays, and of how much is written."""
        b = layer.b
        decay, beta = b.buffer("delta_decay", self.heads), b.buffer("delta_beta", self.heads)
        if not b.has(layer.tensor("ssm_ba.weight")):
            b.linear(x, layer.tensor("ssm_alpha"), decay)
            b.linear(x, layer.tensor("ssm_beta"), beta)
            return decay, beta
        packed = b.buffer("delta_beta_and_decay", 2 * self.heads)
        b.linear(x, layer.tensor("ssm_ba"), packed)
        of_key = self.heads // self.key_heads
        b.columns(packed, beta, first=0, period=2 * of_key)
        b.columns(packed, decay, first=of_key, period=2 * of_key)
        return decay, beta
