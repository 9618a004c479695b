"""The native backend: how much memory a program takes on this machine's CPU, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, get_args

from caudal.backends.backend import BackendOptions, MemoryPlan, PagedKV, RunLimits
from caudal.backends.native.executor import (
    BLOCK_SIZE,
    NativeExecutor,
    NativeOptions,
)
from caudal.backends.native.options import Activations, KVType
from caudal.errors import ParameterError
from caudal.formats.tensor_file import TensorFile
from caudal.machine import available_memory, total_memory, usable_processors
from caudal.models.program import Program, kv_bytes_per_token

_Name = TypeVar("_Name", bound=str)

BYTES_PER_ELEMENT: dict[KVType, int] = {"f16": 2, "f32": 4}

MAX_THREADS = 256

DEFAULT_KV_SHARE = 4
"""By default the KV pool may take one part in this many of the available memory."""


class NativeBackend:
    """Backend (see backends/backend.py) on the CPU."""

    def check_options(self, options: BackendOptions) -> None:
        """Check the number of threads and the names of types; see `Backend.check_options`."""
        _kv_type(options)
        _activations(options)
        _threads(options)

    def plan(self, program: Program, options: BackendOptions, limits: RunLimits) -> MemoryPlan:
        """Size the KV pool; see `Backend.plan`.

        The pool holds one sequence of `max_model_len` at least: where the default budget is too
        small for the model's whole context, the context shrinks; where the user set both, that is
        an error.

        Raises:
            ParameterError: `kv_memory` or `max_model_len` can't be had.
        """
        bytes_per_token = kv_bytes_per_token(
            program.kv_layers, BYTES_PER_ELEMENT[_kv_type(options)]
        )
        if program.is_encoder:
            # Only a batch's own: so many tokens, and a block more for each sequence.
            num_blocks = limits.max_num_batched_tokens // BLOCK_SIZE + 2 * limits.max_num_seqs
            max_model_len = limits.max_model_len or program.context_length
        else:
            num_blocks = _affordable_blocks(BLOCK_SIZE * bytes_per_token, limits)
            max_model_len = limits.max_model_len or min(
                program.context_length, num_blocks * BLOCK_SIZE
            )
        return MemoryPlan(
            options=options,
            limits=limits,
            kv=PagedKV(
                num_blocks=num_blocks, block_size=BLOCK_SIZE, bytes_per_token=bytes_per_token
            ),
            max_model_len=max_model_len,
        )

    def open(
        self,
        weights: TensorFile,
        program: Program,
        plan: MemoryPlan,
        progress: Callable[[float], None] | None = None,
    ) -> NativeExecutor:
        """Pack the weights; see `Backend.open`."""
        options = NativeOptions(
            num_blocks=plan.kv.num_blocks,
            window_blocks=tuple(pool.num_blocks for pool in plan.windows),
            max_batch_tokens=plan.limits.max_num_batched_tokens,
            threads=_threads(plan.options),
            kv_type=_kv_type(plan.options),
            activations=_activations(plan.options),
        )
        return NativeExecutor(weights, program, options, progress)


def _affordable_blocks(block_bytes: int, limits: RunLimits) -> int:
    """Blocks that the memory suffices for: those of one sequence at least."""
    budget = limits.kv_memory
    if budget is None:
        budget = available_memory() // DEFAULT_KV_SHARE
    elif not 0 <= budget <= total_memory():
        raise ParameterError(
            "kv_memory",
            f"kv_memory is {budget / 2**30:.1f} GiB, but this machine has only "
            f"{total_memory() / 2**30:.1f} GiB of memory.",
        )
    num_blocks = budget // block_bytes
    tokens = limits.max_model_len or 2
    needed = -(-tokens // BLOCK_SIZE)
    if num_blocks < needed:
        raise ParameterError(
            "kv_memory",
            f"The KV pool of {budget / 2**20:.0f} MiB holds {num_blocks * BLOCK_SIZE} tokens, but "
            f"one sequence of {tokens} needs {needed * block_bytes / 2**20:.1f} MiB. Raise "
            "kv_memory or lower max_model_len.",
        )
    return num_blocks


def _kv_type(options: BackendOptions) -> KVType:
    known: tuple[KVType, ...] = get_args(KVType)
    return _one_of("kv_type", options.kv_type, known)


def _activations(options: BackendOptions) -> Activations:
    known: tuple[Activations, ...] = get_args(Activations)
    return _one_of("activations", options.activations, known)


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
    allowed = " or ".join(map(repr, known))
    raise ParameterError(name, f"{name} must be {allowed}, not {value!r}.")
