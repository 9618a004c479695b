"""A second opinion on the architectures: tiny random models, and a float64 forward pass in numpy.

Written from the papers and the models' published descriptions, one token matrix at a time, without
the op vocabulary, the runtime or anything else of Caudal's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.formats.tensor_types import TensorType
from support.gguf_writer import Tensor, random_tensor, write_gguf

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TinyExperts:
    """Experts in place of the MLPs; `scoring` as llama.cpp numbers it."""

    count: int = 8
    used: int = 3
    inner: int = 32
    shared: int = 0
    shared_gate: bool = False
    scoring: int = 1
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    selection_bias: bool = False
    fused: bool = False

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of a layer's matrices."""
        inside, out = (self.count, self.inner, hidden), (self.count, hidden, self.inner)
        shapes: dict[str, tuple[int, ...]] = {"ffn_gate_inp": (self.count, hidden)}
        if self.fused:
            shapes["ffn_gate_up_exps"] = (self.count, 2 * self.inner, hidden)
        else:
            shapes |= {"ffn_gate_exps": inside, "ffn_up_exps": inside}
        shapes["ffn_down_exps"] = out
        if self.shared:
            shapes |= {
                "ffn_gate_shexp": (self.shared, hidden),
                "ffn_up_shexp": (self.shared, hidden),
                "ffn_down_shexp": (hidden, self.shared),
            }
        if self.shared_gate:
            shapes["ffn_gate_inp_shexp"] = (1, hidden)
        return shapes

    def metadata(self) -> dict[str, Any]:
        """Keys of the file, without the architecture."""
        return {
            "expert_count": self.count,
            "expert_used_count": self.used,
            "expert_feed_forward_length": self.inner,
            "expert_shared_feed_forward_length": self.shared,
            "expert_gating_func": self.scoring,
            "expert_weights_norm": self.normalise,
            "expert_weights_scale": self.scale,
            "expert_group_count": self.groups,
            "expert_group_used_count": self.groups_used,
        }

    def weights_of(self, logits: Floats, bias: Floats | None) -> dict[int, float]:
        """The weight of each expert that one token's logits choose."""
        exponentials = np.exp(logits - logits.max())
        softmax = exponentials / exponentials.sum()
        scores = {1: softmax, 2: 1 / (1 + np.exp(-logits)), 3: logits}[self.scoring]
        keys = scores if bias is None else scores + bias
        grouped = keys.reshape(self.groups, -1)
        best = np.sort(grouped, axis=1)[:, -2:].sum(axis=1).argsort()[::-1][: self.groups_used]
        allowed = [e for e in range(self.count) if e // grouped.shape[1] in best]
        chosen = sorted(allowed, key=lambda e: -keys[e])[: self.used]
        weights = np.array([scores[e] for e in chosen])
        if self.scoring == 3:
            weights = np.exp(weights) / np.exp(weights).sum()
        if self.normalise:
            weights = weights / weights.sum()
        return dict(zip(chosen, (self.scale * weights).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """Sizes and switches of a random model; `weights` are what its file holds, as float64."""

    architecture: str
    layers: int = 3
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    vocab_size: int = 320
    context_length: int = 4096
    rope_base: float = 10000.0
    eps: float = 1e-5
    window: int | None = None
    tied: bool = True
    biases: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    rope_divisors: tuple[float, ...] | None = None
    rotated: int | None = None
    seed: int = 0
    experts: TinyExperts | None = None

    @property
    def qk_norm(self) -> bool:
        return self.architecture in ("qwen3", "qwen3moe", "gemma3", "olmoe")

    @property
    def interleaved(self) -> bool:
        return self.architecture in ("llama", "granite", "granitehybrid")

    @property
    def final_norm(self) -> str:
        return "output_norm.weight"

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"

    def weights(self) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(self.seed)

        def matrix(*shape: int) -> NDArray[np.float32]:
            return (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)

        def vector(length: int, centre: float) -> NDArray[np.float32]:
            return (centre + 0.1 * rng.standard_normal(length)).astype(np.float32)

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        made = {
            "token_embd.weight": matrix(self.vocab_size, self.hidden) * np.float32(4.0),
            "output_norm.weight": vector(self.hidden, 1.0),
        }
        if not self.tied:
            made["output.weight"] = matrix(self.vocab_size, self.hidden)
        if self.rope_divisors is not None:
            made["rope_freqs.weight"] = np.array(self.rope_divisors, np.float32)
        for layer in range(self.layers):
            shapes: dict[str, tuple[int, ...]] = {
                "attn_q": (queries, self.hidden),
                "attn_k": (keys, self.hidden),
                "attn_v": (keys, self.hidden),
                "attn_output": (self.hidden, queries),
            }
            if self.experts is None:
                shapes |= {
                    "ffn_gate": (self.feed_forward, self.hidden),
                    "ffn_up": (self.feed_forward, self.hidden),
                    "ffn_down": (self.hidden, self.feed_forward),
                }
            else:
                shapes |= self.experts.shapes(self.hidden)
                if self.experts.selection_bias:
                    made[f"blk.{layer}.exp_probs_b.bias"] = vector(self.experts.count, 0.0)
            for name, shape in shapes.items():
                made[f"blk.{layer}.{name}.weight"] = matrix(*shape)
                if self.biases and name in ("attn_q", "attn_k", "attn_v"):
                    made[f"blk.{layer}.{name}.bias"] = vector(shape[0], 0.0)
            norms = {"attn_norm": self.hidden, "ffn_norm": self.hidden}
            if self.qk_norm:
                whole = self.architecture == "olmoe"
                norms["attn_q_norm"] = queries if whole else self.head_dim
                norms["attn_k_norm"] = keys if whole else self.head_dim
            if self.is_gemma:
                norms |= {"post_attention_norm": self.hidden, "post_ffw_norm": self.hidden}
            for name, length in norms.items():
                made[f"blk.{layer}.{name}.weight"] = vector(length, 1.0)
        return made

    def write(self, path: Path, quantised: TensorType | None = None) -> Path:
        """Write the model as F32 GGUF; or with random matrices of a quantised type instead."""
        arch = self.architecture
        metadata: dict[str, Any] = {
            "general.architecture": arch,
            f"{arch}.block_count": self.layers,
            f"{arch}.context_length": self.context_length,
            f"{arch}.embedding_length": self.hidden,
            f"{arch}.feed_forward_length": self.feed_forward,
            f"{arch}.attention.head_count": self.heads,
            f"{arch}.attention.head_count_kv": self.kv_heads,
            f"{arch}.attention.key_length": self.head_dim,
            f"{arch}.attention.value_length": self.head_dim,
            f"{arch}.attention.layer_norm_rms_epsilon": self.eps,
            f"{arch}.rope.freq_base": self.rope_base,
        }
        if self.window is not None:
            metadata[f"{arch}.attention.sliding_window"] = self.window
        if self.rotated is not None:
            metadata[f"{arch}.rope.dimension_count"] = self.rotated
        if self.experts is not None:
            metadata |= {f"{arch}.{key}": v for key, v in self.experts.metadata().items()}
        metadata |= self.metadata
        tensors: dict[str, Tensor] = {
            name: (TensorType.F32, values.shape, values.tobytes())
            for name, values in self.weights().items()
        }
        if quantised is not None:
            rng = np.random.default_rng(self.seed)
            for name, (_, shape, _) in tensors.items():
                wanted = len(shape) > 1 and "ffn_gate_inp" not in name  # routers aren't quantised
                if wanted and shape[-1] % quantised.block_elements == 0:
                    tensors[name] = random_tensor(rng, quantised, shape, 1 / math.sqrt(shape[1]))
        return write_gguf(path, metadata, tensors)

    def logits(self, tokens: list[int], frequencies: Floats | None = None) -> Floats:
        """Logits after every token, shape (tokens, vocab_size).

        Args:
            tokens: Token ids.
            frequencies: RoPE's radians per position by pair, where they aren't the plain ones.
        """
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        states = self.states(tokens, frequencies)
        return states @ w["token_embd.weight" if self.tied else "output.weight"].T

    def states(self, tokens: list[int], frequencies: Floats | None = None) -> Floats:
        """States after the final norm, shape (tokens, hidden); arguments as for `logits`."""
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        x = w["token_embd.weight"][tokens]
        if self.is_gemma:
            x = x * math.sqrt(self.hidden)
        for layer in range(self.layers):
            x = x + self._attention(x, w, layer, frequencies)
            x = x + self._mlp(x, w, layer)
        return self._norm(x, w[self.final_norm])

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * weight

    def _attention(
        self, x: Floats, w: dict[str, Floats], layer: int, frequencies: Floats | None
    ) -> Floats:
        block = f"blk.{layer}"
        count = len(x)
        normed = self._norm(x, w[f"{block}.attn_norm.weight"])

        def project(name: str, heads: int) -> Floats:
            y = normed @ w[f"{block}.{name}.weight"].T
            if f"{block}.{name}.bias" in w:
                y = y + w[f"{block}.{name}.bias"]
            return y.reshape(count, heads, self.head_dim)

        q = project("attn_q", self.heads)
        k = project("attn_k", self.kv_heads)
        v = project("attn_v", self.kv_heads)
        if self.qk_norm:
            wide = (count, -1) if self.architecture == "olmoe" else (count, -1, self.head_dim)
            q = self._norm(q.reshape(wide), w[f"{block}.attn_q_norm.weight"]).reshape(q.shape)
            k = self._norm(k.reshape(wide), w[f"{block}.attn_k_norm.weight"]).reshape(k.shape)
        is_global = not self.is_gemma or layer % 6 == 5
        local = self.is_gemma and not is_global
        q = self._rotate(q, None if local else frequencies, local)
        k = self._rotate(k, None if local else frequencies, local)
        window = self.window if (local or not self.is_gemma) else None

        out = np.zeros_like(q)
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(self.head_dim)
            for row in range(count):
                oldest = 0 if window is None else max(0, row - window + 1)
                seen = scores[row, oldest : row + 1]
                weights = np.exp(seen - seen.max())
                out[row, head] = weights / weights.sum() @ v[oldest : row + 1, shared]
        y = out.reshape(count, -1) @ w[f"{block}.attn_output.weight"].T
        return self._norm(y, w[f"{block}.post_attention_norm.weight"]) if self.is_gemma else y

    def _rotate(self, x: Floats, frequencies: Floats | None, local: bool) -> Floats:
        rotated = self.rotated or self.head_dim
        half = rotated // 2
        if frequencies is None:
            base = 10000.0 if local else self.rope_base
            frequencies = base ** (-np.arange(half) * 2.0 / rotated)
        angles = np.arange(len(x))[:, None, None] * frequencies
        rotations = np.exp(1j * angles)
        pairs = (
            x[..., 0:rotated:2] + 1j * x[..., 1:rotated:2]
            if self.interleaved
            else x[..., :half] + 1j * x[..., half:rotated]
        )
        turned = pairs * rotations
        out = x.copy()
        if self.interleaved:
            out[..., 0:rotated:2], out[..., 1:rotated:2] = turned.real, turned.imag
        else:
            out[..., :half], out[..., half:rotated] = turned.real, turned.imag
        return out

    def _mlp(self, x: Floats, w: dict[str, Floats], layer: int) -> Floats:
        block = f"blk.{layer}"
        normed = self._norm(x, w[f"{block}.ffn_norm.weight"])
        if self.experts is not None:
            return self._experts(normed, w, block, self.experts)
        gate = normed @ w[f"{block}.ffn_gate.weight"].T
        up = normed @ w[f"{block}.ffn_up.weight"].T
        if self.is_gemma:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            active = 0.5 * gate * (1 + np.tanh(inner))
        else:
            active = gate / (1 + np.exp(-gate))
        y = (active * up) @ w[f"{block}.ffn_down.weight"].T
        return self._norm(y, w[f"{block}.post_ffw_norm.weight"]) if self.is_gemma else y

    def _experts(self, x: Floats, w: dict[str, Floats], block: str, experts: TinyExperts) -> Floats:
        def expert(row: Floats, gate: Floats, up: Floats, down: Floats) -> Floats:
            inner = gate @ row
            return down @ (inner / (1 + np.exp(-inner)) * (up @ row))

        bias = w.get(f"{block}.exp_probs_b.bias")
        y = np.zeros_like(x)
        for token, row in enumerate(x):
            logits = w[f"{block}.ffn_gate_inp.weight"] @ row
            for number, weight in experts.weights_of(logits, bias).items():
                if experts.fused:
                    gate, up = np.split(w[f"{block}.ffn_gate_up_exps.weight"][number], 2)
                else:
                    gate = w[f"{block}.ffn_gate_exps.weight"][number]
                    up = w[f"{block}.ffn_up_exps.weight"][number]
                down = w[f"{block}.ffn_down_exps.weight"][number]
                y[token] += weight * expert(row, gate, up, down)
            if experts.shared:
                names = ("gate", "up", "down")
                shared = expert(row, *(w[f"{block}.ffn_{name}_shexp.weight"] for name in names))
                if experts.shared_gate:
                    logit = w[f"{block}.ffn_gate_inp_shexp.weight"] @ row
                    shared = shared / (1 + np.exp(-logit))
                y[token] += shared
        return y
