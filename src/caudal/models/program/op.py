"""What operations are made of: buffers, names of tensors, plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from caudal.models.rope import RopeTable


@dataclass(frozen=True, slots=True)
class Buffer:
    """One row of `width` floats per token; `index` is its place in `Program.buffers`."""

    index: int
    name: str
    width: int


class _TensorName(str):
    """The name of a tensor in the model file, or of some of its rows: `NAME[FIRST:END]`.

    Files have matrices fused that a program multiplies by one after the other: their rows lie one
    behind the other.

    Args:
        tensor: What the file calls it.
        rows: The rows that are meant (of a vector, the elements); None: all.

    Attributes:
        tensor: As above.
        rows: As above.
    """

    __slots__ = ("rows", "tensor")

    tensor: str
    rows: tuple[int, int] | None

    def __new__(cls, tensor: str, rows: tuple[int, int] | None = None) -> Self:
        name = super().__new__(cls, tensor if rows is None else f"{tensor}[{rows[0]}:{rows[1]}]")
        name.tensor, name.rows = tensor, rows
        return name


class MatrixName(_TensorName):
    """A weight matrix."""

    __slots__ = ()


class VectorName(_TensorName):
    """A vector: a norm's weight, a bias."""

    __slots__ = ()


class ExpertsName(_TensorName):
    """A matrix of each expert, shape (experts, rows, columns); `rows` are those of every one."""

    __slots__ = ()


TensorName = MatrixName | VectorName | ExpertsName


@dataclass(frozen=True, slots=True)
class ColumnOrder:
    """An order of columns: a model may have millions of numbers, so they are packed.

    Attributes:
        packed: Which column each is, as 32-bit integers.
    """

    packed: bytes

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Self:
        """From whole numbers."""
        return cls(np.array(numbers, np.int32).tobytes())

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """Which column each is."""
        return np.frombuffer(self.packed, np.int32)


OpValue = Buffer | TensorName | RopeTable | ColumnOrder | float | str | None
"""What an operation may have in its fields. What isn't a plain value says by its type what it
refers to, so that programs can be gone through and translated without knowing each operation."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: what it is called and its fields say all about it.

    Backends know operations by the names of their classes, and fields by theirs; for the native
    one they stand in csrc/runtime/ops_*.h.
    """

    def values(self) -> dict[str, OpValue]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
