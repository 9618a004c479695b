"""How a model is going to run here: what its program, the user's options and a backend come to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from caudal.backends.backend import Backend, MemoryPlan, RunLimits
from caudal.engine.config import EngineConfig
from caudal.errors import ParameterError
from caudal.formats.tensor_file import TensorFile
from caudal.loading.options import LoadOptions
from caudal.models.program import Program

ENCODER_BATCH = 512
"""Tokens that an encoder computes at once by default: enough to make good use of a pass over the
weights, few enough that those who come meanwhile don't wait long."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How a model is going to run.

    Attributes:
        engine: Limits and policies of the engine.
        memory: What it takes on the backend.
    """

    engine: EngineConfig
    memory: MemoryPlan


def plan_run(
    weights: TensorFile,
    program: Program,
    options: LoadOptions,
    backend: Backend,
    context: int | None = None,
) -> RunPlan:
    """Work out limits and memory; nothing is set aside yet.

    Args:
        weights: The model's tensors.
        program: Its computation.
        options: The user's choices.
        backend: What is to run it.
        context: Most tokens of a sequence where the user doesn't say; None: what the model was
            trained for.

    Raises:
        ParameterError: An option makes no sense, or doesn't fit this model.
        ModelLoadError: A tensor can't be used.
    """
    if options.for_all:
        options = _as_far_as_fits(program, options)
    if program.is_encoder:
        _refuse_what_encoders_lack(options)
    if context is not None and options.max_model_len is None:
        program = replace(program, context_length=min(context, program.context_length))
    asked = _engine_config(program, options)
    memory = backend.plan(
        weights,
        program,
        options,
        RunLimits(
            max_model_len=options.max_model_len,
            max_num_seqs=asked.max_num_seqs,
            max_num_batched_tokens=asked.max_num_batched_tokens,
            kv_memory=options.kv_memory,
        ),
    )
    check_prefix_sizes(
        memory.kinds.sequence_bytes(1), options.prefix_memory, options.prefix_store_size
    )
    return RunPlan(replace(asked, max_model_len=memory.max_model_len), memory)


def _engine_config(program: Program, options: LoadOptions) -> EngineConfig:
    """The engine's limits, if memory sufficed for the longest sequence that may be asked for."""
    context = program.context_length
    if options.max_model_len is not None and not 2 <= options.max_model_len <= context:
        raise ParameterError(
            "max_model_len",
            f"max_model_len must be between 2 and the {context} tokens that the model was trained "
            f"for, but is {options.max_model_len}.",
        )
    max_model_len = options.max_model_len or context
    chosen = options.for_engine()
    if program.is_encoder:
        chosen.setdefault("max_num_batched_tokens", max(ENCODER_BATCH, max_model_len))
    return EngineConfig(
        max_model_len=max_model_len,
        prefix_cache=options.prefix_cache,
        prefix_store=options.prefix_store,
        schedule=options.schedule,
        batching=options.batching,
        encoder=program.is_encoder,
        speculative=None if program.is_encoder else options.speculative,
        **chosen,
    )


def check_prefix_sizes(
    least: int, prefix_memory: int | None, prefix_store_size: int | None
) -> None:
    """Refuse places for prefixes that not even the shortest has room in.

    Args:
        least: Bytes that one takes.
        prefix_memory: Bytes of memory for them; 0 or None: none.
        prefix_store_size: Bytes of a disk for them; None: nobody says.

    Raises:
        ParameterError: One is too small.
    """
    sizes = {"prefix_memory": prefix_memory or None, "prefix_store_size": prefix_store_size}
    for name, size in sizes.items():
        if size is not None and size < least:
            raise ParameterError(
                name,
                f"{name} must be at least {least} bytes, what one block of tokens takes, but is "
                f"{size}.",
            )


def _as_far_as_fits(program: Program, options: LoadOptions) -> LoadOptions:
    """Without what this model can't have."""
    asked = options.max_model_len
    if asked is not None:
        options = replace(options, max_model_len=min(asked, program.context_length))
    if not program.is_encoder:
        return options
    return replace(
        options,
        kv_memory=None,
        prefix_memory=None,
        prefix_store=None,
        prefix_store_size=None,
        batching="continuous",
        preferred_batch_size=None,
        max_queue_delay=None,
        first_token_timeout=None,
    )


def _refuse_what_encoders_lack(options: LoadOptions) -> None:
    if options.kv_memory is not None:
        raise ParameterError(
            "kv_memory", "This model keeps no keys and values; leave kv_memory out."
        )
    for name in ("prefix_memory", "prefix_store"):
        if getattr(options, name):
            raise ParameterError(name, f"This model reuses no prefixes; leave {name} out.")
    if options.batching != "continuous":
        raise ParameterError(
            "batching", "Embeddings are always batched dynamically; leave batching out."
        )
    if options.first_token_timeout is not None:
        raise ParameterError(
            "first_token_timeout",
            "This model generates no tokens; set request_timeout instead.",
        )
