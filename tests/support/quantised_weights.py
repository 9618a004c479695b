"""Random quantised weights, and an independent reading of them (the gguf package's, in numpy)."""

import gguf
import numpy as np
from numpy.typing import NDArray

FLOAT_TYPES = ("F32", "F16", "BF16")
QUANTISED_TYPES = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)
TYPES = {name: gguf.GGMLQuantizationType[name] for name in (*FLOAT_TYPES, *QUANTISED_TYPES)}

# Where a block keeps its half-precision scale, and its minimum if it has one.
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def block_size(name: str) -> int:
    """Elements in a block."""
    return gguf.GGML_QUANT_SIZES[TYPES[name]][0]


def random_weights(name: str, rows: int, cols: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes [rows, bytes of a row] of a tensor: any codes, scales of ordinary size."""
    rng = np.random.default_rng(seed)
    if name in FLOAT_TYPES:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for offset in HALVES.get(name, ()):
        scales = rng.uniform(0.001, 0.02, len(blocks)) * rng.choice((-1, 1), len(blocks))
        blocks[:, offset : offset + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(115, 125, len(blocks))
    return blocks.reshape(rows, -1)


def numbers(name: str, weights: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The numbers [rows, cols] that the bytes stand for."""
    return gguf.quants.dequantize(weights, TYPES[name]).astype(np.float32)
