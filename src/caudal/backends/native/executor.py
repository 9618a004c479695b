"""Runs programs on the CPU through the native library: one call into C++ per iteration."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from caudal import _native
from caudal.backends.executor import (
    Batch,
    Bytes,
    Executor,
    ExecutorInfo,
    LoadedAdapter,
    SequenceStep,
    StepResult,
    WindowPool,
)
from caudal.backends.facts import ExecutorFacts
from caudal.backends.native.adapters import AdapterPlaces
from caudal.backends.native.batch import native_batch
from caudal.backends.native.compiler import compile_program
from caudal.backends.native.costs import Passed
from caudal.backends.native.disk_reads import read_rate
from caudal.backends.native.options import Activations, KVType
from caudal.backends.native.results import drawn, step_result
from caudal.backends.native.weights import LoadedWeights, load_weights
from caudal.errors import ModelLoadError
from caudal.formats.lora.adapter import Adapter
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import Program
from caudal.store.packed import PackedModel

BLOCK_SIZE: int = _native.BLOCK_TOKENS
"""Tokens of a KV block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How the native backend runs a model.

    Attributes:
        num_blocks: KV blocks in the pool; memory is reserved and taken only when touched.
        window_blocks: The same for the pools of the program's windows, shortest first.
        num_slots: Slots for states of recurrent layers; memory as for blocks.
        map_weights: Map packed weights from a file instead of holding them in memory.
        weight_memory: Bytes of memory for weights that are mapped: what exceeds it is read again
            for every token. None: all have room.
        max_batch_tokens: Most tokens of one iteration; buffers are sized for it.
        threads: Threads that compute, the caller's included.
        kv_type: Element type of keys and values.
        activations: What matrices are multiplied by.
    """

    num_blocks: int
    max_batch_tokens: int
    threads: int
    kv_type: KVType = "f16"
    activations: Activations = "auto"
    window_blocks: tuple[int, ...] = ()
    num_slots: int = 0
    map_weights: bool = False
    weight_memory: int | None = None


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one kind of stage cost in an iteration.

    Attributes:
        name: E.g. `attention`, or `linear Q4_1 576x1536`.
        work_seconds: Time threads worked on it, summed over them.
        wait_seconds: Time threads waited for each other behind it, summed over them.
        bytes: Weights, or keys and values, that it read.
        operations: What it computed; a multiply-add counts as two. 0 where that isn't counted.
        calls: How often it ran.
    """

    name: str
    work_seconds: float
    wait_seconds: float
    bytes: float
    operations: float
    calls: int


class NativeExecutor(Executor):
    """Executor (see backends/executor.py) on the CPU.

    Args:
        file: The model; its tensors are packed into the kernels' layout here and not read again.
        program: The model's program.
        options: Sizes and switches.
        progress: Called with the share of weights packed so far, 0 to 1.
        kept: Where packed weights may be kept.
        beside: An executor whose threads it has, too; the two never run at once. Its weights as
            well, where they are those of the same file.
        more: A second program of the file, whose weights are loaded too.

    Attributes:
        native_seconds: How long iterations have run in the native library, all together.
        keeping: What writes the packed weights to the disk, if anything does.

    Raises:
        ModelLoadError: A tensor can't be used, or memory doesn't suffice.
    """

    def __init__(
        self,
        file: TensorFile,
        program: Program,
        options: NativeOptions,
        progress: Callable[[float], None] | None = None,
        kept: PackedModel | None = None,
        beside: NativeExecutor | None = None,
        more: Program | None = None,
    ) -> None:
        self.native_seconds = 0.0
        self._launched: tuple[_native.Batch, Sequence[SequenceStep]] | None = None
        try:
            shared = None if beside is None else beside._weights_of(file, program)
            if shared is not None:
                weights, loaded = shared
            else:
                weights = _native.Weights(
                    options.threads, None if beside is None else beside._weights
                )
                loaded = load_weights(
                    program if more is None else program.with_weights_of(more),
                    file,
                    weights,
                    mapped=options.map_weights,
                    kept=kept,
                    progress=progress,
                )
                weights.choose_streams()
            self._executor: _native.Executor | None = _native.Executor(
                weights,
                compile_program(program, loaded.numbers),
                options.num_blocks,
                options.window_blocks,
                options.num_slots,
                options.kv_type,
                options.activations == "f32",
                options.max_batch_tokens,
                -1 if options.weight_memory is None else options.weight_memory,
            )
        except (ValueError, IndexError, RuntimeError) as error:
            raise ModelLoadError(str(file.path), str(error)) from error
        except MemoryError as error:
            raise ModelLoadError(
                str(file.path), "there is not enough memory for the weights and the KV pool"
            ) from error
        self._options = options
        self._program = program
        self._weights_digest = loaded.digest
        self._fingerprint: bytes | None = None
        self._file = file.path
        self._weights: _native.Weights | None = weights
        self._loaded = loaded
        self._adapter_places = AdapterPlaces(program, loaded.numbers)
        disk_bytes, disk_rate = _disk_reads(program, loaded, options.weight_memory)
        self.keeping = loaded.keeping
        if self.keeping is not None:
            self.keeping.start()
        self._info = ExecutorInfo(
            num_blocks=options.num_blocks,
            block_size=BLOCK_SIZE,
            vocab_size=program.vocab_size,
            num_slots=options.num_slots,
            windows=tuple(map(WindowPool, options.window_blocks, program.windows)),
            block_bytes=tuple(self._opened().block_bytes),
            facts=ExecutorFacts(
                backend="native",
                instruction_set=_native.instruction_set(),
                threads=options.threads,
                activations=options.activations,
                kv_type=options.kv_type,
                weight_bytes=weights.bytes if shared is None else 0,
                weights_mapped=loaded.mapped is not None,
                disk_bytes_per_token=disk_bytes,
                disk_rate=disk_rate,
            ),
        )

    @property
    def info(self) -> ExecutorInfo:
        """Pool geometry and facts."""
        return self._info

    def launch(self, batch: Batch) -> None:
        """Make up an iteration's arrays; see `Executor.launch`."""
        self._launched = native_batch(batch, self._info), batch.steps

    def collect(self) -> list[StepResult]:
        """Run the iteration in this thread, one of those that compute; see `Executor.collect`.

        Raises:
            ValueError: The batch refers to tokens, blocks or positions that don't exist.
        """
        if self._launched is None:
            raise RuntimeError("nothing was launched")
        (packed, steps), self._launched = self._launched, None
        began = time.perf_counter()
        samples, scores, pooled = self._opened().execute(packed)
        self.native_seconds += time.perf_counter() - began
        next_sample, next_score, next_pooled = iter(samples), iter(scores), iter(pooled)
        results = []
        for step in steps:
            is_usual = step.pooled_rows is None and not step.score_targets and not step.states
            if is_usual and len(step.samples) == 1:
                results.append(drawn(*next(next_sample)))  # as nearly always
                continue
            result = step_result(
                step,
                [next(next_sample) for _ in step.samples],
                [next(next_score) for _ in step.score_targets],
                None if step.pooled_rows is None else next(next_pooled),
            )
            if step.states:
                result.states = next(next_pooled).reshape(step.states, -1).astype(np.float32)
            results.append(result)
        return results

    def profile(self, batch: Batch) -> list[StageCost]:
        """Run one iteration like `execute`, for what its stages cost rather than its results."""
        costs = self._opened().profile(native_batch(batch, self._info))
        return [StageCost(*cost) for cost in costs]

    def rest(self) -> None:
        """Have threads sleep that would wait for the next iteration; see `Executor.rest`."""
        self._opened().rest()

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Pack an adapter's factors; see `Executor.load_adapter`."""
        changes = self._adapter_places.changes(adapter)
        try:
            return LoadedAdapter(*self._opened().load_adapter(changes))
        except ValueError as error:
            raise ModelLoadError(adapter.source, str(error)) from error
        except MemoryError as error:
            raise ModelLoadError(adapter.source, "there is not enough memory for it") from error

    def unload_adapter(self, index: int) -> None:
        """See `Executor.unload_adapter`."""
        try:
            self._opened().unload_adapter(index)
        except IndexError:
            raise KeyError(index) from None

    def fingerprint(self) -> bytes:
        """See `Executor.fingerprint`.

        That is of the library, the program and the weights: another version of the kernels may
        compute other bits, and a setting that changes keys (of RoPE, say) changes the program.
        """
        if self._fingerprint is None:
            options = self._options
            facts = f"{_native.instruction_set()} {options.kv_type} {options.activations}"
            digest = hashlib.sha256(Path(_native.__file__).read_bytes())
            for part in (facts.encode(), repr(self._program).encode(), self._weights_digest):
                digest.update(hashlib.sha256(part).digest())
            self._fingerprint = digest.digest()
        return self._fingerprint

    def read_blocks(self, kind: int, blocks: Sequence[int], out: Bytes) -> None:
        """See `Executor.read_blocks`."""
        self._opened().read_blocks(kind, blocks, out)

    def write_blocks(self, kind: int, blocks: Sequence[int], data: Bytes | bytes) -> None:
        """See `Executor.write_blocks`."""
        self._opened().write_blocks(kind, blocks, data)

    def close(self) -> None:
        """Release threads and memory."""
        if self.keeping is not None:
            self.keeping.stop()
        self.keeping = self._executor = self._weights = None

    def _weights_of(
        self, file: TensorFile, program: Program
    ) -> tuple[_native.Weights, LoadedWeights] | None:
        """Its weights, where they are those of a file's program; nobody else has to keep them."""
        names = (*program.matrices, *program.vectors, *program.experts)
        has_all = all(name in self._loaded.numbers for name in names)
        if self._weights is None or file.path != self._file or not has_all:
            return None
        return self._weights, replace(self._loaded, keeping=None)

    def _opened(self) -> _native.Executor:
        if self._executor is None:
            raise RuntimeError("the executor has been closed")
        return self._executor


def _disk_reads(program: Program, loaded: LoadedWeights, memory: int | None) -> tuple[int, float]:
    """Bytes that a token reads from the disk, and at how many a second that goes."""
    if loaded.mapped is None or memory is None:
        return 0, 0.0
    count = Passed.of(program, loaded.sizes).missing(memory)
    try:
        return count, read_rate(loaded.mapped) if count else 0.0
    except OSError:  # deleted meanwhile
        return count, 0.0
