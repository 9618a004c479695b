"""Adapters for the native library: changes of the matrices that weights were packed as."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caudal import _native
from caudal.errors import ModelLoadError
from caudal.formats.lora.adapter import Adapter
from caudal.formats.tensor_types import TensorType
from caudal.models.program import Linear, MatrixName, Op, Program, TensorName

_OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of a tensor of the model's file: which they are, None for all; and their number."""

    rows: tuple[int, int] | None
    number: int


class AdapterPlaces:
    """Where changes of the tensors of a model's file go.

    Args:
        program: The model's program.
        numbers: The number that each of its weights has among the packed matrices.
        exact: Whether factors are kept as the floats that they are. Else they are rounded to BF16,
            far less than activations are.
    """

    def __init__(self, program: Program, numbers: Mapping[TensorName, int], *, exact: bool) -> None:
        self._exact = exact
        places: dict[str, dict[int, _Place]] = defaultdict(dict)
        elsewhere: set[str] = set()
        for op in program.body + program.tail + program.head + program.states:
            for name in _matrices(op):
                if isinstance(op, Linear):
                    number = numbers[name]
                    places[name.tensor][number] = _Place(name.rows, number)
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
                (kind, a), (_, b) = self._stored(change.a), self._stored(change.b[first:end])
                changes.append((place.number, kind, change.rank, a, b, change.scale))
        return changes

    def _stored(self, values: NDArray[np.float32]) -> tuple[TensorType, NDArray[np.uint8]]:
        values = np.ascontiguousarray(values, np.float32)
        if self._exact:
            return TensorType.F32, values.view(np.uint8).reshape(-1)
        bits = values.view(np.uint32)
        halves = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # ties to even
        return TensorType.BF16, halves.view(np.uint8).reshape(-1)


def _matrices(op: Op) -> list[MatrixName]:
    return [value for value in op.values().values() if isinstance(value, MatrixName)]
