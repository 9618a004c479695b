"""Programs for the native library: weights packed, and operations that refer to all by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from caudal import _native
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import (
    Buffer,
    ExpertsName,
    MatrixName,
    Op,
    OpValue,
    Program,
    TensorName,
    VectorName,
)
from caudal.models.rope import RopeTable

PANEL_ROWS: int = _native.PANEL_ROWS
"""Rows are packed in panels of so many."""

_PIECE_BYTES = 32 << 20
"""Rows that a file makes are asked for in pieces of so many bytes: few enough to need little memory
besides, enough for all threads."""


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


def pack_weights(
    program: Program,
    file: TensorFile,
    weights: _native.Weights,
    progress: Callable[[float], None] | None = None,
) -> dict[TensorName, int]:
    """Pack a program's weights.

    Args:
        program: The model's program.
        file: The model; nothing of it is read later.
        weights: Where the packed weights go.
        progress: Called with the share of weights packed so far, 0 to 1.

    Returns:
        The number that each weight has among the packed matrices, the vectors, or the experts.

    Raises:
        ValueError: A tensor can't be packed.
        RuntimeError: The file was cut or replaced meanwhile.
    """
    numbers: dict[TensorName, int] = {}
    names = program.matrices + program.vectors + program.experts
    total = sum(file.tensors[tensor].nbytes for tensor in {name.tensor for name in names})
    done = 0
    for name in names:
        tensor = file.tensors[name.tensor]
        match name:
            case MatrixName():
                first, end = name.rows or (0, tensor.rows)
                numbers[name] = _add_matrix(weights, file, name.tensor, first, end)
                done += (end - first) * tensor.row_bytes
            case ExpertsName():
                experts, rows, _ = tensor.shape
                first, end = name.rows or (0, rows)
                added = [
                    _add_matrix(weights, file, name.tensor, before + first, before + end)
                    for before in range(0, experts * rows, rows)
                ]
                numbers[name] = weights.group_experts(added[0], experts)
                done += experts * (end - first) * tensor.row_bytes
            case VectorName():
                first, end = _elements(file, name)
                bytes_of_block = tensor.type.block_bytes
                begin, after = (
                    index // tensor.type.block_elements * bytes_of_block for index in (first, end)
                )
                data = file.tensor_bytes(name.tensor)[begin:after]
                numbers[name] = weights.add_vector(tensor.type, data, end - first)
                done += after - begin
        if progress is not None:
            progress(done / total)
    return numbers


def _elements(file: TensorFile, name: VectorName) -> tuple[int, int]:
    """Which of a tensor's numbers a vector is, in whole blocks.

    Raises:
        ValueError: It isn't whole blocks.
    """
    tensor = file.tensors[name.tensor]
    of_row = tensor.num_elements // tensor.shape[0]
    first, end = (row * of_row for row in name.rows or (0, tensor.shape[0]))
    block = tensor.type.block_elements
    if first % block or end % block:
        raise ValueError(
            f"tensor {name.tensor} has type {tensor.type.name}, of which its numbers {first} to "
            f"{end - 1} aren't whole blocks of {block}"
        )
    return first, end


def _add_matrix(weights: _native.Weights, file: TensorFile, name: str, begin: int, end: int) -> int:
    """Pack rows of a tensor: from the file where they lie there as they are, else in pieces."""
    tensor = file.tensors[name]
    rows, columns = end - begin, tensor.shape[-1]
    place = file.tensor_place(name)
    if place is not None:
        descriptor, offset = place
        offset += begin * tensor.row_bytes
        return weights.add_matrix(tensor.type, descriptor, offset, rows, columns)
    number = weights.reserve_matrix(tensor.type, rows, columns)
    step = max(PANEL_ROWS, _PIECE_BYTES // tensor.row_bytes // PANEL_ROWS * PANEL_ROWS)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        weights.pack_rows(number, first, file.tensor_rows(name, begin + first, count))
    return number


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

    def _translate_value(self, value: OpValue) -> int | float | str | None:
        match value:
            case Buffer():
                return value.index
            case MatrixName() | VectorName() | ExpertsName():
                return self._weights[value]
            case RopeTable():
                return self._tables.setdefault(value, len(self._tables))
            case _:
                return value
