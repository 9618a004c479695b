"""A made-up decoder with attention of every kind, and a float64 forward pass in numpy.

The program is put together by hand, as a family would; the reference shares nothing with it, and
computes what is latent the long way: keys and values of every head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.models.builder import ProgramBuilder
from caudal.models.pooling import Pooling
from caudal.models.program import Program
from caudal.models.rope import RopeTable, plain_frequencies
from support.gguf_writer import Tensor, random_tensor, write_gguf

Floats = NDArray[np.float64]

ARCHITECTURE = "made-up"
HIDDEN = 64
VOCABULARY = 320
HEADS = 4
EPS = 1e-5
# A windowed layer, whose keys and values the next one reads too: grouped heads, more channels of
# values than of keys, of which the last half is rotated, and sinks, softcaps.
KV_HEADS, KEY, VALUE = 2, 16, 24
WINDOW, SHORTER_WINDOW = 100, 30
SOFTCAP = 2.0
# A latent layer.
NOPE, ROPE, LATENT, OUT = 32, 16, 64, 48
TEMPERATURE, LENGTH = 0.3, 16


@dataclass(frozen=True)
class AttentionModel:
    """Random weights; `weights` are what its file holds."""

    seed: int = 0

    def weights(self) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(self.seed)
        shapes = {
            "token_embd": (VOCABULARY, HIDDEN),
            "blk.0.attn_q": (HEADS * KEY, HIDDEN),
            "blk.0.attn_k": (KV_HEADS * KEY, HIDDEN),
            "blk.0.attn_v": (KV_HEADS * VALUE, HIDDEN),
            "blk.0.attn_output": (HIDDEN, HEADS * VALUE),
            "blk.1.attn_q": (HEADS * KEY, HIDDEN),
            "blk.1.attn_output": (HIDDEN, HEADS * VALUE),
            "blk.2.attn_q": (HEADS * NOPE, HIDDEN),
            "blk.2.attn_q_rope": (HEADS * ROPE, HIDDEN),
            "blk.2.attn_kv_a": (LATENT, HIDDEN),
            "blk.2.attn_k_rope": (ROPE, HIDDEN),
            "blk.2.attn_k_b": (HEADS, LATENT, NOPE),
            "blk.2.attn_v_b": (HEADS, OUT, LATENT),
            "blk.2.attn_output": (HIDDEN, HEADS * OUT),
        }
        made = {
            f"{name}.weight": rng.standard_normal(shape) / math.sqrt(shape[-1])
            for name, shape in shapes.items()
        }
        norms = {f"blk.{layer}.attn_norm": HIDDEN for layer in range(3)}
        norms |= {"blk.2.attn_kv_a_norm": LATENT, "output_norm": HIDDEN}
        for name, length in norms.items():
            made[f"{name}.weight"] = 1 + 0.1 * rng.standard_normal(length)
        made["token_embd.weight"] *= 4
        made["blk.0.attn_sinks.weight"] = rng.standard_normal(HEADS)
        return {name: values.astype(np.float32) for name, values in made.items()}

    def write(self, path: Path, quantised: TensorType | None = None) -> Path:
        """Write the model as F32 GGUF; or with random matrices of a quantised type instead."""
        tensors: dict[str, Tensor] = {
            name: (TensorType.F32, values.shape, values.tobytes())
            for name, values in self.weights().items()
        }
        if quantised is not None:
            rng = np.random.default_rng(self.seed)
            for name, (_, shape, _) in tensors.items():
                if len(shape) > 1:
                    tensors[name] = random_tensor(rng, quantised, shape, 1 / math.sqrt(shape[-1]))
        return write_gguf(path, {"general.architecture": ARCHITECTURE}, tensors)

    def logits(self, tokens: list[int]) -> Floats:
        """Logits after every token, shape (tokens, VOCABULARY)."""
        w = {
            name.removesuffix(".weight"): values.astype(np.float64)
            for name, values in self.weights().items()
        }
        x = w["token_embd"][tokens]
        normed = _norm(x, w["blk.0.attn_norm"])
        q = _rotated(_heads(normed @ w["blk.0.attn_q"].T, HEADS), KEY // 2)
        k = _rotated(_heads(normed @ w["blk.0.attn_k"].T, KV_HEADS), KEY // 2)
        v = _heads(normed @ w["blk.0.attn_v"].T, KV_HEADS)
        scale = KEY**-0.5
        sinks = w["blk.0.attn_sinks"]
        attended = _attend(q * scale, k, v, window=WINDOW, softcap=SOFTCAP, sinks=sinks)
        x = x + attended @ w["blk.0.attn_output"].T
        q = _heads(_norm(x, w["blk.1.attn_norm"]) @ w["blk.1.attn_q"].T, HEADS)
        attended = _attend(_rotated(q, KEY // 2) * scale, k, v, window=SHORTER_WINDOW)
        x = x + attended @ w["blk.1.attn_output"].T

        normed = _norm(x, w["blk.2.attn_norm"])
        latent = _norm(normed @ w["blk.2.attn_kv_a"].T, w["blk.2.attn_kv_a_norm"])
        k_rope = _rotated(_heads(normed @ w["blk.2.attn_k_rope"].T, 1), 0)
        q_rope = _rotated(_heads(normed @ w["blk.2.attn_q_rope"].T, HEADS), 0)
        q = np.concatenate([_heads(normed @ w["blk.2.attn_q"].T, HEADS), q_rope], axis=-1)
        k = np.einsum("tl,hln->thn", latent, w["blk.2.attn_k_b"])
        k = np.concatenate([k, np.repeat(k_rope, HEADS, axis=1)], axis=-1)
        v = np.einsum("tl,hol->tho", latent, w["blk.2.attn_v_b"])
        positions = np.arange(len(tokens))
        factors = 1 + TEMPERATURE * np.log(1 + (positions + 1) // LENGTH)
        q = q * factors[:, None, None] * (NOPE + ROPE) ** -0.5
        x = x + _attend(q, k, v) @ w["blk.2.attn_output"].T
        return _norm(x, w["output_norm"]) @ w["token_embd"].T


def build(file: GGUFFile) -> Program:
    """The program of the model's file."""
    b = ProgramBuilder(file)
    hidden = b.buffer("hidden", HIDDEN)
    normed = b.buffer("normed", HIDDEN)
    b.embed(hidden, "token_embd.weight")

    q = b.buffer("q", HEADS * KEY)
    k = b.buffer("k", KV_HEADS * KEY)
    v = b.buffer("v", KV_HEADS * VALUE)
    attended = b.buffer("attended", HEADS * VALUE)
    table = RopeTable(tuple(plain_frequencies(KEY // 2, 10000.0)), 1.0, interleaved=False)
    scale = KEY**-0.5
    b.rms_norm(hidden, "blk.0.attn_norm", normed, eps=EPS)
    b.linear(normed, "blk.0.attn_q", q)
    b.linear(normed, "blk.0.attn_k", k)
    b.linear(normed, "blk.0.attn_v", v)
    b.rope(q, KEY, table, first=KEY // 2)
    b.rope(k, KEY, table, first=KEY // 2)
    layer = b.attention(
        attended,
        q,
        k,
        v,
        head_dim=KEY,
        scale=scale,
        window=WINDOW,
        softcap=SOFTCAP,
        sinks="blk.0.attn_sinks.weight",
    )
    b.linear(attended, "blk.0.attn_output", hidden, accumulate=True)
    b.rms_norm(hidden, "blk.1.attn_norm", normed, eps=EPS)
    b.linear(normed, "blk.1.attn_q", q)
    b.rope(q, KEY, table, first=KEY // 2)
    b.attention_again(attended, q, layer, scale=scale, window=SHORTER_WINDOW)
    b.linear(attended, "blk.1.attn_output", hidden, accumulate=True)

    q_nope = b.buffer("q nope", HEADS * NOPE)
    q_rope = b.buffer("q rope", HEADS * ROPE)
    q_latent = b.buffer("q latent", HEADS * LATENT)
    q = b.buffer("q of latents", HEADS * (LATENT + ROPE))
    latent = b.buffer("latent", LATENT)
    k_rope = b.buffer("k rope", ROPE)
    k = b.buffer("latent key", LATENT + ROPE)
    attended = b.buffer("attended latents", HEADS * LATENT)
    out = b.buffer("out", HEADS * OUT)
    table = RopeTable(tuple(plain_frequencies(ROPE, 10000.0)), 1.0, interleaved=False)
    b.rms_norm(hidden, "blk.2.attn_norm", normed, eps=EPS)
    b.linear(normed, "blk.2.attn_q", q_nope)
    b.linear(normed, "blk.2.attn_q_rope", q_rope)
    b.linear(normed, "blk.2.attn_kv_a", latent)
    b.linear(normed, "blk.2.attn_k_rope", k_rope)
    b.rms_norm(latent, "blk.2.attn_kv_a_norm", latent, eps=EPS)
    b.rope(q_rope, ROPE, table)
    b.rope(k_rope, ROPE, table)
    b.join(latent, k_rope, k, heads=1)
    b.head_linear(q_nope, "blk.2.attn_k_b", q_latent, heads=HEADS)
    b.join(q_latent, q_rope, q, heads=HEADS)
    b.position_scale(q, scale=TEMPERATURE, length=LENGTH, offset=1)
    b.attention(attended, q, k, None, head_dim=LATENT + ROPE, scale=(NOPE + ROPE) ** -0.5)
    b.head_linear(attended, "blk.2.attn_v_b", out, heads=HEADS)
    b.linear(out, "blk.2.attn_output", hidden, accumulate=True)

    logits = b.buffer("logits", VOCABULARY)
    b.begin_states()
    b.rms_norm(hidden, "output_norm", normed, eps=EPS)
    b.begin_head()
    b.linear(normed, "token_embd", logits)
    return b.finish(
        state=normed,
        logits=logits,
        vocab_size=VOCABULARY,
        context_length=4096,
        pooling=Pooling(kind="last", normalize=True),
    )


def _norm(x: Floats, weight: Floats) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def _heads(x: Floats, heads: int) -> Floats:
    return x.reshape(len(x), heads, -1)


def _rotated(x: Floats, first: int) -> Floats:
    """Heads whose channels from `first` on are rotated, (i, i + pairs) together."""
    pairs = (x.shape[-1] - first) // 2
    frequencies = 10000.0 ** (-np.arange(pairs) / pairs)
    turned = x[..., first : first + pairs] + 1j * x[..., first + pairs :]
    turned = turned * np.exp(1j * np.arange(len(x))[:, None, None] * frequencies)
    return np.concatenate([x[..., :first], turned.real, turned.imag], axis=-1)


def _attend(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Floats | None = None,
) -> Floats:
    """Attention of scaled queries, shape (tokens, heads · channels of values)."""
    group = q.shape[1] // k.shape[1]
    scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1))
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    seen = (distance >= 0) & (distance < (window or len(q)))
    weights = np.where(seen, np.exp(scores), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[:, None, None]
    out: Floats = np.einsum("hqk,khd->qhd", weights / total, np.repeat(v, group, axis=1))
    return out.reshape(len(q), -1)
