"""Shapes of models whose layers aren't all alike: some attend, the others are recurrent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.random_model import Shape, Vectors, norm_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetShape(Shape):
    """Gated delta nets, with an attention layer after every few (Qwen 3.5).

    Attributes:
        interval: One layer in so many attends.
        rotated: Channels of a head that are rotated.
        delta_heads: Heads of a delta net: of queries and keys, and of values.
        delta_dim: Channels of each.
        taps: Of the convolution before.
    """

    interval: int
    rotated: int
    delta_heads: int
    delta_dim: int
    taps: int

    def matrices(self, layer: int) -> dict[str, tuple[int, ...]]:
        """See `Shape.matrices`; an attention layer has gates among its queries."""
        if self._attends(layer):
            with_gates = (2 * self.heads * self.head_dim, self.hidden)
            return {**self.attention_matrices(), "attn_q": with_gates, **self.mlp_matrices()}
        inner = self.delta_heads * self.delta_dim
        return {
            "attn_qkv": (3 * inner, self.hidden),
            "attn_gate": (inner, self.hidden),
            "ssm_alpha": (self.delta_heads, self.hidden),
            "ssm_beta": (self.delta_heads, self.hidden),
            "ssm_out": (self.hidden, inner),
            **self.mlp_matrices(),
        }

    def vectors(self, layer: int) -> Vectors:
        """See `Shape.vectors`."""
        norms = {"attn_norm": self.hidden, "post_attention_norm": self.hidden}
        if self._attends(layer):
            norms |= {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}
            return norm_weights(norms)
        channels = 3 * self.delta_heads * self.delta_dim
        norms |= {"ssm_norm": self.delta_dim}
        return {
            **norm_weights(norms),
            "ssm_conv1d.weight": np.full((channels, self.taps), 1 / self.taps, np.float32),
            "ssm_dt.bias": np.zeros(self.delta_heads, np.float32),
            "ssm_a": np.full(self.delta_heads, -1.0, np.float32),
        }

    def keys(self) -> Mapping[str, Any]:
        """See `Shape.keys`."""
        return {
            "full_attention_interval": self.interval,
            "rope.dimension_count": self.rotated,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": self.taps,
            "ssm.inner_size": self.delta_heads * self.delta_dim,
            "ssm.state_size": self.delta_dim,
            "ssm.time_step_rank": self.delta_heads,
            "ssm.group_count": self.delta_heads,
        }

    def _attends(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvShape(Shape):
    """Short convolutions, with an attention layer here and there (LFM2).

    Attributes:
        attending: The layers that attend.
        taps: Of a convolution.
    """

    attending: tuple[int, ...]
    taps: int

    def matrices(self, layer: int) -> dict[str, tuple[int, ...]]:
        """See `Shape.matrices`."""
        if layer in self.attending:
            return Shape.matrices(self, layer)
        return {
            "shortconv.in_proj": (3 * self.hidden, self.hidden),
            "shortconv.out_proj": (self.hidden, self.hidden),
            **self.mlp_matrices(),
        }

    def vectors(self, layer: int) -> Vectors:
        """See `Shape.vectors`."""
        norms = {"attn_norm": self.hidden, "ffn_norm": self.hidden}
        if layer in self.attending:
            norms |= {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}
            return norm_weights(norms)
        taps = np.full((self.hidden, self.taps), 1 / self.taps, np.float32)
        return {**norm_weights(norms), "shortconv.conv.weight": taps}

    def keys(self) -> Mapping[str, Any]:
        """See `Shape.keys`."""
        of_layers = [
            self.kv_heads if layer in self.attending else 0 for layer in range(self.layers)
        ]
        return {"attention.head_count_kv": of_layers, "shortconv.l_cache": self.taps}


QWEN35_08B = DeltaNetShape(
    architecture="qwen35",
    title="Qwen3.5-0.8B",
    hidden=1024,
    layers=24,
    feed_forward=3584,
    heads=8,
    kv_heads=2,
    head_dim=256,
    vocabulary=248_320,
    context=262_144,
    rope_base=10_000_000.0,
    tied=True,
    interval=4,
    rotated=64,
    delta_heads=16,
    delta_dim=128,
    taps=4,
)
LFM2_12B = ShortConvShape(
    architecture="lfm2",
    title="LFM2.5-1.2B",
    hidden=2048,
    layers=16,
    feed_forward=8192,
    heads=32,
    kv_heads=8,
    head_dim=64,
    vocabulary=65_536,
    context=128_000,
    rope_base=1_000_000.0,
    tied=True,
    final_norm="token_embd_norm",
    attending=(2, 5, 8, 10, 12, 14),
    taps=3,
)
