"""Types of the native library (csrc/bindings/)."""

import enum

import numpy as np
from numpy.typing import NDArray

def instruction_set() -> str: ...

class kernels:  # noqa: N801 — a submodule: the kernels one by one, for tests and benchmarks
    class ActivationKind(enum.Enum):
        F32 = 0
        Int8 = 1
        Int16 = 2

    class Matrix:
        """A weight matrix, packed for one instruction set from the bytes of a GGUF tensor."""

        def __init__(
            self, isa: str, type: int, source: NDArray[np.uint8], rows: int, cols: int
        ) -> None: ...
        def row(self, index: int) -> NDArray[np.float32]: ...
        @property
        def bytes(self) -> int: ...
        @property
        def panels(self) -> int: ...
        @property
        def preferred(self) -> kernels.ActivationKind: ...

    class Activations:
        """Rows of activations [rows, cols], converted to a kind."""

        def __init__(
            self, isa: str, kind: kernels.ActivationKind, x: NDArray[np.float32]
        ) -> None: ...
        def convert(self, x: NDArray[np.float32]) -> None: ...

    @staticmethod
    def instruction_sets() -> list[str]: ...
    @staticmethod
    def dequantize(type: int, blocks: NDArray[np.uint8]) -> NDArray[np.float32]: ...
    @staticmethod
    def multiply(
        matrix: kernels.Matrix,
        activations: kernels.Activations,
        y: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        accumulate: bool = False,
        panel_begin: int = 0,
        panel_end: int | None = None,
    ) -> None: ...
