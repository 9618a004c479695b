"""Types of tensors, whichever file they come from, and their blocks' geometry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class TensorType(IntEnum):
    """Every type number ggml has assigned, also those Caudal refuses, so that errors name them; and
    from 256 on the types that other checkpoints' weights are read as.

    Those come in blocks of our own, which csrc/quant/tensor_type.h describes: 4-bit integers with a
    half-precision scale and a zero for each group of 32, 64 or 128; 8-bit integers, and NVFP4, with
    a float scale for the row; 8-bit integers, 8-bit floats (E4M3) and NF4 with a float scale for
    the group.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_2 = 4
    Q4_3 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31
    Q4_0_4_8 = 32
    Q4_0_8_8 = 33
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36
    IQ4_NL_4_8 = 37
    IQ4_NL_8_8 = 38
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42
    INT4_G32 = 256
    INT4_G64 = 257
    INT4_G128 = 258
    INT8_ROW = 259
    NVFP4_ROW = 260
    INT8_G32 = 261
    FP8_G32 = 262
    FP8_G128 = 263
    NF4_G64 = 264
    Q2_0_G128 = 265

    @property
    def block_elements(self) -> int:
        """Weights in one block; a row is whole blocks."""
        return BLOCK_GEOMETRY[self].elements

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return BLOCK_GEOMETRY[self].bytes


@dataclass(frozen=True, slots=True)
class BlockGeometry:
    """How many weights a block holds and how many bytes it takes."""

    elements: int
    bytes: int


BLOCK_GEOMETRY: dict[TensorType, BlockGeometry] = {
    TensorType.F32: BlockGeometry(1, 4),
    TensorType.F16: BlockGeometry(1, 2),
    TensorType.BF16: BlockGeometry(1, 2),
    TensorType.Q8_0: BlockGeometry(32, 34),
    TensorType.Q4_0: BlockGeometry(32, 18),
    TensorType.Q4_1: BlockGeometry(32, 20),
    TensorType.Q5_0: BlockGeometry(32, 22),
    TensorType.Q5_1: BlockGeometry(32, 24),
    TensorType.Q2_K: BlockGeometry(256, 84),
    TensorType.Q3_K: BlockGeometry(256, 110),
    TensorType.Q4_K: BlockGeometry(256, 144),
    TensorType.Q5_K: BlockGeometry(256, 176),
    TensorType.Q6_K: BlockGeometry(256, 210),
    TensorType.IQ4_NL: BlockGeometry(32, 18),
    TensorType.IQ4_XS: BlockGeometry(256, 136),
    TensorType.MXFP4: BlockGeometry(32, 17),
    TensorType.NVFP4: BlockGeometry(64, 36),
    TensorType.IQ1_S: BlockGeometry(256, 50),
    TensorType.IQ1_M: BlockGeometry(256, 56),
    TensorType.IQ2_XXS: BlockGeometry(256, 66),
    TensorType.IQ2_XS: BlockGeometry(256, 74),
    TensorType.IQ2_S: BlockGeometry(256, 82),
    TensorType.IQ3_XXS: BlockGeometry(256, 98),
    TensorType.IQ3_S: BlockGeometry(256, 110),
    TensorType.TQ1_0: BlockGeometry(256, 54),
    TensorType.TQ2_0: BlockGeometry(256, 66),
    TensorType.Q1_0: BlockGeometry(128, 18),
    TensorType.Q2_0: BlockGeometry(64, 18),
    TensorType.INT4_G32: BlockGeometry(32, 19),
    TensorType.INT4_G64: BlockGeometry(64, 35),
    TensorType.INT4_G128: BlockGeometry(128, 67),
    TensorType.INT8_ROW: BlockGeometry(32, 36),
    TensorType.NVFP4_ROW: BlockGeometry(64, 40),
    TensorType.INT8_G32: BlockGeometry(32, 36),
    TensorType.FP8_G32: BlockGeometry(32, 36),
    TensorType.FP8_G128: BlockGeometry(128, 132),
    TensorType.NF4_G64: BlockGeometry(64, 36),
    TensorType.Q2_0_G128: BlockGeometry(128, 34),
}
"""Geometry of the types Caudal loads."""

FIRST_OWN_TYPE = 256
"""From this number on, types are Caudal's own, which no GGUF file can have."""

SUPPORTED_TYPES: frozenset[TensorType] = frozenset(
    kind for kind in BLOCK_GEOMETRY if kind < FIRST_OWN_TYPE
)
"""Types that GGUF files may have; others are refused."""

_INTERMEDIATE = "which holds activations while a matrix is multiplied and is no type for files"
_REMOVED = (
    "which llama.cpp has taken out of the format; convert the model anew from its original weights"
)
_REPACKED = (
    "an arrangement for some processors that llama.cpp has taken out of the format; convert the "
    "model anew, as {}"
)
REFUSALS: dict[TensorType, str] = {
    TensorType.Q8_1: _INTERMEDIATE,
    TensorType.Q8_K: _INTERMEDIATE,
    TensorType.Q4_2: _REMOVED,
    TensorType.Q4_3: _REMOVED,
    TensorType.Q4_0_4_4: _REPACKED.format("Q4_0"),
    TensorType.Q4_0_4_8: _REPACKED.format("Q4_0"),
    TensorType.Q4_0_8_8: _REPACKED.format("Q4_0"),
    TensorType.IQ4_NL_4_4: _REPACKED.format("IQ4_NL"),
    TensorType.IQ4_NL_4_8: _REPACKED.format("IQ4_NL"),
    TensorType.IQ4_NL_8_8: _REPACKED.format("IQ4_NL"),
}
"""What to say of types that no file should have (any more)."""
