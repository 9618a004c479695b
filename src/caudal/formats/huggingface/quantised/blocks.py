"""Quantised matrices as rows of the block types that kernels multiply, without loss.

Each function takes what a method's tensors come to (codes, scales, zeros) and chooses the block
type that keeps the values: the densest where scales fit into half precision, else one with float
scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from caudal.formats.huggingface.rows import Bytes, Floats, Made, Rows
from caudal.formats.tensor_types import TensorType

Codes = npt.NDArray[np.uint8]
"""Codes, or packed ones."""

_INT4 = {32: TensorType.INT4_G32, 64: TensorType.INT4_G64, 128: TensorType.INT4_G128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """A matrix of integers in groups of columns: value = scale · (code - zero).

    Attributes:
        name: The tensor's name, for errors.
        bits: Bits of a code.
        scales: Shape (rows, groups).
        zeros: Shape (rows, groups), or (1, 1) for one that is everywhere the same.
        columns: How many columns there are.
        codes: Reads all codes, unsigned, shape (rows, columns).
    """

    name: str
    bits: int
    scales: Floats
    zeros: npt.NDArray[np.int16]
    columns: int
    codes: Callable[[], Codes]

    @property
    def group(self) -> int:
        """Columns of a group."""
        groups: int = self.scales.shape[1]
        return self.columns // groups

    def rows(self) -> Rows:
        """The matrix: in 4 bits where it has no more and scales fit, else in 8, else as floats."""
        shape = (self.scales.shape[0], self.columns)
        step = next((size for size in (128, 64, 32) if self.group % size == 0), None)
        if step is None:
            return Made(self.name, TensorType.F32, shape, lambda: _as_bytes(self._values()))
        if self.bits <= 4 and _fit_half(self.scales):
            return Made(self.name, _INT4[step], shape, lambda: self._int4(step))
        if self.bits == 8 and not np.all(self.zeros == 128):
            return Made(self.name, TensorType.F32, shape, lambda: _as_bytes(self._values()))
        if self.scales.shape[1] == 1:
            return Made(self.name, TensorType.INT8_ROW, shape, self._int8)
        return Made(self.name, TensorType.INT8_G32, shape, self._int8)

    def _spread(self, values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        """What belongs to groups, for parts of `size` columns of them."""
        return np.repeat(np.broadcast_to(values, self.scales.shape), self.group // size, axis=1)

    def _int4(self, size: int) -> Bytes:
        count = len(self.scales)
        codes = self.codes().reshape(count, -1, size)
        blocks = np.empty((count, codes.shape[1], 3 + size // 2), np.uint8)
        halves = np.ascontiguousarray(self._spread(self.scales.astype("<f2"), size))
        blocks[..., :2] = halves.view(np.uint8).reshape(count, -1, 2)
        blocks[..., 2] = self._spread(self.zeros, size)
        np.left_shift(codes[..., 1::2], 4, out=blocks[..., 3:])
        blocks[..., 3:] |= codes[..., ::2]
        return blocks.reshape(count, -1)

    def _int8(self) -> Bytes:
        count = len(self.scales)
        numbers = self.codes().reshape(count, -1, 32).astype(np.int16)
        numbers -= self._spread(self.zeros, 32)[..., None]
        scales = np.ascontiguousarray(self._spread(self.scales, 32), "<f4")
        return float_blocks(scales, numbers.astype(np.int8).view(np.uint8)).reshape(count, -1)

    def _values(self) -> Floats:
        values = self.codes().astype(np.float32).reshape(*self.scales.shape, self.group)
        values -= np.broadcast_to(self.zeros, self.scales.shape)[..., None]
        values *= self.scales[..., None]
        return values.reshape(len(values), -1)


def float_blocks(scales: Floats, bodies: Codes) -> Bytes:
    """Blocks that begin with a float scale.

    Args:
        scales: Shape (rows, blocks).
        bodies: What follows, shape (rows, blocks, bytes).
    """
    blocks = np.empty((*bodies.shape[:2], 4 + bodies.shape[2]), np.uint8)
    contiguous = np.ascontiguousarray(scales, "<f4")
    blocks[..., :4] = contiguous.view(np.uint8).reshape(*bodies.shape[:2], 4)
    blocks[..., 4:] = bodies
    return blocks


def fp8_rows(
    name: str, shape: tuple[int, ...], scales: Floats, block: int, codes: Callable[[], Codes]
) -> Rows:
    """A matrix, or a stack of matrices, of E4M3 floats.

    Args:
        name: The tensor's name, for errors.
        shape: Its dimensions.
        scales: What multiplies them, for each row and each `block` columns: shape (rows, blocks).
        block: Columns that share a scale: 128, or all of a row.
        codes: Reads all numbers' bits, in the tensor's shape.
    """
    columns = shape[-1]
    size = 128 if columns % 128 == 0 else 32
    # Each part's scale is that of the block it lies in.
    owners = np.arange(0, columns, size) // block

    def make() -> Bytes:
        bodies = codes().reshape(len(scales), -1, size)
        return float_blocks(scales[:, owners], bodies).reshape(len(scales), -1)

    def values() -> Bytes:
        numbers = e4m3(codes().reshape(len(scales), columns))
        return _as_bytes(numbers * scales[:, np.arange(columns) // block])

    if columns % 32 != 0 or block % size != 0:
        return Made(name, TensorType.F32, shape, values)
    kind = TensorType.FP8_G128 if size == 128 else TensorType.FP8_G32
    return Made(name, kind, shape, make)


def nvfp4_rows(
    name: str,
    shape: tuple[int, ...],
    factors: Floats,
    scales: Callable[[], Codes],
    nibbles: Callable[[], Codes],
) -> Rows:
    """A matrix, or a stack of matrices, of E2M1 numbers with an E4M3 scale for each 16.

    Args:
        name: The tensor's name, for errors.
        shape: Its dimensions; columns are a multiple of 64.
        factors: What multiplies the scales, for each row: shape (rows,).
        scales: Reads the scales' bits, shape (..., columns / 16).
        nibbles: Reads the numbers, two to a byte, the lower first, shape (..., columns / 2).
    """

    def make() -> Bytes:
        count = len(factors)
        pairs = nibbles().reshape(count, -1, 4, 8)
        bodies = np.empty((count, pairs.shape[1], 36), np.uint8)
        bodies[..., :4] = scales().reshape(count, -1, 4)
        # The first eight of 16 in the lower halves, the others in the upper.
        codes = split_nibbles(pairs)
        bodies[..., 4:] = (codes[..., :8] | codes[..., 8:] << 4).reshape(count, -1, 32)
        blocks = float_blocks(np.repeat(factors[:, None], bodies.shape[1], axis=1), bodies)
        return blocks.reshape(count, -1)

    return Made(name, TensorType.NVFP4_ROW, shape, make)


def mxfp4_rows(
    name: str, shape: tuple[int, ...], scales: Callable[[], Codes], nibbles: Callable[[], Codes]
) -> Rows:
    """A matrix, or a stack of matrices, of E2M1 numbers with a power of two for each 32.

    Args:
        name: The tensor's name, for errors.
        shape: Its dimensions; columns are a multiple of 32.
        scales: Reads the exponents (E8M0), shape (..., columns / 32).
        nibbles: Reads the numbers, two to a byte, the lower first, shape (..., columns / 2).
    """

    def make() -> Bytes:
        codes = split_nibbles(nibbles().reshape(-1, shape[-1] // 32, 16))
        blocks = np.empty((*codes.shape[:2], 17), np.uint8)
        blocks[..., 0] = scales().reshape(codes.shape[:2])
        blocks[..., 1:] = codes[..., :16] | codes[..., 16:] << 4
        return blocks.reshape(len(blocks), -1)

    return Made(name, TensorType.MXFP4, shape, make)


def split_nibbles(packed: Codes) -> Codes:
    """Two codes for each byte, the lower half's first: twice as many along the last axis."""
    codes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    codes[..., ::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes


def unpack_words(words: npt.NDArray[np.int32], bits: int, count: int) -> Codes:
    """Codes along the last axis of 32-bit words, the lowest bits first.

    Args:
        words: Shape (..., words).
        bits: Bits of a code, which divides 32.
        count: Codes to take of each row.
    """
    bytes_ = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 4:
        return split_nibbles(bytes_)[..., :count]
    if bits == 8:
        return bytes_[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = bytes_[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*bytes_.shape[:-1], -1)[..., :count]


def e4m3(bits: Codes) -> Floats:
    """The numbers that 8-bit floats are."""
    wide = bits.astype(np.uint32)
    magnitude = ((wide & 0x7F) << 20).view(np.float32) * np.float32(2.0**120)
    return np.where(bits < 0x80, magnitude, -magnitude)


def _fit_half(values: Floats) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.all(values.astype(np.float16).astype(np.float32) == values))


def _as_bytes(values: Floats) -> Bytes:
    return np.ascontiguousarray(values, "<f4").view(np.uint8)
