"""Adapters for the native library: changes of the matrices that weights were packed as."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caudal import _native
from caudal.errors import ModelLoadError
from caudal.formats.lora.adapter import Adapter
from caudal.models.program import (
    Buffer,
    ColumnOrder,
    Gather,
    Linear,
    MatrixName,
    Op,
    Program,
    TensorName,
)

_OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of a tensor of the model's file.

    Attributes:
        rows: Which they are, None for all.
        number: Theirs among the packed matrices.
        columns: The order that their columns are in, None for that of the inputs.
    """

    rows: tuple[int, int] | None
    number: int
    columns: ColumnOrder | None


class AdapterPlaces:
    """Where changes of the tensors of a model's file go.

    Args:
        program: The model's program.
        numbers: The number that each of its weights has among the packed matrices.
    """

    def __init__(self, program: Program, numbers: Mapping[TensorName, int]) -> None:
        places: dict[str, dict[int, _Place]] = defaultdict(dict)
        elsewhere: set[str] = set()
        orders: dict[Buffer, ColumnOrder] = {}  # of what was gathered
        for op in program.body + program.tail + program.head + program.states:
            if isinstance(op, Gather):
                orders[op.out] = op.columns
            for name in _matrices(op):
                if isinstance(op, Linear):
                    number = numbers[name]
                    places[name.tensor][number] = _Place(name.rows, number, orders.get(op.x))
                else:
                    elsewhere.add(name.tensor)
        if _OUTPUT not in places:  # the head multiplies by the embedding, where a name is its own
            for op in program.head:
                if isinstance(op, Linear) and op.weight.tensor in elsewhere:
                    places[_OUTPUT] = places[op.weight.tensor]
        self._places = {name: found for name, found in places.items() if name not in elsewhere}

    def changes(self, adapter: Adapter) -> list[_native.AdapterChange]:
        """An adapter as the library takes it.

        Raises:
            ModelLoadError: It changes what isn't multiplied by as one matrix.
        """
        changes: list[_native.AdapterChange] = []
        for name, change in adapter.matrices.items():
            if name not in self._places:
                raise ModelLoadError(
                    adapter.source,
                    f"it changes {name}, which adapters can't change",
                )
            for place in self._places[name].values():
                first, end = place.rows or (0, len(change.b))
                a = change.a if place.columns is None else change.a[:, place.columns.numbers]
                b = np.ascontiguousarray(change.b[first:end])
                changes.append((place.number, np.ascontiguousarray(a), b, change.scale))
        return changes


def _matrices(op: Op) -> list[MatrixName]:
    return [value for value in op.values().values() if isinstance(value, MatrixName)]
