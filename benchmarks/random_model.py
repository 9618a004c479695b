"""Files in the shapes of known models as llama.cpp's Q4_K_M, with random weights.

Weights don't change speed; their number, shapes and types do. The weights are of a size that keeps
activations near one, so that nothing overflows and every program can generate from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType

from caudal.formats.gguf import GGUFFile

Vectors = Mapping[str, npt.NDArray[np.float32]]
"""Tensors of floats, by their names in a layer."""


def norm_weights(sizes: Mapping[str, int]) -> Vectors:
    """Norms that change nothing, of so many channels."""
    return {f"{name}.weight": np.ones(size, np.float32) for name, size in sizes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model; without `experts` a dense one.

    Attributes:
        architecture: As files name it.
        title: Whose sizes these are.
        hidden: Width of the residual stream.
        layers: Decoder blocks.
        feed_forward: Width inside an MLP, or inside each expert.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Channels of a head.
        vocabulary: Tokens.
        context: Tokens the model was trained for.
        rope_base: RoPE's frequency base.
        stretched: Whether RoPE is stretched as Llama 3's is.
        tied: Whether the embedding is the output matrix too.
        qk_norm: Whether all heads of queries, and of keys, are normalised at once.
        experts: Experts of a layer.
        experts_used: Experts of a token.
        final_norm: What the norm behind the last layer is called.
    """

    architecture: str
    title: str
    hidden: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_base: float
    stretched: bool = False
    tied: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_used: int = 0
    final_norm: str = "output_norm"

    def matrices(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's quantised matrices."""
        return {**self.attention_matrices(), **self.mlp_matrices()}

    def attention_matrices(self) -> dict[str, tuple[int, ...]]:
        """Those of a layer's attention."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
        }

    def mlp_matrices(self) -> dict[str, tuple[int, ...]]:
        """Those of a layer's MLP, or of its experts."""
        inside, out = (self.feed_forward, self.hidden), (self.hidden, self.feed_forward)
        suffix, stack = ("_exps", (self.experts,)) if self.experts else ("", ())
        return {
            f"ffn_gate{suffix}": (*stack, *inside),
            f"ffn_up{suffix}": (*stack, *inside),
            f"ffn_down{suffix}": (*stack, *out),
        }

    def vectors(self, layer: int) -> Vectors:
        """A layer's tensors of floats."""
        norms = {"attn_norm": self.hidden, "ffn_norm": self.hidden}
        if self.qk_norm:
            norms["attn_q_norm"] = self.heads * self.head_dim
            norms["attn_k_norm"] = self.kv_heads * self.head_dim
        return norm_weights(norms)

    def keys(self) -> Mapping[str, Any]:
        """Keys below `{architecture}.` that other shapes don't have, or have otherwise."""
        return {}

    def types(self, layer: int) -> dict[str, GGMLQuantizationType]:
        """Types of a layer's matrices in llama.cpp's Q4_K_M: some layers get more bits in two."""
        eighth = self.layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        usual = GGMLQuantizationType.Q4_K
        better = GGMLQuantizationType.Q6_K if more else usual
        return {
            name: better if name.startswith(("attn_v", "ffn_down")) else usual
            for name in self.matrices(layer)
        }


LLAMA_1B = Shape(
    architecture="llama",
    title="Llama-3.2-1B",
    hidden=2048,
    layers=16,
    feed_forward=8192,
    heads=32,
    kv_heads=8,
    head_dim=64,
    vocabulary=128_256,
    context=131_072,
    rope_base=500_000.0,
    stretched=True,
    tied=True,
)
OLMOE_1B_7B = Shape(
    architecture="olmoe",
    title="OLMoE-1B-7B",
    hidden=2048,
    layers=16,
    feed_forward=1024,
    heads=16,
    kv_heads=16,
    head_dim=128,
    vocabulary=50_304,
    context=4096,
    rope_base=10_000.0,
    qk_norm=True,
    experts=64,
    experts_used=8,
)

# Offsets of a block's float16 fields, and how many times smaller than the weights' own size they
# are: the typical size of the integers that they multiply.
_SCALE_FIELDS = {
    GGMLQuantizationType.Q4_K: ((0, 250.0), (2, 33.0)),
    GGMLQuantizationType.Q6_K: ((208, 1200.0),),
}
_ROPE_FACTOR, _ROPE_LOW, _ROPE_HIGH, _ROPE_CONTEXT = 32.0, 1.0, 4.0, 8192


def write_random_model(path: Path, shape: Shape, tokenizer_from: Path) -> None:
    """Write the file.

    Args:
        path: Where to.
        shape: Its sizes.
        tokenizer_from: A GGUF file with a byte-level BPE tokenizer of fewer tokens; the others
            are added as words that no merge leads to.

    Raises:
        ModelLoadError: `tokenizer_from` can't be read.
    """
    writer = GGUFWriter(path, shape.architecture)
    writer.add_name(f"Random weights in the shape of {shape.title}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    usual = {"attention.head_count_kv": shape.kv_heads, "rope.dimension_count": shape.head_dim}
    for key, value in {**usual, **shape.keys()}.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{shape.architecture}.{key}", value)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
    writer.add_file_type(15)  # mostly Q4_K_M
    writer.add_quantization_version(2)
    _add_tokenizer(writer, tokenizer_from, shape.vocabulary)
    _add_tensors(writer, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: GGUFWriter, shape: Shape) -> None:
    generator = np.random.default_rng(0)
    six_bits, usual = GGMLQuantizationType.Q6_K, GGMLQuantizationType.Q4_K

    def add(name: str, size: tuple[int, ...], kind: GGMLQuantizationType) -> None:
        writer.add_tensor(name, random_matrix(generator, size, kind), raw_dtype=kind)

    vocabulary = (shape.vocabulary, shape.hidden)
    add("token_embd.weight", vocabulary, six_bits if shape.tied else usual)
    if not shape.tied:
        add("output.weight", vocabulary, six_bits)
    writer.add_tensor(f"{shape.final_norm}.weight", np.ones(shape.hidden, np.float32))
    if shape.stretched:
        writer.add_tensor("rope_freqs.weight", _rope_divisors(shape))
    for layer in range(shape.layers):
        for name, values in shape.vectors(layer).items():
            writer.add_tensor(f"blk.{layer}.{name}", values)
        if shape.experts:
            router = generator.standard_normal((shape.experts, shape.hidden), np.float32)
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router * shape.hidden**-0.5)
        types = shape.types(layer)
        for name, size in shape.matrices(layer).items():
            add(f"blk.{layer}.{name}.weight", size, types[name])


def random_matrix(
    generator: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> npt.NDArray[np.uint8]:
    """Blocks of random integers with small scales, [..., rows, bytes of a row]."""
    *rows, cols = shape
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = math.prod(shape) // elements
    raw = generator.integers(0, 256, (blocks, size), dtype=np.uint8)
    weight_size = cols**-0.5  # a product with a row of ones is about one
    for offset, divisor in _SCALE_FIELDS[kind]:
        scales = (weight_size / divisor * generator.uniform(0.5, 1.5, blocks)).astype("<f2")
        raw[:, offset : offset + 2] = scales.view(np.uint8).reshape(blocks, 2)
    return raw.reshape(*rows, cols // elements * size)


def _rope_divisors(shape: Shape) -> npt.NDArray[np.float32]:
    """Llama 3's stretching: long wavelengths by the factor, short ones not, smooth in between."""
    channels = np.arange(0, shape.head_dim, 2, dtype=np.float64)
    frequencies = shape.rope_base ** (-channels / shape.head_dim)
    turns = _ROPE_CONTEXT * frequencies / (2 * np.pi)
    smooth = np.clip((turns - _ROPE_LOW) / (_ROPE_HIGH - _ROPE_LOW), 0.0, 1.0)
    return (1.0 / (smooth + (1.0 - smooth) / _ROPE_FACTOR)).astype(np.float32)


def _add_tokenizer(writer: GGUFWriter, source: Path, vocabulary: int) -> None:
    with GGUFFile.open(source) as file:
        tokens = list(file.get_strings("tokenizer.ggml.tokens"))
        merges = list(file.get_strings("tokenizer.ggml.merges"))
        types = np.asarray(file.metadata["tokenizer.ggml.token_type"]).tolist()
        pre = file.get_str("tokenizer.ggml.pre")
        bos = file.get_int("tokenizer.ggml.bos_token_id")
        eos = file.get_int("tokenizer.ggml.eos_token_id")
    known = set(tokens)
    spare = (word for number in range(vocabulary) if (word := f"Ġ~{number}~") not in known)
    while len(tokens) < vocabulary:
        tokens.append(next(spare))
        types.append(TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(False)
