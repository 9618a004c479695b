"""What a backend is to the rest: it says what memory a program needs here, and opens what runs it.

Nobody else knows how large a block of keys and values is, what its elements are, or what memory
there is to put it in. A new backend is a package with a class like this one and a line in
`registry.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from caudal.backends.executor import Executor, blocks_of_window
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import Program
from caudal.store.packed import PackedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What a user may choose that only backends understand. Each says which values it takes.

    Attributes:
        kv_type: Element type of keys and values.
        activations: What matrices are multiplied by: `auto` for what is fastest.
        weights: Where packed weights are: in `memory`, or `mapped` from a file on the disk; `auto`
            maps what doesn't fit in memory.
        memory: Bytes of memory that the model may take in all; default: the machine's.
        threads: Threads that compute; default: the processors this process may use.
    """

    kv_type: str = "f16"
    activations: str = "auto"
    weights: str = "auto"
    memory: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How much is going to run at once, which memory has to suffice for.

    Attributes:
        max_model_len: Most tokens of one sequence that the user asks for; None: as many as the
            model was trained for, or as fit in the memory.
        max_num_seqs: Most sequences of one iteration.
        max_num_batched_tokens: Most tokens of one iteration.
        kv_memory: Bytes for keys and values; None: the backend's share of what is available.
    """

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKV:
    """A pool of blocks for the keys and values of all tokens.

    Attributes:
        num_blocks: Blocks there are.
        block_size: Tokens that a block holds.
        bytes_per_token: Bytes of one token over all layers.
    """

    num_blocks: int
    block_size: int
    bytes_per_token: int

    @property
    def tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_blocks * self.block_size

    @property
    def bytes(self) -> int:
        """Bytes that the pool takes once all of it has been used."""
        return self.tokens * self.bytes_per_token

    def sequences(self, length: int) -> float:
        """How many sequences of so many tokens fit."""
        return self.tokens / length

    def sequence_bytes(self, length: int) -> int:
        """Bytes that one sequence of so many tokens takes."""
        return -(-length // self.block_size) * self.block_size * self.bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKV:
    """A pool of blocks for the keys and values of layers that see no further than a window.

    Attributes:
        window: Tokens that a query sees, itself among them.
        num_blocks: Blocks there are.
        block_size: Tokens that a block holds.
        bytes_per_token: Bytes of one token over these layers.
    """

    window: int
    num_blocks: int
    block_size: int
    bytes_per_token: int

    @property
    def bytes(self) -> int:
        """Bytes that the pool takes once all of it has been used."""
        return self.num_blocks * self.block_size * self.bytes_per_token

    def sequences(self, length: int) -> float:
        """How many sequences of so many tokens fit, while nothing else is kept."""
        return self.num_blocks / self._blocks(length)

    def sequence_bytes(self, length: int) -> int:
        """Most bytes that one sequence of so many tokens takes between two iterations."""
        return self._blocks(length) * self.block_size * self.bytes_per_token

    def _blocks(self, length: int) -> int:
        return min(-(-length // self.block_size), blocks_of_window(self.window, self.block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentStates:
    """Slots for the states of recurrent layers.

    Attributes:
        num_slots: Slots there are: one for each sequence that runs, the others for snapshots.
        bytes_per_slot: Bytes of one sequence's states over all layers.
    """

    num_slots: int
    bytes_per_slot: int

    @property
    def bytes(self) -> int:
        """Bytes that all slots take once they have been used."""
        return self.num_slots * self.bytes_per_slot


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKinds:
    """What there is of each kind of memory.

    Attributes:
        kv: Where keys and values of all tokens go.
        windows: Where those of layers with windows go, shortest window first.
        states: Where the states of recurrent layers go; None where there are none.
        kept_token_bytes: Bytes of all kinds that a token takes of a usual conversation that has
            ended; 0: as many as in `kv`.
    """

    kv: PagedKV
    windows: tuple[WindowKV, ...] = ()
    states: RecurrentStates | None = None
    kept_token_bytes: float = 0.0

    @property
    def bytes(self) -> int:
        """Bytes that all of it takes once it has been used."""
        states = 0 if self.states is None else self.states.bytes
        return self.kv.bytes + sum(pool.bytes for pool in self.windows) + states

    def sequence_bytes(self, length: int) -> int:
        """Bytes that one sequence of so many tokens takes."""
        windows = sum(pool.sequence_bytes(length) for pool in self.windows)
        states = 0 if self.states is None else self.states.bytes_per_slot
        return self.kv.sequence_bytes(length) + windows + states

    def sequences(self, length: int) -> float:
        """How many sequences of so many tokens fit at once."""
        slots = math.inf if self.states is None else self.states.num_slots
        windows = min((pool.sequences(length) for pool in self.windows), default=math.inf)
        return min(self.kv.sequences(length), windows, slots)

    def kept_tokens(self, size: int) -> int:
        """About how many tokens of conversations that have ended so many bytes hold."""
        return int(size / (self.kept_token_bytes or self.kv.bytes_per_token))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMemory:
    """What packed weights take.

    Attributes:
        bytes: All of them.
        mapped: Whether they are mapped from a file: then the system shares them between processes,
            and takes back what it needs for something else.
    """

    bytes: int
    mapped: bool

    @property
    def held(self) -> int:
        """Bytes of memory that are taken until the model is closed."""
        return 0 if self.mapped else self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a program takes on a backend, and what fits in that.

    Attributes:
        options: The user's choices that it was made for.
        limits: What it was made for.
        weights: What the weights take.
        kinds: What there is of each kind of memory.
        max_model_len: Most tokens of one sequence: as asked for, or what fits.
        least: Bytes of all kinds without which no sequence of a usual length (or of the length that
            is asked for) has room.
        workspace: Bytes of what an iteration computes with.
    """

    options: BackendOptions
    limits: RunLimits
    weights: WeightMemory
    kinds: MemoryKinds
    max_model_len: int
    least: int = 0
    workspace: int = 0


class Backend(Protocol):
    """Runs programs on some kind of hardware."""

    def check_options(self, options: BackendOptions) -> None:
        """Check what doesn't depend on a model.

        Raises:
            ParameterError: Names the option, and what it may be.
        """

    def plan(
        self, weights: TensorFile, program: Program, options: BackendOptions, limits: RunLimits
    ) -> MemoryPlan:
        """Say what memory a program takes. Nothing is set aside yet, and no weights are read.

        Args:
            weights: The model's tensors.
            program: The model's computation.
            options: Choices that `check_options` has passed.
            limits: What is going to run at once.

        Raises:
            ParameterError: What is asked for can't be had here.
        """

    def open(
        self,
        weights: TensorFile,
        program: Program,
        plan: MemoryPlan,
        progress: Callable[[float], None] | None = None,
        kept: PackedModel | None = None,
        beside: Executor | None = None,
        more: Program | None = None,
    ) -> Executor:
        """Load the weights and set the memory aside.

        Args:
            weights: The model's tensors; they are not read again afterwards.
            program: The model's computation.
            plan: What `plan` made of it.
            progress: Called with the share of weights loaded so far, 0 to 1.
            kept: Where packed weights may be kept for the next time; None: nowhere.
            beside: An executor of this backend with which it shares what computes: one of them
                runs at a time, and the other costs it nothing meanwhile. Where that has the same
                file's weights, it shares these too.
            more: A second program of the file that is going to be opened beside it: its weights
                are loaded too.

        Raises:
            ModelLoadError: A tensor can't be used, or memory doesn't suffice.
        """
