"""Tensors in the making: rows in ggml's blocks, which files have, or which are made of others.

What converters do to tensors is done to rows when they are asked for: a `Rows` reads what it is
made of then, and keeps nothing, or one tensor. Rows may be of any block type, quantised ones too:
all that reorders, splits or stacks them leaves each row as it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from caudal import _native
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType

Bytes = npt.NDArray[np.uint8]
"""Rows as bytes, shape (rows, row_bytes)."""
Floats = npt.NDArray[np.float32]
ColumnNumbers = npt.NDArray[np.int64]
"""Which of a matrix's columns each column of its rows is."""

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


class Rows(ABC):
    """One tensor.

    Args:
        kind: The block format of its rows.
        shape: Its dimensions, the contiguous one last.
        name: What it is called where it is from, for errors.
    """

    def __init__(self, name: str, kind: TensorType, shape: tuple[int, ...]) -> None:
        self.info = TensorInfo(name, shape, kind)

    @property
    def name(self) -> str:
        """What it is called where it is from."""
        return self.info.name

    def info_as(self, name: str) -> TensorInfo:
        """Its description under another name."""
        return TensorInfo(name, self.shape, self.type)

    @property
    def type(self) -> TensorType:
        """The block format of its rows."""
        return self.info.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions, the contiguous one last."""
        return self.info.shape

    @property
    def column_order(self) -> ColumnNumbers | None:
        """Which column of the matrix each column of the rows is; None: they are in order.

        What multiplies by the rows takes the inputs in that order.
        """
        return None

    @property
    def place(self) -> tuple[int, int] | None:
        """The descriptor and the offset of a file where all of it lies as it is, or None."""
        return None

    @abstractmethod
    def read(self, first: int, count: int) -> Bytes:
        """So many rows from `first` on, shape (count, row_bytes).

        Raises:
            ModelLoadError: A file is shorter than it was.
            ValueError: A file has been closed.
        """

    def floats(self) -> Floats:
        """The values of all rows, in the tensor's shape.

        Raises:
            ValueError: The rows are quantised.
        """
        return as_floats(self.read(0, self.info.rows), self.type).reshape(self.shape)


class Slice(Rows):
    """Consecutive rows of a tensor, as a tensor of another shape.

    Args:
        source: The tensor.
        first: Its first row that counts, those of all matrices of a stack one after the other.
        shape: Dimensions of the slice; rows are as long as the source's.
    """

    def __init__(self, source: Rows, first: int, shape: tuple[int, ...]) -> None:
        super().__init__(source.name, source.type, shape)
        if shape[-1] != source.shape[-1] or not 0 <= first <= source.info.rows - self.info.rows:
            raise ValueError(f"{source.name}: no rows {shape} from {first} on in {source.shape}")
        self._source = source
        self._first = first

    @property
    def column_order(self) -> ColumnNumbers | None:
        """See `Rows.column_order`."""
        return self._source.column_order

    @property
    def place(self) -> tuple[int, int] | None:
        """See `Rows.place`."""
        place = self._source.place
        return place and (place[0], place[1] + self._first * self.info.row_bytes)

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        return self._source.read(self._first + first, count)


class Reordered(Rows):
    """Rows of a tensor in another order.

    Args:
        source: The tensor.
        order: Which of its rows each row is.
        shape: Dimensions of the result.
    """

    def __init__(
        self, source: Rows, order: npt.NDArray[np.int64], shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(source.name, source.type, source.shape if shape is None else shape)
        if order.shape != (self.info.rows,):
            raise ValueError(f"{source.name}: an order of {order.shape} rows for {self.shape}")
        self._source = source
        self._order = order

    @property
    def column_order(self) -> ColumnNumbers | None:
        """See `Rows.column_order`."""
        return self._source.column_order

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`; runs of rows are read at once, even if every other one is left out."""
        order = self._order[first : first + count]
        needed = np.unique(order)
        cuts = [0, *(np.flatnonzero(np.diff(needed) > 2) + 1).tolist(), len(needed)]
        spans = [
            (int(needed[begin]), int(needed[end - 1]) + 1)
            for begin, end in pairwise(cuts)
            if begin < end
        ]
        runs = [self._source.read(begin, end - begin) for begin, end in spans]
        rows = runs[0] if len(runs) == 1 else np.concatenate(runs)
        have = np.concatenate([np.arange(begin, end) for begin, end in spans])
        picked: Bytes = rows[np.searchsorted(have, order)]
        return picked


class ColumnsReordered(Rows):
    """Columns of a tensor in another order, so many neighbours at a time.

    Args:
        source: The tensor.
        order: Which of its groups of columns each group is; all are of one size.

    Raises:
        ValueError: The groups aren't whole blocks of its type.
    """

    def __init__(self, source: Rows, order: npt.NDArray[np.int64]) -> None:
        source = in_order(source)
        super().__init__(source.name, source.type, source.shape)
        columns, rest = divmod(source.shape[-1], len(order))
        if rest or columns % source.type.block_elements != 0:
            raise ValueError(
                f"{source.name}: groups of {columns} columns aren't whole blocks of "
                f"{source.type.name}"
            )
        self._source = source
        self._order = order

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        groups = self._source.read(first, count).reshape(count, len(self._order), -1)
        return groups[:, self._order].reshape(count, -1)


class ColumnsSorted(Rows):
    """A matrix of which the columns are stored in another order than that of its inputs.

    Args:
        source: The matrix, as it is stored.
        order: Which column each of the source's is.
    """

    def __init__(self, source: Rows, order: ColumnNumbers) -> None:
        super().__init__(source.name, source.type, source.shape)
        self._source = source
        self._order = order

    @property
    def column_order(self) -> ColumnNumbers:
        """See `Rows.column_order`."""
        return self._order

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        return self._source.read(first, count)


class Joined(Rows):
    """Tensors of equally long rows, one behind the other.

    Args:
        name: What the result is called, for errors.
        parts: The tensors, all of one type.
        shape: Dimensions of the result.
    """

    def __init__(self, name: str, parts: Sequence[Rows], shape: tuple[int, ...]) -> None:
        super().__init__(name, parts[0].type, shape)
        self._parts = parts
        self._begins = [0, *accumulate(part.info.rows for part in parts)]
        row_bytes = {part.info.row_bytes for part in parts}
        types = {part.type for part in parts}
        if len(types) > 1 or row_bytes != {self.info.row_bytes}:
            raise ValueError(f"{name}: its parts differ in type or width")
        if self._begins[-1] != self.info.rows:
            raise ValueError(f"{name}: {self._begins[-1]} rows for a tensor of {shape}")

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        pieces = []
        for part, (begin, end) in zip(self._parts, pairwise(self._begins), strict=True):
            low, high = max(first, begin), min(first + count, end)
            if low < high:
                pieces.append(part.read(low - begin, high - low))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class Made(Rows):
    """A tensor that is made as a whole: when a row is asked for, and kept until the last was.

    Args:
        name: What it is called where it is from, for errors.
        kind: The block format of its rows.
        shape: Its dimensions.
        make: Gives all rows, shape (rows, row_bytes).
    """

    def __init__(
        self, name: str, kind: TensorType, shape: tuple[int, ...], make: Callable[[], Bytes]
    ) -> None:
        super().__init__(name, kind, shape)
        self._make = make
        self._made: Bytes | None = None

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        made = self._make() if self._made is None else self._made
        self._made = None if first + count >= self.info.rows else made
        return made[first : first + count]


def made_of_floats(name: str, shape: tuple[int, ...], make: Callable[[], Floats]) -> Rows:
    """A float32 tensor of values that are computed when they are asked for."""

    def rows() -> Bytes:
        values = np.ascontiguousarray(make(), "<f4")
        return values.reshape(math.prod(shape[:-1]), -1).view(np.uint8)

    return Made(name, TensorType.F32, shape, rows)


def mapped(source: Rows, function: Callable[[Floats], Floats]) -> Rows:
    """A tensor's values through a function, in float32; it leaves the shape as it is."""
    return made_of_floats(source.name, source.shape, lambda: function(source.floats()))


def reshaped(source: Rows, shape: tuple[int, ...]) -> Rows:
    """The same values with other dimensions.

    Raises:
        ValueError: They are of another number; or rows are of another length, and quantised.
    """
    if math.prod(shape) != source.info.num_elements:
        raise ValueError(f"{source.name}: {source.shape} can't be read as {shape}")
    if shape[-1:] == source.shape[-1:]:
        return Slice(source, 0, shape)
    if source.type not in _FLOATS:
        raise ValueError(f"{source.name}: rows of {source.type.name} can't be of another length")
    count = math.prod(shape[:-1])
    return Made(
        source.name,
        source.type,
        shape,
        lambda: source.read(0, source.info.rows).reshape(count, -1),
    )


def dequantised(source: Rows) -> Rows:
    """The values of a tensor's blocks in float32, columns in order; floats stay as they are."""
    return source if source.type in _FLOATS else _Dequantised(source)


def in_order(source: Rows) -> Rows:
    """A tensor for what doesn't ask for the order of its columns: in order, maybe as floats."""
    return source if source.column_order is None else dequantised(source)


class _Dequantised(Rows):
    """See `dequantised`."""

    def __init__(self, source: Rows) -> None:
        super().__init__(source.name, TensorType.F32, source.shape)
        self._source = source

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        blocks = np.ascontiguousarray(self._source.read(first, count)).reshape(-1)
        stored = _native.kernels.dequantize(self._source.type, blocks)
        values = np.asarray(stored, "<f4").reshape(count, -1)
        if (order := self._source.column_order) is not None:
            values = np.ascontiguousarray(values[:, np.argsort(order)])
        return values.view(np.uint8)


def transposed(source: Rows) -> Rows:
    """A tensor of floats with its last two dimensions exchanged."""
    *stack, rows, columns = source.shape
    element = source.type.block_bytes

    def make() -> Bytes:
        elements = source.read(0, source.info.rows).reshape(-1, rows, columns, element)
        return np.ascontiguousarray(elements.swapaxes(1, 2)).reshape(-1, rows * element)

    if source.type not in _FLOATS:
        raise ValueError(f"{source.name}: {source.type.name} can't be transposed")
    return Made(source.name, source.type, (*stack, columns, rows), make)


def as_floats(rows: Bytes, kind: TensorType) -> Floats:
    """Values of rows of floats, shape (rows, columns).

    Raises:
        ValueError: The rows are quantised.
    """
    rows = np.ascontiguousarray(rows)
    if kind is TensorType.F32:
        return rows.view("<f4")
    if kind is TensorType.F16:
        return rows.view("<f2").astype(np.float32)
    if kind is TensorType.BF16:
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"rows of {kind.name} are no floats")
