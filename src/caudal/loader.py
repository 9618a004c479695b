"""From a model's name to something that can run: file, tokenizer, template, program, executor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from caudal.backends.base import Executor
from caudal.backends.native import (
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
from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.gguf import GGUFFile
from caudal.formats.tokenizer import Tokenizer
from caudal.grammar_compiler import GrammarCompiler
from caudal.machine import available_memory, total_memory, usable_processors
from caudal.models import build_program
from caudal.models.program import Program, kv_bytes_per_token
from caudal.store import Store

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

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
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.engine_config.max_model_len

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
        name: A name that the store resolves, or the path of a GGUF file.
        options: The user's choices.
        store: Where models are kept; default: the user's store.
        progress: Called with the share of weights packed so far, 0 to 1.

    Raises:
        ModelNotFoundError: There is no such model.
        ModelLoadError: The file can't be used.
        ParameterError: An option makes no sense, or doesn't fit this model.
    """
    path = (store or Store()).resolve(name).path
    with GGUFFile.open(path) as file:
        program = build_program(file)
        tokenizer = Tokenizer.from_gguf(file)
        # More rows than tokens would let the model choose ids that stand for no text.
        if tokenizer.vocab_size != program.vocab_size:
            raise ModelLoadError(
                str(path),
                f"tokenizer.ggml.tokens has {tokenizer.vocab_size} tokens, but token_embd.weight "
                f"has {program.vocab_size} rows; they must be equal",
            )
        chat_template = ChatTemplate.from_gguf(file, tokenizer)
        num_blocks, max_model_len = size_kv_pool(program, options)
        limits = {
            limit: value
            for limit in ("max_num_seqs", "max_num_batched_tokens", "max_queue")
            if (value := getattr(options, limit)) is not None
        }
        config = EngineConfig(
            max_model_len=max_model_len,
            prefix_cache=options.prefix_cache,
            schedule=options.schedule,
            batching=options.batching,
            **limits,
        )
        threads = options.threads if options.threads is not None else usable_processors()
        if not 1 <= threads <= 256:
            raise ParameterError("threads", f"threads must be 1 to 256, but is {threads}.")
        executor = NativeExecutor(
            file,
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
            "architecture": file.architecture,
            "tensors": _tensor_mix(file),
            "tokenizer": _tokenizer_kind(file),
            "chat_template": chat_template.origin,
            "max_model_len": str(max_model_len),
            "context_length": str(program.context_length),
            "kv_tokens": str(num_blocks * BLOCK_SIZE),
            "kv_sequences": f"{num_blocks * BLOCK_SIZE / max_model_len:.1f}",
            "kv_bytes": str(num_blocks * BLOCK_SIZE * executor.info.bytes_per_token),
            **executor.info.facts,
        }
    return LoadedModel(
        name=name,
        path=path,
        tokenizer=tokenizer,
        chat_template=chat_template,
        grammars=GrammarCompiler(tokenizer),
        program=program,
        executor=executor,
        engine_config=config,
        facts=facts,
    )


def size_kv_pool(program: Program, options: LoadOptions) -> tuple[int, int]:
    """Blocks of the KV pool, and the longest sequence.

    The pool holds one sequence of `max_model_len` at least: where the default budget is too small
    for the model's whole context, the context shrinks; where the user set both, that is an error.

    Raises:
        ParameterError: `kv_memory` or `max_model_len` can't be had.
    """
    context = program.context_length
    wanted = options.max_model_len
    if wanted is not None and not 2 <= wanted <= context:
        raise ParameterError(
            "max_model_len",
            f"max_model_len must be between 2 and the {context} tokens that the model was trained "
            f"for, but is {wanted}.",
        )
    block_bytes = BLOCK_SIZE * kv_bytes_per_token(
        program.kv_layers, BYTES_PER_ELEMENT[options.kv_type]
    )
    budget = options.kv_memory
    if budget is None:
        budget = available_memory() // DEFAULT_KV_SHARE
    elif budget > total_memory():
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


def _tensor_mix(file: GGUFFile) -> str:
    """Matrices by type, most frequent first, e.g. `Q4_1 x210, Q8_0 x1`."""
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    counts = Counter(tensor.type.name for tensor in matrices)
    return ", ".join(f"{name} x{count}" for name, count in counts.most_common())


def _tokenizer_kind(file: GGUFFile) -> str:
    """The vocabulary's family and pre-tokenizer, e.g. `gpt2 (smollm), 49152 tokens`."""
    family = file.get_str("tokenizer.ggml.model")
    pre = file.get_str("tokenizer.ggml.pre", "default")
    return f"{family} ({pre}), {len(file.get_strings('tokenizer.ggml.tokens'))} tokens"
