"""Types of the native library (csrc/bindings/)."""

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def instruction_set() -> str: ...

class kernels:  # noqa: N801 — a submodule: the kernels one by one, for tests and benchmarks
    class ActivationKind(enum.Enum):
        F32 = 0
        Int8 = 1
        Int16 = 2
        Int8Twice = 3

    class Matrix:
        """A weight matrix, packed for one instruction set from the bytes of a GGUF tensor."""

        def __init__(
            self, isa: str, tensor_type: int, source: NDArray[np.uint8], rows: int, cols: int
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
        def convert(
            self, x: NDArray[np.float32], row_begin: int = 0, row_end: int | None = None
        ) -> None: ...

    @staticmethod
    def instruction_sets() -> list[str]: ...
    @staticmethod
    def dequantize(tensor_type: int, blocks: NDArray[np.uint8]) -> NDArray[np.float32]: ...
    @staticmethod
    def multiply(
        matrix: kernels.Matrix,
        activations: kernels.Activations,
        y: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        accumulate: bool = False,
        panel_begin: int = 0,
        panel_end: int | None = None,
        stream: tuple[int, int, int] | None = None,
    ) -> None: ...

class conversion:  # noqa: N801 — a submodule: tensors' elements as those of other types
    @staticmethod
    def convert(
        source_type: int,
        source: NDArray[np.uint8],
        target_type: int,
        out: NDArray[np.uint8],
        threads: int = 1,
        isa: str = "",
    ) -> bool: ...
    @staticmethod
    def can_convert(target_type: int) -> bool: ...

class sampling:  # noqa: N801 — a submodule: the sampler by itself, for tests and benchmarks
    @staticmethod
    def sample(
        logits: NDArray[np.float32],
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        stream: int = 0,
        step: int = 0,
        prompt_tokens: Sequence[int] = (),
        output_tokens: Sequence[int] = (),
        logit_bias: Sequence[tuple[int, float]] = (),
        banned_tokens: Sequence[int] = (),
        allowed_mask: bytes = b"",
        logprobs: int = -1,
    ) -> tuple[int, float | None, int | None, list[tuple[int, float]]]: ...
    @staticmethod
    def score(
        logits: NDArray[np.float32], token: int, top: int = 0
    ) -> tuple[int, float, int, list[tuple[int, float]]]: ...
    @staticmethod
    def weights(
        logits: NDArray[np.float32], maximum: float, scale: float, out: NDArray[np.float32]
    ) -> None: ...
    @staticmethod
    def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
    @staticmethod
    def uniform(seed: int, stream: int, step: int) -> float: ...

# The runtime: caudal.backends.native is its only user.

BLOCK_TOKENS: int
PANEL_ROWS: int

def weight_layout() -> int: ...

Op = tuple[str, dict[str, int | float | str | list[int] | None]]
"""An operation's name and its fields (csrc/runtime/ops_*.h); buffers, weights, rope tables and KV
layers by index."""

class Program:
    def __init__(
        self,
        buffer_widths: Sequence[int],
        rope_tables: Sequence[tuple[Sequence[float], float, bool]],
        kv_layers: Sequence[tuple[int, int, int, bool, int]],
        state_layers: Sequence[int],
        body: Sequence[Op],
        tail: Sequence[Op],
        head: Sequence[Op],
        states: Sequence[Op],
        carried: Sequence[int],
        hidden: int,
        logits: int | None,
        state: int,
    ) -> None: ...

class Weights:
    def __init__(self, threads: int, beside: Weights | None = None) -> None: ...
    def add_matrix(self, tensor_type: int, rows: int, cols: int) -> int: ...
    def hold_image(self) -> None: ...
    def map_image(self, descriptor: int, offset: int) -> None: ...
    def write_image(self, descriptor: int, offset: int) -> None: ...
    def pack_matrix(self, matrix: int, descriptor: int, offset: int) -> None: ...
    def pack_rows(self, matrix: int, first: int, data: NDArray[np.uint8]) -> None: ...
    def has_rows(self, matrix: int, first: int, data: NDArray[np.uint8]) -> bool: ...
    def read_matrices(
        self, descriptor: int, offset: int, first: int, count: int, checksums: Sequence[int]
    ) -> None: ...
    def group_experts(self, first: int, count: int) -> int: ...
    def add_vector(self, tensor_type: int, data: NDArray[np.uint8], length: int) -> int: ...
    def choose_streams(self) -> None: ...
    @property
    def streams(self) -> list[tuple[str, int, int, int, float]]: ...
    @property
    def checksums(self) -> list[int]: ...
    @property
    def image(self) -> NDArray[np.uint8]: ...
    @property
    def image_bytes(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Turns:
    """Linux only; caudal.workers.turns is its only user."""

    def __init__(
        self,
        descriptor: int,
        threads: int,
        processors: int,
        poll: float,
        grace: float,
        stuck: float,
        longest: float,
    ) -> None: ...
    def take(self) -> None: ...
    def give_back(self) -> bool: ...
    def leave(self) -> None: ...

TURN_PLACES: int

class Batch:
    def __init__(self) -> None: ...
    def add_sequence(
        self,
        tokens: Sequence[int],
        context: int,
        block_table: Sequence[int],
        second_segment: int,
    ) -> None: ...
    def add_pooling(self, first: int, count: int, carry: NDArray[np.float64]) -> None: ...
    def add_states(self, count: int) -> None: ...
    def add_given(self, rows: NDArray[np.float32]) -> None: ...
    def add_copy(self, source: int, destination: int) -> None: ...
    def set_states(self, source: int, destination: int) -> None: ...
    def set_adapter(self, adapter: int) -> None: ...
    def set_window_tables(self, index: int, tables: Sequence[Sequence[int]]) -> None: ...
    def set_window_copies(self, copies: Sequence[Sequence[tuple[int, int]]]) -> None: ...
    def add_sample(
        self,
        index: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        seed: int,
        stream: int,
        step: int,
        logprobs: int,
        allowed_tokens: bytes,
        banned_tokens: Sequence[int],
    ) -> None: ...
    def adjust_sample(
        self,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
        logit_bias: Sequence[tuple[int, float]],
    ) -> None: ...
    def add_score(self, index: int, target: int, top: int) -> None: ...

AdapterChange = tuple[int, NDArray[np.float32], NDArray[np.float32], float]
"""The changed matrix, both factors, and what their product is multiplied by."""

ScoreTuple = tuple[int, float, int, list[tuple[int, float]]]
SampleTuple = tuple[int, ScoreTuple | None, str | None]
ScoredTuple = tuple[ScoreTuple | None, str | None]
ExecuteResult = tuple[list[SampleTuple], list[ScoredTuple], list[NDArray[np.float64]]]

class Executor:
    def __init__(
        self,
        weights: Weights,
        program: Program,
        num_blocks: int,
        window_blocks: Sequence[int],
        num_slots: int,
        kv_type: str,
        float_activations: bool,
        max_batch_tokens: int,
        weight_memory: int,
    ) -> None: ...
    def load_adapter(self, changes: Sequence[AdapterChange]) -> tuple[int, int, int]: ...
    def unload_adapter(self, index: int) -> None: ...
    @property
    def block_bytes(self) -> list[int]: ...
    def read_blocks(self, kind: int, blocks: Sequence[int], out: NDArray[np.uint8]) -> None: ...
    def write_blocks(
        self, kind: int, blocks: Sequence[int], data: NDArray[np.uint8] | bytes
    ) -> None: ...
    def execute(self, batch: Batch) -> ExecuteResult: ...
    def profile(self, batch: Batch) -> list[tuple[str, float, float, float, float, int]]: ...
    def rest(self) -> None: ...
