"""Runs programs on the CPU through the native library: one call into C++ per iteration."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caudal import _native
from caudal.backends.executor import (
    Batch,
    Bytes,
    Executor,
    ExecutorInfo,
    LoadedAdapter,
    SampledToken,
    SamplingRow,
    SequenceStep,
    StepResult,
    TokenLogprob,
    WindowPool,
)
from caudal.backends.facts import ExecutorFacts
from caudal.backends.native.adapters import AdapterPlaces
from caudal.backends.native.compiler import compile_program
from caudal.backends.native.costs import Passed
from caudal.backends.native.disk_reads import read_rate
from caudal.backends.native.options import Activations, KVType
from caudal.backends.native.weights import LoadedWeights, load_weights
from caudal.errors import ModelLoadError
from caudal.formats.lora.adapter import Adapter
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import Program
from caudal.store.packed import PackedModel

BLOCK_SIZE: int = _native.BLOCK_TOKENS
"""Tokens of a KV block."""

_NOTHING = np.empty(0)


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
        self._launched = _pack(batch, self._info), batch.steps

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
                results.append(_drawn(*next(next_sample)))  # as nearly always
                continue
            result = _step_result(
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
        costs = self._opened().profile(_pack(batch, self._info))
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


def _pack(batch: Batch, info: ExecutorInfo) -> _native.Batch:
    native = _native.Batch()
    for source, destination in batch.copies:
        native.add_copy(source, destination)
    for step in batch.steps:
        second = -1 if step.second_segment is None else step.second_segment
        native.add_sequence(step.tokens, step.context, step.block_table, second)
        if step.state is not None:
            source = -1 if step.state.source is None else step.state.source
            native.set_states(source, step.state.destination)
        if step.adapter is not None:
            native.set_adapter(step.adapter)
        if step.pooled_rows is not None:
            carry = _NOTHING if step.pooled_rows.carry is None else step.pooled_rows.carry
            native.add_pooling(step.pooled_rows.first, step.pooled_rows.count, carry)
        if step.states:
            native.add_states(step.states)
        if step.given is not None:
            native.add_given(step.given)
        last = len(step.tokens) - 1
        index = last - step.proposed
        for row in step.samples:
            _add_sample(native, index, row)
            index = min(index + 1, last)
        for index, target in enumerate(step.score_targets):
            native.add_score(index, target, step.score_top)
    if info.windows:
        native.set_window_copies(batch.window_copies)
        for number, step in enumerate(batch.steps):
            native.set_window_tables(number, step.window_tables)
    return native


LEAST_TOP_P = 1e-9
"""Stands for 0: the likeliest token reaches it alone."""


def _add_sample(native: _native.Batch, index: int, row: SamplingRow) -> None:
    params = row.params
    native.add_sample(
        index,
        params.temperature,
        params.top_k,
        max(params.top_p, LEAST_TOP_P),
        params.min_p,
        params.typical_p,
        row.seed,
        row.stream,
        row.step,
        -1 if params.logprobs is None else params.logprobs,
        row.allowed_tokens or b"",
        row.banned_tokens,
    )
    penalised = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
    if penalised or params.logit_bias:
        native.adjust_sample(
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            row.prompt_tokens,
            row.output_tokens,
            list(params.logit_bias.items()),
        )


def _sampled(token: int, score: _native.ScoreTuple | None) -> SampledToken:
    return SampledToken(token, None if score is None else _token_logprob(score))


def _drawn(token: int, score: _native.ScoreTuple | None, error: str | None) -> StepResult:
    """What nearly all steps come to, a single token, without the loops of the others."""
    return StepResult([_sampled(token, score)]) if error is None else StepResult(error=error)


def _step_result(
    step: SequenceStep,
    samples: Sequence[_native.SampleTuple],
    scores: Sequence[_native.ScoredTuple],
    pooled: NDArray[np.float64] | None,
) -> StepResult:
    samples = _accepted(step, samples)
    for *_, error in samples:
        if error is not None:
            return StepResult(error=error)
    for _, error in scores:
        if error is not None:
            return StepResult(error=error)
    return StepResult(
        samples=[_sampled(token, score) for token, score, _ in samples],
        scores=[_token_logprob(score) for score, _ in scores if score is not None],
        pooled=pooled,
    )


def _accepted(
    step: SequenceStep, samples: Sequence[_native.SampleTuple]
) -> Sequence[_native.SampleTuple]:
    """Those of the tokens drawn that count; see `StepResult`."""
    if not step.proposed:
        return samples
    proposals = [*step.tokens[-step.proposed :], None]
    for place, ((token, _, error), proposal) in enumerate(zip(samples, proposals, strict=True)):
        if error is not None:
            return samples[: max(place, 1)]
        if token != proposal:
            return samples[: place + 1]
    raise AssertionError("the last token drawn has no proposal to be equal to")


def _token_logprob(score: _native.ScoreTuple) -> TokenLogprob:
    token, logprob, rank, top = score
    return TokenLogprob(token, logprob, rank, top)
