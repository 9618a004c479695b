"""How fast this machine reads weights, which bounds how fast a model says tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal.backends.executor import Batch, PooledRows, SequenceStep
from caudal.backends.native.costs import Passed, weight_costs
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType
from caudal.models.builder import ProgramBuilder
from caudal.models.pooling import Pooling
from caudal.models.program import Program

_WIDTH = 4096
_MOST_BYTES = 256 << 20
"""More than any cache holds, or most of them; what takes less is measured with as much."""


class _Zeros:
    """Square matrices, one after another, whose weights are all 0 (a `TensorFile`)."""

    def __init__(self, kind: TensorType, size: int) -> None:
        table = TensorInfo("table", (16, _WIDTH), TensorType.F32)
        first = TensorInfo("0.weight", (_WIDTH, _WIDTH), kind)
        layers = [f"{number}.weight" for number in range(max(1, size // first.nbytes))]
        self.path = Path("measurement")
        self.architecture = "measurement"
        self.tensors: Mapping[str, TensorInfo] = {
            "table": table,
            **{name: TensorInfo(name, first.shape, kind) for name in layers},
        }

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        return self.tensor_rows(name, 0, self.tensors[name].rows)

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        return np.zeros(count * self.tensors[name].row_bytes, np.uint8)

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        return None

    def program(self) -> Program:
        """All of them, one after another."""
        builder = ProgramBuilder(self)
        x, y = builder.buffer("x", _WIDTH), builder.buffer("y", _WIDTH)
        builder.embed(x, "table")
        for number in range(len(self.tensors) - 1):
            builder.linear(x, f"{number}", y)
            x, y = y, x
        return builder.finish(
            state=x,
            logits=None,
            vocab_size=16,
            context_length=16,
            pooling=Pooling(kind="last", normalize=False),
        )


def read_bandwidth(kind: TensorType, size: int, threads: int, seconds: float = 0.5) -> float:
    """Bytes of packed weights a second that kernels read for one token, at best.

    It takes some 300 MB of memory, and about a second.

    Args:
        kind: The type of the weights.
        size: Bytes of them that a token goes through.
        threads: Threads that compute.
        seconds: How long to measure.

    Raises:
        ModelLoadError: There isn't as much memory.
    """
    file = _Zeros(kind, min(size, _MOST_BYTES))
    program = file.program()
    read = Passed.of(program, weight_costs(file, program).sizes).always
    options = NativeOptions(num_blocks=1, max_batch_tokens=1, threads=threads)
    executor = NativeExecutor(file, program, options)
    try:
        step = SequenceStep([0], 0, [0], pooled_rows=PooledRows(0, 1))
        best, until = float("inf"), time.perf_counter() + seconds
        while best == float("inf") or time.perf_counter() < until:
            began = time.perf_counter()
            executor.execute(Batch([step]))
            best = min(best, time.perf_counter() - began)
        return read / best
    finally:
        executor.close()
