"""Random quantised weights, and an independent reading of them (the gguf package's, in numpy)."""

import gguf
import numpy as np
from numpy.typing import NDArray

from caudal.formats.tensor_types import TensorType
from support.gguf_writer import SCALE_FIELDS, random_tensor

FLOAT_TYPES = ("F32", "F16", "BF16")
QUANTISED_TYPES = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4"),
)
TYPES = {name: TensorType[name] for name in (*FLOAT_TYPES, *QUANTISED_TYPES)}

# Where a block keeps its half-precision scale, and its minimum if it has one.
HALVES = {
    kind.name: tuple(offset for offset, _ in fields)
    for kind, fields in SCALE_FIELDS.items()
    if kind.name in TYPES
}


def block_size(name: str) -> int:
    """Elements in a block."""
    return TYPES[name].block_elements


def random_weights(name: str, rows: int, cols: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes [rows, bytes of a row] of a tensor: any codes, scales of ordinary size."""
    rng = np.random.default_rng(seed)
    _, _, data = random_tensor(rng, TensorType[name], (rows, cols))
    return np.frombuffer(bytearray(data), np.uint8).reshape(rows, -1)


def numbers(name: str, weights: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The numbers [rows, cols] that the bytes stand for."""
    if name == "Q1_0":  # which the package doesn't read: a scale, and a sign bit for each of 128
        blocks = weights.reshape(-1, 18)
        signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return np.where(signs == 1, scales, -scales).reshape(len(weights), -1)
    if name == "Q2_0":  # the same: a scale, and two bits for each of 64
        blocks = weights.reshape(-1, 18)
        codes = blocks[:, 2:, None] >> np.arange(0, 8, 2, np.uint8) & 3
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return ((codes.reshape(-1, 64).astype(np.float32) - 1) * scales).reshape(len(weights), -1)
    kind = gguf.GGMLQuantizationType[name]
    return gguf.quants.dequantize(weights, kind).astype(np.float32)
