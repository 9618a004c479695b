"""The native backend: how much memory a program takes on this machine's CPU, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, get_args

from caudal.backends.backend import (
    BackendOptions,
    MemoryKinds,
    MemoryPlan,
    PagedKV,
    RecurrentStates,
    RunLimits,
    WeightMemory,
    WindowKV,
)
from caudal.backends.executor import Executor
from caudal.backends.native.costs import SHARE_OF_OTHERS, weight_costs, workspace_bytes
from caudal.backends.native.executor import (
    BLOCK_SIZE,
    NativeExecutor,
    NativeOptions,
)
from caudal.backends.native.options import Activations, KVType, WeightsPlace, kv_type_named
from caudal.backends.native.planning import (
    CONVERSATION,
    Division,
    KindSizes,
    check_heads,
    divide,
    least_bytes,
)
from caudal.errors import ParameterError
from caudal.formats.tensor_file import TensorFile
from caudal.machine import available_memory, total_memory, usable_processors
from caudal.models.program import Program
from caudal.store.packed import PackedModel

_Name = TypeVar("_Name", bound=str)

MAX_THREADS = 256

DEFAULT_KV_SHARE = 4
"""By default the KV pool may take one part in this many of the available memory."""


class NativeBackend:
    """Backend (see backends/backend.py) on the CPU."""

    def check_options(self, options: BackendOptions) -> None:
        """Check the number of threads and the names of types; see `Backend.check_options`."""
        _kv_type(options)
        _activations(options)
        _weights_place(options)
        _threads(options)

    def plan(
        self, weights: TensorFile, program: Program, options: BackendOptions, limits: RunLimits
    ) -> MemoryPlan:
        """Size the pools and count the slots; see `Backend.plan`.

        They hold one sequence of `max_model_len` at least: where the default budget is too
        small for the model's whole context, the context shrinks; where the user set both, that is
        an error.

        Raises:
            ParameterError: `kv_memory` or `max_model_len` can't be had.
            ModelLoadError: A tensor can't be packed, or heads are too wide for `kv_type`.
        """
        check_heads(str(weights.path), program.kv_layers, _kv_type(options))
        sizes = KindSizes.of(program, BLOCK_SIZE, _kv_type(options))
        if program.is_encoder:
            # Only a batch's own: so many tokens, and a block more for each sequence.
            num_blocks = limits.max_num_batched_tokens // BLOCK_SIZE + 2 * limits.max_num_seqs
            division = Division(num_blocks, (), 0)
            max_model_len = limits.max_model_len or program.context_length
        else:
            division = _affordable(sizes, limits, program.context_length)
            max_model_len = limits.max_model_len or min(
                program.context_length, division.num_blocks * BLOCK_SIZE
            )
        planned = MemoryPlan(
            options=options,
            limits=limits,
            weights=WeightMemory(bytes=weight_costs(weights, program).bytes, mapped=False),
            kinds=_kinds(sizes, division),
            max_model_len=max_model_len,
            least=_least(program, sizes, limits),
            workspace=workspace_bytes(program, limits.max_num_batched_tokens),
        )
        # What others have of the memory, they may give back before this is opened.
        mapped = _is_mapped(planned, options.memory or total_memory())
        return replace(planned, weights=replace(planned.weights, mapped=mapped))

    def open(
        self,
        weights: TensorFile,
        program: Program,
        plan: MemoryPlan,
        progress: Callable[[float], None] | None = None,
        kept: PackedModel | None = None,
        beside: Executor | None = None,
        more: Program | None = None,
    ) -> NativeExecutor:
        """Pack the weights, or find them packed; see `Backend.open`."""
        available = available_memory()
        memory = min(available, plan.options.memory or available)
        memory -= memory // SHARE_OF_OTHERS
        options = NativeOptions(
            num_blocks=plan.kinds.kv.num_blocks,
            window_blocks=tuple(pool.num_blocks for pool in plan.kinds.windows),
            num_slots=0 if plan.kinds.states is None else plan.kinds.states.num_slots,
            max_batch_tokens=plan.limits.max_num_batched_tokens,
            threads=_threads(plan.options),
            kv_type=_kv_type(plan.options),
            activations=_activations(plan.options),
            map_weights=plan.weights.mapped or _is_mapped(plan, available),
            weight_memory=max(0, memory - plan.kinds.bytes - plan.workspace),
        )
        if not isinstance(beside, NativeExecutor | None):
            raise TypeError("an executor of another backend has other threads")
        return NativeExecutor(weights, program, options, progress, kept, beside, more)


def _affordable(sizes: KindSizes, limits: RunLimits, context_length: int) -> Division:
    """What the memory suffices for: one sequence at least."""
    budget = limits.kv_memory
    if budget is None:
        budget = available_memory() // DEFAULT_KV_SHARE
    elif not 0 <= budget <= total_memory():
        raise ParameterError(
            "kv_memory",
            f"kv_memory is {budget / 2**30:.1f} GiB, but this machine has only "
            f"{total_memory() / 2**30:.1f} GiB of memory.",
        )
    division = divide(
        sizes,
        budget,
        limits.max_model_len or min(context_length, CONVERSATION),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        for_all=limits.max_model_len is not None and limits.kv_memory is not None,
    )
    tokens = limits.max_model_len or 2
    held = division.num_blocks * BLOCK_SIZE
    if held < tokens:
        raise ParameterError(
            "kv_memory",
            f"The KV pool of {budget / 2**20:.0f} MiB holds {held} tokens, but "
            f"one sequence of {tokens} needs {least_bytes(sizes, tokens) / 2**20:.1f} MiB. Raise "
            "kv_memory or lower max_model_len.",
        )
    return division


def _least(program: Program, sizes: KindSizes, limits: RunLimits) -> int:
    if program.is_encoder:
        return 0
    usual = limits.max_model_len or min(program.context_length, CONVERSATION)
    return least_bytes(sizes, usual)


def _is_mapped(plan: MemoryPlan, memory: int) -> bool:
    """Whether weights are mapped where there is so much memory."""
    place = _weights_place(plan.options)
    if place == "auto":
        needed = plan.weights.bytes + plan.least + plan.workspace
        return needed > memory - memory // SHARE_OF_OTHERS
    return place == "mapped"


def _kinds(sizes: KindSizes, division: Division) -> MemoryKinds:
    return MemoryKinds(
        kv=PagedKV(
            num_blocks=division.num_blocks,
            block_size=BLOCK_SIZE,
            bytes_per_token=sizes.token_bytes,
        ),
        windows=tuple(
            WindowKV(
                window=window,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                bytes_per_token=bytes_per_token,
            )
            for num_blocks, (window, bytes_per_token) in zip(
                division.window_blocks, sizes.windows, strict=True
            )
        ),
        states=RecurrentStates(num_slots=division.num_slots, bytes_per_slot=sizes.slot_bytes)
        if sizes.slot_bytes
        else None,
        kept_token_bytes=sizes.kept_token_bytes,
    )


def _kv_type(options: BackendOptions) -> KVType:
    try:
        return kv_type_named(options.kv_type)
    except ValueError as error:
        raise ParameterError("kv_type", f"kv_type {error}.") from error


def _activations(options: BackendOptions) -> Activations:
    known: tuple[Activations, ...] = get_args(Activations)
    return _one_of("activations", options.activations, known)


def _weights_place(options: BackendOptions) -> WeightsPlace:
    known: tuple[WeightsPlace, ...] = get_args(WeightsPlace)
    return _one_of("weights", options.weights, known)


def _threads(options: BackendOptions) -> int:
    threads = usable_processors() if options.threads is None else options.threads
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise ParameterError("threads", f"threads must be an integer, but is {threads!r}.")
    if not 1 <= threads <= MAX_THREADS:
        raise ParameterError("threads", f"threads must be 1 to {MAX_THREADS}, but is {threads}.")
    return threads


def _one_of(name: str, value: str, known: tuple[_Name, ...]) -> _Name:
    for each in known:
        if each == value:
            return each
    *first, last = map(repr, known)
    allowed = f"{', '.join(first)} or {last}"
    raise ParameterError(name, f"{name} must be {allowed}, not {value!r}.")
