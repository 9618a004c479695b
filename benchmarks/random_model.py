"""A file in the shape of Llama-3.2-1B as llama.cpp's Q4_K_M, with random weights.

Weights don't change speed; their number, shapes and types do. The weights are of a size that keeps
activations near one, so that nothing overflows and every program can generate from it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType

from caudal.formats.gguf import GGUFFile

HIDDEN, LAYERS, FEED_FORWARD = 2048, 16, 8192
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
VOCABULARY, CONTEXT = 128_256, 131_072

# Offsets of a block's float16 fields, and how many times smaller than the weights' own size they
# are: the typical size of the integers that they multiply.
_SCALE_FIELDS = {
    GGMLQuantizationType.Q4_K: ((0, 250.0), (2, 33.0)),
    GGMLQuantizationType.Q6_K: ((208, 1200.0),),
}
_ROPE_FACTOR, _ROPE_LOW, _ROPE_HIGH, _ROPE_CONTEXT = 32.0, 1.0, 4.0, 8192
_ROPE_BASE = 500_000.0


def write_random_model(path: Path, tokenizer_from: Path) -> None:
    """Write the file.

    Args:
        path: Where to.
        tokenizer_from: A GGUF file with a byte-level BPE tokenizer of fewer tokens; the others
            are added as words that no merge leads to.

    Raises:
        ModelLoadError: `tokenizer_from` can't be read.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_name("Random weights in the shape of Llama-3.2-1B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(_ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(15)  # mostly Q4_K_M
    writer.add_quantization_version(2)
    _add_tokenizer(writer, tokenizer_from)
    _add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_types(layer: int) -> dict[str, GGMLQuantizationType]:
    """Types of a layer's matrices in llama.cpp's Q4_K_M: some layers get more bits in two."""
    eighth = LAYERS // 8
    more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
    usual = GGMLQuantizationType.Q4_K
    better = GGMLQuantizationType.Q6_K if more else usual
    return {
        "attn_q": usual,
        "attn_k": usual,
        "attn_v": better,
        "attn_output": usual,
        "ffn_gate": usual,
        "ffn_up": usual,
        "ffn_down": better,
    }


def _add_tensors(writer: GGUFWriter) -> None:
    generator = np.random.default_rng(0)
    shapes = {
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }

    def add(name: str, shape: tuple[int, int], kind: GGMLQuantizationType) -> None:
        writer.add_tensor(name, random_matrix(generator, shape, kind), raw_dtype=kind)

    # The embedding is the output matrix too, which is why it has six bits.
    add("token_embd.weight", (VOCABULARY, HIDDEN), GGMLQuantizationType.Q6_K)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("rope_freqs.weight", _rope_divisors())
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for name, kind in tensor_types(layer).items():
            add(f"blk.{layer}.{name}.weight", shapes[name], kind)


def random_matrix(
    generator: np.random.Generator, shape: tuple[int, int], kind: GGMLQuantizationType
) -> npt.NDArray[np.uint8]:
    """Blocks of random integers with small scales, [rows, bytes of a row]."""
    rows, cols = shape
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rows * cols // elements
    raw = generator.integers(0, 256, (blocks, size), dtype=np.uint8)
    weight_size = cols**-0.5  # a product with a row of ones is about one
    for offset, divisor in _SCALE_FIELDS[kind]:
        scales = (weight_size / divisor * generator.uniform(0.5, 1.5, blocks)).astype("<f2")
        raw[:, offset : offset + 2] = scales.view(np.uint8).reshape(blocks, 2)
    return raw.reshape(rows, cols // elements * size)


def _rope_divisors() -> npt.NDArray[np.float32]:
    """Llama 3's stretching: long wavelengths by the factor, short ones not, smooth in between."""
    frequencies = _ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2, dtype=np.float64) / HEAD_DIM)
    turns = _ROPE_CONTEXT * frequencies / (2 * np.pi)
    smooth = np.clip((turns - _ROPE_LOW) / (_ROPE_HIGH - _ROPE_LOW), 0.0, 1.0)
    return (1.0 / (smooth + (1.0 - smooth) / _ROPE_FACTOR)).astype(np.float32)


def _add_tokenizer(writer: GGUFWriter, source: Path) -> None:
    with GGUFFile.open(source) as file:
        tokens = list(file.get_strings("tokenizer.ggml.tokens"))
        merges = list(file.get_strings("tokenizer.ggml.merges"))
        types = np.asarray(file.metadata["tokenizer.ggml.token_type"]).tolist()
        pre = file.get_str("tokenizer.ggml.pre")
        bos = file.get_int("tokenizer.ggml.bos_token_id")
        eos = file.get_int("tokenizer.ggml.eos_token_id")
    known = set(tokens)
    spare = (word for number in range(VOCABULARY) if (word := f"Ġ~{number}~") not in known)
    while len(tokens) < VOCABULARY:
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
