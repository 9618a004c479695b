"""Models whose layers aren't all attention, in float64; see `reference_model`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.formats.tensor_types import TensorType
from support.reference_model import Floats, TinyModel


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def convolved(x: Floats, weight: Floats) -> Floats:
    """Each channel of x, shape (tokens, channels), with its row of taps."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return np.sum([padded[tap : tap + len(x)] * weight[:, tap] for tap in range(taps)], axis=0)


def delta_net(q: Floats, k: Floats, v: Floats, decay: Floats, beta: Floats) -> Floats:
    """The recurrence over tokens; q, k and v of shape (tokens, heads, channels)."""
    state = np.zeros((q.shape[1], k.shape[2], v.shape[2]))
    out = []
    for t in range(len(q)):
        state = state * decay[t][:, None, None]
        error = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][:, :, None] * (beta[t][:, None] * error)[:, None, :]
        out.append(np.einsum("hkv,hk->hv", state, q[t]))
    return np.array(out)


@dataclass(frozen=True, kw_only=True)
class TinyQwen35(TinyModel):
    """Every `interval`th layer attends, with gates; the others are a delta net.

    Value heads that share a key head lie `key_heads` apart.
    """

    architecture: str = "qwen35"
    layers: int = 4
    interval: int = 3
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 24
    value_dim: int = 16
    rotated: int | None = 8
    metadata: dict[str, Any] = field(
        default_factory=lambda: {
            "qwen35.full_attention_interval": 3,
            "qwen35.ssm.conv_kernel": 4,
            "qwen35.ssm.inner_size": 64,
            "qwen35.ssm.state_size": 24,
            "qwen35.ssm.time_step_rank": 4,
            "qwen35.ssm.group_count": 2,
            "qwen35.rope.dimension_sections": [2, 1, 1, 0],
        }
    )

    @property
    def qk_norm(self) -> bool:
        return True

    def attends(self, layer: int) -> bool:
        return layer % self.interval == self.interval - 1

    def weights(self) -> dict[str, NDArray[np.float32]]:
        made = super().weights()
        rng = np.random.default_rng(self.seed + 1)
        values, keys = self.value_heads * self.value_dim, self.key_heads * self.key_dim

        def random(*shape: int, centre: float = 0.0, scale: float | None = None) -> Any:
            scale = 1 / math.sqrt(shape[-1]) if scale is None else scale
            return (centre + scale * rng.standard_normal(shape)).astype(np.float32)

        for layer in range(self.layers):
            block = f"blk.{layer}"
            made[f"{block}.post_attention_norm.weight"] = made.pop(f"{block}.ffn_norm.weight")
            if self.attends(layer):
                made[f"{block}.attn_q.weight"] = random(2 * self.heads * self.head_dim, self.hidden)
                continue
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"):
                del made[f"{block}.{name}.weight"]
            made |= {
                f"{block}.attn_qkv.weight": random(2 * keys + values, self.hidden),
                f"{block}.attn_gate.weight": random(values, self.hidden),
                f"{block}.ssm_alpha.weight": random(self.value_heads, self.hidden),
                f"{block}.ssm_beta.weight": random(self.value_heads, self.hidden),
                f"{block}.ssm_conv1d.weight": random(2 * keys + values, 4),
                f"{block}.ssm_dt.bias": random(self.value_heads, scale=1.0),
                f"{block}.ssm_a": -np.exp(random(self.value_heads, scale=1.0)),
                f"{block}.ssm_norm.weight": random(self.value_dim, centre=1.0, scale=0.1),
                f"{block}.ssm_out.weight": random(self.hidden, values),
            }
        return made

    def _attention(
        self, x: Floats, w: dict[str, Floats], layer: int, frequencies: Floats | None
    ) -> Floats:
        if not self.attends(layer):
            return self._delta_layer(x, w, f"blk.{layer}")
        # The gates before the output matrix: the identity in its place gives what they apply to.
        block, width = f"blk.{layer}", self.heads * self.head_dim
        packed = w[f"{block}.attn_q.weight"].reshape(self.heads, 2, self.head_dim, self.hidden)
        plain = {
            **w,
            f"{block}.attn_q.weight": packed[:, 0].reshape(width, self.hidden),
            f"{block}.attn_output.weight": np.eye(width),
        }
        attended = super()._attention(x, plain, layer, frequencies)
        normed = self._norm(x, w[f"{block}.attn_norm.weight"])
        gate = normed @ packed[:, 1].reshape(width, self.hidden).T
        return (attended * sigmoid(gate)) @ w[f"{block}.attn_output.weight"].T

    def _delta_layer(self, x: Floats, w: dict[str, Floats], block: str) -> Floats:
        count, keys = len(x), self.key_heads * self.key_dim
        normed = self._norm(x, w[f"{block}.attn_norm.weight"])
        mixed = convolved(normed @ w[f"{block}.attn_qkv.weight"].T, w[f"{block}.ssm_conv1d.weight"])
        mixed = mixed * sigmoid(mixed)

        def unit(part: Floats) -> Floats:
            heads = part.reshape(count, self.key_heads, self.key_dim)
            heads = heads / np.sqrt((heads**2).sum(axis=-1, keepdims=True) + 1e-6)
            return heads[:, [head % self.key_heads for head in range(self.value_heads)]]

        alpha = normed @ w[f"{block}.ssm_alpha.weight"].T + w[f"{block}.ssm_dt.bias"]
        out = delta_net(
            unit(mixed[:, :keys]) / math.sqrt(self.key_dim),
            unit(mixed[:, keys : 2 * keys]),
            mixed[:, 2 * keys :].reshape(count, self.value_heads, self.value_dim),
            np.exp(w[f"{block}.ssm_a"] * np.log1p(np.exp(alpha))),
            sigmoid(normed @ w[f"{block}.ssm_beta.weight"].T),
        )
        gate = normed @ w[f"{block}.attn_gate.weight"].T
        out = self._norm(out, w[f"{block}.ssm_norm.weight"]).reshape(count, -1)
        return (out * gate * sigmoid(gate)) @ w[f"{block}.ssm_out.weight"].T

    def _mlp(self, x: Floats, w: dict[str, Floats], layer: int) -> Floats:
        norm = w[f"blk.{layer}.post_attention_norm.weight"]
        return super()._mlp(x, {**w, f"blk.{layer}.ffn_norm.weight": norm}, layer)


@dataclass(frozen=True, kw_only=True)
class TinyQwen35Ahead(TinyQwen35):
    """The last of its layers predicts a token further ahead, of a state and the token behind it."""

    layers: int = 5

    def attends(self, layer: int) -> bool:
        return layer == self.layers - 1 or super().attends(layer)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(self.seed + 2)
        block = f"blk.{self.layers - 1}.nextn"

        def random(*shape: int, centre: float, scale: float) -> NDArray[np.float32]:
            return (centre + scale * rng.standard_normal(shape)).astype(np.float32)

        return super().weights() | {
            f"{block}.eh_proj.weight": random(self.hidden, 2 * self.hidden, centre=0.0, scale=0.1),
            **{
                f"{block}.{name}.weight": random(self.hidden, centre=1.0, scale=0.2)
                for name in ("enorm", "hnorm", "shared_head_norm")
            },
        }

    def write(self, path: Path, quantised: TensorType | None = None) -> Path:
        counted = {**self.metadata, "qwen35.nextn_predict_layers": 1}
        if counted == self.metadata:
            return super().write(path, quantised)
        return replace(self, metadata=counted).write(path, quantised)

    def states(self, tokens: list[int], frequencies: Floats | None = None) -> Floats:
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        x = w["token_embd.weight"][tokens]
        for layer in range(self.layers - 1):
            x = x + self._attention(x, w, layer, frequencies)
            x = x + self._mlp(x, w, layer)
        return self._norm(x, w[self.final_norm])

    def states_ahead(self, states: Floats, tokens: list[int]) -> Floats:
        """What is predicted ahead of, of states and the tokens behind each, both (tokens, …)."""
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        layer = self.layers - 1
        block = f"blk.{layer}.nextn"
        embedded = self._norm(w["token_embd.weight"][tokens], w[f"{block}.enorm.weight"])
        given = self._norm(states, w[f"{block}.hnorm.weight"])
        x = np.concatenate([embedded, given], axis=1) @ w[f"{block}.eh_proj.weight"].T
        x = x + self._attention(x, w, layer, None)
        x = x + self._mlp(x, w, layer)
        return self._norm(x, w[f"{block}.shared_head_norm.weight"])

    def logits_ahead(self, states: Floats) -> Floats:
        """Logits of what `states_ahead` returns."""
        head = "token_embd.weight" if self.tied else "output.weight"
        return states @ self.weights()[head].astype(np.float64).T


@dataclass(frozen=True, kw_only=True)
class TinyLFM2(TinyModel):
    """The middle layer attends; the others are short convolutions."""

    architecture: str = "lfm2"
    metadata: dict[str, Any] = field(
        default_factory=lambda: {
            "lfm2.shortconv.l_cache": 3,
            "lfm2.attention.head_count_kv": np.array([0, 2, 0], np.int32),
        }
    )

    @property
    def qk_norm(self) -> bool:
        return True

    @property
    def final_norm(self) -> str:
        return "token_embd_norm.weight"

    def weights(self) -> dict[str, NDArray[np.float32]]:
        made = super().weights()
        made[self.final_norm] = made.pop("output_norm.weight")
        rng = np.random.default_rng(self.seed + 1)
        for layer in (0, 2):
            block = f"blk.{layer}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"):
                del made[f"{block}.{name}.weight"]
            for name, shape in (
                ("in_proj", (3 * self.hidden, self.hidden)),
                ("conv", (self.hidden, 3)),
                ("out_proj", (self.hidden, self.hidden)),
            ):
                values = rng.standard_normal(shape) / math.sqrt(shape[1])
                made[f"{block}.shortconv.{name}.weight"] = values.astype(np.float32)
        return made

    def _attention(
        self, x: Floats, w: dict[str, Floats], layer: int, frequencies: Floats | None
    ) -> Floats:
        if layer == 1:
            return super()._attention(x, w, layer, frequencies)
        block = f"blk.{layer}.shortconv"
        normed = self._norm(x, w[f"blk.{layer}.attn_norm.weight"])
        before, after, values = np.split(normed @ w[f"{block}.in_proj.weight"].T, 3, axis=1)
        mixed = after * convolved(before * values, w[f"{block}.conv.weight"])
        return mixed @ w[f"{block}.out_proj.weight"].T


@dataclass(frozen=True, kw_only=True)
class TinyGranite(TinyModel):
    """Llama with four multipliers; `hybrid`: the middle layer attends, without positions.

    The others are Mamba-2 then, of two groups.
    """

    architecture: str = "granite"
    hybrid: bool = False
    ssm_heads: int = 4
    ssm_dim: int = 16
    ssm_state: int = 24
    ssm_groups: int = 2
    multipliers: tuple[float, float, float, float] = (3.0, 0.4, 0.3, 2.0)

    def keys(self) -> dict[str, Any]:
        names = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")
        keys: dict[str, Any] = dict(zip(names, self.multipliers, strict=True))
        if self.hybrid:
            keys |= {
                "attention.head_count_kv": np.array([0, 2, 0], np.int32),
                "rope.scaling.finetuned": False,
                "ssm.conv_kernel": 4,
                "ssm.inner_size": self.ssm_heads * self.ssm_dim,
                "ssm.state_size": self.ssm_state,
                "ssm.time_step_rank": self.ssm_heads,
                "ssm.group_count": self.ssm_groups,
            }
        return {f"{self.architecture}.{name}": value for name, value in keys.items()}

    def write(self, path: Path, quantised: TensorType | None = None) -> Path:
        return TinyModel.write(replace(self, metadata=self.keys()), path, quantised)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        made = super().weights()
        rng = np.random.default_rng(self.seed + 1)
        inner, of_groups = self.ssm_heads * self.ssm_dim, self.ssm_groups * self.ssm_state

        def random(*shape: int, scale: float = 1.0) -> Any:
            return (scale * rng.standard_normal(shape)).astype(np.float32)

        for layer in (0, 2) if self.hybrid else ():
            block = f"blk.{layer}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                del made[f"{block}.{name}.weight"]
            mixed = inner + 2 * of_groups
            made |= {
                f"{block}.ssm_in.weight": random(inner + mixed + self.ssm_heads, self.hidden) / 8,
                f"{block}.ssm_conv1d.weight": random(mixed, 4, scale=0.5),
                f"{block}.ssm_conv1d.bias": random(mixed, scale=0.2),
                f"{block}.ssm_dt.bias": random(self.ssm_heads),
                f"{block}.ssm_a": -np.exp(random(self.ssm_heads, 1)),
                f"{block}.ssm_d": random(self.ssm_heads, 1),
                f"{block}.ssm_norm.weight": 1 + random(2, inner // 2, scale=0.1),
                f"{block}.ssm_out.weight": random(self.hidden, inner) / 8,
            }
        return made

    def states(self, tokens: list[int], frequencies: Floats | None = None) -> Floats:
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        embedding, residual, _, _ = self.multipliers
        x = w["token_embd.weight"][tokens] * embedding
        for layer in range(self.layers):
            x = x + residual * self._attention(x, w, layer, frequencies)
            x = x + residual * self._mlp(x, w, layer)
        return self._norm(x, w[self.final_norm])

    def logits(self, tokens: list[int], frequencies: Floats | None = None) -> Floats:
        return super().logits(tokens, frequencies) / self.multipliers[3]

    def _attention(
        self, x: Floats, w: dict[str, Floats], layer: int, frequencies: Floats | None
    ) -> Floats:
        if self.hybrid and layer != 1:
            return self._mamba(x, w, f"blk.{layer}")
        # Scores are divided by the root of the head size, which is multiplied away in the queries.
        scaled = dict(w)
        scaled[f"blk.{layer}.attn_q.weight"] = w[f"blk.{layer}.attn_q.weight"] * (
            self.multipliers[2] * math.sqrt(self.head_dim)
        )
        if self.hybrid:
            frequencies = np.zeros(self.head_dim // 2)
        return super()._attention(x, scaled, layer, frequencies)

    def _mamba(self, x: Floats, w: dict[str, Floats], block: str) -> Floats:
        count, heads, groups = len(x), self.ssm_heads, self.ssm_groups
        inner, of_groups = heads * self.ssm_dim, groups * self.ssm_state
        projected = self._norm(x, w[f"{block}.attn_norm.weight"]) @ w[f"{block}.ssm_in.weight"].T
        gate, mixed, dt = np.split(projected, [inner, projected.shape[1] - heads], axis=1)
        mixed = convolved(mixed, w[f"{block}.ssm_conv1d.weight"]) + w[f"{block}.ssm_conv1d.bias"]
        mixed = mixed * sigmoid(mixed)
        values, b, c = np.split(mixed, [inner, inner + of_groups], axis=1)
        values = values.reshape(count, heads, self.ssm_dim)
        group = [head // (heads // groups) for head in range(heads)]
        b, c = (part.reshape(count, groups, self.ssm_state)[:, group] for part in (b, c))
        dt = np.log1p(np.exp(dt + w[f"{block}.ssm_dt.bias"]))
        state = np.zeros((heads, self.ssm_dim, self.ssm_state))
        out = np.zeros_like(values)
        for t in range(count):
            decay = np.exp(dt[t] * w[f"{block}.ssm_a"][:, 0])
            state = decay[:, None, None] * state
            state = state + np.einsum("hp,hn->hpn", dt[t][:, None] * values[t], b[t])
            out[t] = np.einsum("hpn,hn->hp", state, c[t]) + w[f"{block}.ssm_d"] * values[t]
        y = (out.reshape(count, inner) * gate * sigmoid(gate)).reshape(count, groups, -1)
        y = self._norm(y, w[f"{block}.ssm_norm.weight"]).reshape(count, inner)
        return y @ w[f"{block}.ssm_out.weight"].T
