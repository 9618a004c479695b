"""Programs for the native library: operations that refer to all by number."""

from __future__ import annotations

from collections.abc import Mapping

from caudal import _native
from caudal.models.program import (
    Buffer,
    ColumnOrder,
    ExpertsName,
    MatrixName,
    Op,
    OpValue,
    Program,
    TensorName,
    VectorName,
)
from caudal.models.rope import RopeTable


def compile_program(program: Program, numbers: Mapping[TensorName, int]) -> _native.Program:
    """Translate a program's operations.

    Args:
        program: The model's program.
        numbers: The number that each of its weights has among the packed matrices, the vectors, or
            the experts.

    Raises:
        ValueError: The library doesn't know an operation.
    """
    translator = _Translator(numbers)
    body, tail, head, states = (
        [translator.translate(op) for op in ops]
        for ops in (program.body, program.tail, program.head, program.states)
    )
    return _native.Program(
        [buffer.width for buffer in program.buffers],
        [(t.inverse_frequencies, t.magnitude, t.interleaved) for t in translator.tables],
        [
            (kv.kv_heads, kv.head_dim, kv.channels_of_values, kv.latent, kv.window or 0)
            for kv in program.kv_layers
        ],
        [layer.floats for layer in program.state_layers],
        body,
        tail,
        head,
        states,
        [buffer.index for buffer in program.carried],
        program.hidden.index,
        None if program.logits is None else program.logits.index,
        program.state.index,
    )


class _Translator:
    """Puts numbers for whatever operations refer to; what an operation is for is all the same."""

    def __init__(self, weights: Mapping[TensorName, int]) -> None:
        self._weights = weights
        self._tables: dict[RopeTable, int] = {}

    @property
    def tables(self) -> tuple[RopeTable, ...]:
        """The tables met so far, by number."""
        return tuple(self._tables)

    def translate(self, op: Op) -> _native.Op:
        values = {name: self._translate_value(value) for name, value in op.values().items()}
        return type(op).__name__, values

    def _translate_value(self, value: OpValue) -> int | float | str | list[int] | None:
        match value:
            case Buffer():
                return value.index
            case MatrixName() | VectorName() | ExpertsName():
                return self._weights[value]
            case RopeTable():
                return self._tables.setdefault(value, len(self._tables))
            case ColumnOrder():
                order: list[int] = value.numbers.tolist()
                return order
            case _:
                return value
