"""Where rows and columns of a checkpoint's matrix are in the model's file.

What families' rules (formats/huggingface/tensor_rules.py) do to weights has to be done to changes
of them: rows are those of factor b, columns those of factor a. So rules are shown matrices whose
values are their own row numbers, or their column numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.family import Located
from caudal.formats.huggingface.rows import Bytes, Rows
from caudal.formats.huggingface.tensor_rules import Found
from caudal.formats.tensor_types import TensorType

Numbers = npt.NDArray[np.int64]

_EXACT = 1 << 24
"""Whole numbers below are floats of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A matrix of the model's file, as part of a checkpoint's.

    Attributes:
        rows: Which of the checkpoint's rows each row is.
        columns: Which column each column is.
    """

    rows: Numbers
    columns: Numbers


def layouts(located: Located, config: Config, shape: tuple[int, int]) -> Mapping[str, Layout]:
    """What becomes of a checkpoint's matrix, by names, in a layer without `blk.N.`.

    Args:
        located: What its family's tables have for it: a name or a rule.
        config: The model's sizes.
        shape: Its rows and columns.

    Raises:
        ValueError: It hasn't the shape that it should have, or isn't only reordered.
        ModelLoadError: The model's sizes don't say what the rule asks for.
    """
    rows, columns = shape
    entry = located.entry
    if max(rows, columns) >= _EXACT:
        raise ValueError(f"a matrix of {rows} x {columns} is too large")

    def shown(columns: int, *, by_row: bool) -> Mapping[str, Rows]:
        probe = _Numbered((rows, columns), by_row=by_row)
        found = Found(config, located.layer, located.kind, probe)
        if callable(entry):
            return entry(found)
        return {} if entry is None else {found.named(entry): probe}

    of_columns = shown(columns, by_row=False)
    if any(len(made.shape) != 2 for made in of_columns.values()):
        raise ValueError("isn't one matrix, or several, in the model's file")
    orders = {name: _numbers(_read(made, 0, 1)[0], columns) for name, made in of_columns.items()}
    # Where columns stay, a few show what becomes of the rows; one would make it a vector.
    stay = all(np.array_equal(order, np.arange(columns)) for order in orders.values())
    of_rows = shown(2 if stay else columns, by_row=True)
    return {
        name: Layout(_numbers(_first_column(made), rows), orders[name])
        for name, made in of_rows.items()
    }


class _Numbered(Rows):
    """A matrix of which every value is the number of its row, or of its column."""

    def __init__(self, shape: tuple[int, int], *, by_row: bool) -> None:
        super().__init__("the matrix", TensorType.F32, shape)
        self._by_row = by_row

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        rows = np.arange(first, first + count)[:, None]
        numbers = rows if self._by_row else np.arange(self.shape[-1])[None]
        shape = (count, self.shape[-1])
        values = np.ascontiguousarray(np.broadcast_to(numbers, shape), "<f4")
        return values.view(np.uint8)


def _read(rows: Rows, first: int, count: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(rows.read(first, count)).view("<f4")


def _first_column(rows: Rows) -> npt.NDArray[np.float32]:
    step = max(1, (1 << 20) // rows.shape[-1])
    count = rows.shape[0]
    pieces = [_read(rows, at, min(step, count - at))[:, 0] for at in range(0, count, step)]
    return np.concatenate(pieces)


def _numbers(values: npt.NDArray[np.float32], end: int) -> Numbers:
    numbers = values.astype(np.int64)
    if not np.array_equal(numbers, values) or numbers.min() < 0 or numbers.max() >= end:
        raise ValueError("isn't only reordered in the model's file")
    if len(np.unique(numbers)) != len(numbers):
        raise ValueError("has rows or columns more than once in the model's file")
    return numbers
