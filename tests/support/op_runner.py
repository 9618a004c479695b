"""Runs operations on rows of numbers, and gives the rows that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import Batch, PooledRows, SequenceStep
from caudal.backends.native.executor import BLOCK_SIZE, NativeExecutor, NativeOptions
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.models.builder import ProgramBuilder
from caudal.models.pooling import Pooling
from caudal.models.program import Buffer
from support.gguf_writer import Tensor, write_gguf

Floats = NDArray[np.float32]
Emit = Callable[[ProgramBuilder, Buffer], Buffer]
"""Emits operations on a buffer, and returns that of the result."""

MAX_TOKENS = 256
_OPTIONS = NativeOptions(num_blocks=32, max_batch_tokens=MAX_TOKENS, threads=2)


class OpRunner:
    """An executor whose states are what operations make of a table's rows; token i is row i.

    Args:
        path: Where its model file is written.
        table: Shape (rows, width).
        emit: The operations.
        weights: Tensors that they name.
        options: Changes of the executor's options.
    """

    def __init__(
        self,
        path: Path,
        table: Floats,
        emit: Emit,
        weights: Mapping[str, Floats] | None = None,
        **options: int,
    ) -> None:
        tensors: dict[str, Tensor] = {
            name: (TensorType.F32, values.shape, values.astype(np.float32).tobytes())
            for name, values in {"table": table, **(weights or {})}.items()
        }
        written = write_gguf(path, {"general.architecture": "operations"}, tensors)
        with GGUFFile.open(written) as file:
            builder = ProgramBuilder(file)
            x = builder.buffer("x", table.shape[1])
            builder.embed(x, "table")
            program = builder.finish(
                state=emit(builder, x),
                logits=None,
                vocab_size=len(table),
                context_length=4096,
                pooling=Pooling(kind="last", normalize=False),
            )
            self.program = program
            self.executor = NativeExecutor(file, program, replace(_OPTIONS, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    def rows(self, tokens: Sequence[int], context: int = 0) -> Floats:
        """What comes out for each of some tokens of one sequence, shape (tokens, width)."""
        return self.batch([step(tokens, context)])[0]

    def batch(self, steps: Sequence[SequenceStep]) -> list[Floats]:
        """What comes out for each token of each step."""
        # One pooled row a step: a run for each place, all from the same states.
        for each in steps:
            in_place = each.state is not None and each.state.source == each.state.destination
            assert len(each.tokens) == 1 or not in_place, "a second run would go on from the first"
        rows: list[list[NDArray[np.float64]]] = [[] for _ in steps]
        longest = max(len(each.tokens) for each in steps)
        for place in range(longest):
            asked = [
                replace(each, pooled_rows=PooledRows(min(place, len(each.tokens) - 1), 1))
                for each in steps
            ]
            for number, result in enumerate(self.executor.execute(Batch(asked))):
                assert result.pooled is not None
                if place < len(steps[number].tokens):
                    rows[number].append(result.pooled)
        return [np.array(each, np.float32) for each in rows]


def step(tokens: Sequence[int], context: int = 0) -> SequenceStep:
    """Tokens of a sequence whose blocks nobody looks at."""
    blocks = -(-(context + len(tokens)) // BLOCK_SIZE)
    return SequenceStep(tokens, context, [0] * blocks)
