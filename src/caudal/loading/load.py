"""From a model's name to something that can run: file, tokenizer, template, program, executor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from caudal.backends.base import Executor
from caudal.backends.native.executor import (
    BLOCK_SIZE,
    BYTES_PER_ELEMENT,
    Activations,
    KVType,
    NativeExecutor,
    NativeOptions,
)
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.config import Batching, EngineConfig, ScheduleOrder
from caudal.engine.engine import Engine
from caudal.errors import ParameterError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.loading.files import open_model
from caudal.machine import available_memory, total_memory, usable_processors
from caudal.models.program import Program, Task, kv_bytes_per_token
from caudal.service.embedding import EmbeddingModel
from caudal.store import Store

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

ENCODER_BATCH = 512
"""Tokens that an encoder computes at once by default: enough to make good use of a pass over the
weights, few enough that those who come meanwhile don't wait long."""

DEFAULT_KV_SHARE = 4
"""By default the KV pool may take one part in this many of the available memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What a user may choose about how a model runs. None takes the default described.

    Attributes:
        max_model_len: Most tokens of a sequence; default: what the model was trained for, or what
            fits in the KV pool.
        max_num_seqs: See `EngineConfig`.
        max_num_batched_tokens: See `EngineConfig`.
        kv_memory: Bytes for the KV pool; default: a quarter of the available memory.
        kv_type: Element type of keys and values.
        activations: See `NativeOptions`.
        threads: Threads that compute; default: the processors this process may use.
        prefix_cache: See `EngineConfig`.
        schedule: See `EngineConfig`.
        batching: See `EngineConfig`.
        max_queue: See `EngineConfig`.
        embedding_batch_size: See `EngineConfig`.
        embedding_queue_delay: See `EngineConfig`.
        chat_template: A Jinja template to use instead of the model's.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_memory: int | None = None
    kv_type: KVType = "f16"
    activations: Activations = "auto"
    threads: int | None = None
    prefix_cache: bool = True
    schedule: ScheduleOrder = "prefix"
    batching: Batching = "continuous"
    max_queue: int | None = None
    embedding_batch_size: int | None = None
    embedding_queue_delay: float | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        """Check kinds; ranges are checked where they are known.

        Raises:
            ParameterError: Names the option.
        """
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_memory",
            "threads",
            "max_queue",
            "embedding_batch_size",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ParameterError(name, f"{name} must be an integer, but is {value!r}.")
        delay = self.embedding_queue_delay
        if delay is not None and (isinstance(delay, bool) or not isinstance(delay, int | float)):
            raise ParameterError(
                "embedding_queue_delay",
                f"embedding_queue_delay must be a number of seconds, but is {delay!r}.",
            )
        if not isinstance(self.chat_template, str | None):
            kind = type(self.chat_template).__name__
            raise ParameterError("chat_template", f"chat_template must be text, not {kind}.")
        for name, allowed in (
            ("kv_type", get_args(KVType)),
            ("activations", get_args(Activations)),
            ("schedule", get_args(ScheduleOrder)),
            ("batching", get_args(Batching)),
            ("prefix_cache", (True, False)),
        ):
            if getattr(self, name) not in allowed:
                options = " or ".join(map(repr, allowed))
                raise ParameterError(
                    name, f"{name} must be {options}, not {getattr(self, name)!r}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: As the user gave it.
        path: The file, or the first of a split one.
        tokenizer: Text to ids and back.
        chat_template: Conversations to ids.
        grammars: Compiles what an answer must look like.
        program: The computation.
        executor: Runs it.
        engine_config: Limits for the engine.
        facts: What was loaded and what runs it, in the order worth showing.
    """

    name: str
    path: Path
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: GrammarCompiler
    program: Program
    executor: Executor
    engine_config: EngineConfig
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> frozenset[Task]:
        """What requests may ask of the model."""
        return self.program.tasks

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.engine_config.max_model_len

    def embedding_model(self, engine: AsyncEngine) -> EmbeddingModel:
        """What makes embeddings with this model, on its engine."""
        program = self.program
        return EmbeddingModel(engine, self.tokenizer, program.pooling, program.state.width)

    def start_engine(self) -> AsyncEngine:
        """Start the one engine that runs this model; shutting it down closes the executor."""
        return AsyncEngine(Engine(self.executor, self.engine_config, self.tokenizer.eos_ids))


def parse_size(text: str) -> int:
    """Bytes of a size such as `512M`, `2GiB` or `1.5g`; units are powers of 1024.

    Raises:
        ParameterError: The text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            "kv_memory", f"{text!r} is not a size; write a number and a unit, e.g. 512M or 2GiB."
        )
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def load_model(
    name: str,
    options: LoadOptions,
    *,
    store: Store | None = None,
    progress: Callable[[float], None] | None = None,
) -> LoadedModel:
    """Load a model by name or path. It must be in the store already; nothing is fetched.

    Args:
        name: A name that the store resolves, or the path of a GGUF file or a model's folder.
        options: The user's choices.
        store: Where models are kept; default: the user's store.
        progress: Called with the share of weights packed so far, 0 to 1.

    Raises:
        ModelNotFoundError: There is no such model.
        ModelLoadError: The file can't be used.
        ParameterError: An option makes no sense, or doesn't fit this model.
    """
    stored = (store or Store()).resolve(name)
    with open_model(stored, chat_template=options.chat_template) as files:
        program = files.program
        config, num_blocks = plan_engine(program, options)
        threads = options.threads if options.threads is not None else usable_processors()
        if not 1 <= threads <= 256:
            raise ParameterError("threads", f"threads must be 1 to 256, but is {threads}.")
        executor = NativeExecutor(
            files.weights,
            program,
            NativeOptions(
                num_blocks=num_blocks,
                max_batch_tokens=config.max_num_batched_tokens,
                threads=threads,
                kv_type=options.kv_type,
                activations=options.activations,
            ),
            progress,
        )
        facts = {
            "model": name,
            "architecture": files.weights.architecture,
            "tasks": ", ".join(sorted(program.tasks)),
            "tensors": files.tensor_mix,
            "tokenizer": f"{files.tokenizer_kind}, {files.tokenizer.vocab_size} tokens",
            "embedding": embedding_kind(program),
            "max_model_len": str(config.max_model_len),
            "context_length": str(program.context_length),
            **executor.info.facts,
        }
        if not program.is_encoder:
            facts |= {
                "chat_template": files.chat_template.origin,
                "kv_tokens": str(num_blocks * BLOCK_SIZE),
                "kv_sequences": f"{num_blocks * BLOCK_SIZE / config.max_model_len:.1f}",
                "kv_bytes": str(num_blocks * BLOCK_SIZE * executor.info.bytes_per_token),
            }
    return LoadedModel(
        name=name,
        path=stored.path,
        tokenizer=files.tokenizer,
        chat_template=files.chat_template,
        grammars=GrammarCompiler(files.tokenizer),
        program=program,
        executor=executor,
        engine_config=config,
        facts=facts,
    )


def plan_engine(program: Program, options: LoadOptions) -> tuple[EngineConfig, int]:
    """The engine's limits for a model, and the blocks of its KV pool.

    Raises:
        ParameterError: An option makes no sense, or doesn't fit this model.
    """
    limits: dict[str, Any] = {
        limit: value
        for limit in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_queue",
            "embedding_batch_size",
            "embedding_queue_delay",
        )
        if (value := getattr(options, limit)) is not None
    }
    if program.is_encoder:
        if options.kv_memory is not None:
            raise ParameterError(
                "kv_memory", "This model keeps no keys and values; leave kv_memory out."
            )
        if options.batching != "continuous":
            raise ParameterError(
                "batching", "Embeddings are always batched dynamically; leave batching out."
            )
        max_model_len = _context(program, options) or program.context_length
        tokens = limits.setdefault("max_num_batched_tokens", max(ENCODER_BATCH, max_model_len))
        config = EngineConfig(
            max_model_len=max_model_len, encoder=True, schedule=options.schedule, **limits
        )
        # Only a batch's own: so many tokens, and a block more for each sequence.
        return config, tokens // BLOCK_SIZE + 2 * config.max_num_seqs
    num_blocks, max_model_len = size_kv_pool(program, options)
    config = EngineConfig(
        max_model_len=max_model_len,
        prefix_cache=options.prefix_cache,
        schedule=options.schedule,
        batching=options.batching,
        **limits,
    )
    return config, num_blocks


def _context(program: Program, options: LoadOptions) -> int | None:
    """The longest sequence that the user asks for, checked."""
    wanted = options.max_model_len
    context = program.context_length
    if wanted is not None and not 2 <= wanted <= context:
        raise ParameterError(
            "max_model_len",
            f"max_model_len must be between 2 and the {context} tokens that the model was trained "
            f"for, but is {wanted}.",
        )
    return wanted


def size_kv_pool(program: Program, options: LoadOptions) -> tuple[int, int]:
    """Blocks of the KV pool, and the longest sequence.

    The pool holds one sequence of `max_model_len` at least: where the default budget is too small
    for the model's whole context, the context shrinks; where the user set both, that is an error.

    Raises:
        ParameterError: `kv_memory` or `max_model_len` can't be had.
    """
    wanted = _context(program, options)
    context = program.context_length
    block_bytes = BLOCK_SIZE * kv_bytes_per_token(
        program.kv_layers, BYTES_PER_ELEMENT[options.kv_type]
    )
    budget = options.kv_memory
    if budget is None:
        budget = available_memory() // DEFAULT_KV_SHARE
    elif not 0 <= budget <= total_memory():
        raise ParameterError(
            "kv_memory",
            f"kv_memory is {budget / 2**30:.1f} GiB, but this machine has only "
            f"{total_memory() / 2**30:.1f} GiB of memory.",
        )
    num_blocks = budget // block_bytes
    needed = -(-(wanted or 2) // BLOCK_SIZE)
    if num_blocks < needed:
        raise ParameterError(
            "kv_memory",
            f"The KV pool of {budget / 2**20:.0f} MiB holds {num_blocks * BLOCK_SIZE} tokens, but "
            f"one sequence of {wanted or 2} needs {needed * block_bytes / 2**20:.1f} MiB. Raise "
            "kv_memory or lower max_model_len.",
        )
    return num_blocks, wanted or min(context, num_blocks * BLOCK_SIZE)


def embedding_kind(program: Program) -> str:
    """How a model makes embeddings, e.g. `mean, normalised, 384 dimensions`."""
    pooling = program.pooling
    if pooling.scores_pairs:
        return "scores pairs"
    normalised = ", normalised" if pooling.normalize else ""
    return f"{pooling.kind}{normalised}, {program.state.width} dimensions"
