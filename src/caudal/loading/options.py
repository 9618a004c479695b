"""What a user may choose about how a model runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from caudal.backends.backend import BackendOptions
from caudal.backends.registry import find_backend
from caudal.engine.config import Batching, ScheduleOrder
from caudal.engine.drafting.speculation import LOOK_UP, Speculation
from caudal.errors import ParameterError

GenerationConfig = Literal["auto", "none"]

ENGINE_OPTIONS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "ageing",
    "preferred_batch_size",
    "max_queue_delay",
    "max_queue",
    "first_token_timeout",
    "request_timeout",
    "embedding_batch_size",
    "embedding_queue_delay",
    "prefix_memory",
    "prefix_store_size",
)
"""What the engine has a default for, and calls the same."""

_SIZE = re.compile(r"(?P<number>\d{1,30}(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)
_MOST = 1 << 62
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions(BackendOptions):
    """What a user may choose about how a model runs. None takes the default described.

    Attributes:
        backend: What runs it, by its name in `caudal.backends.registry`.
        max_model_len: Most tokens of a sequence; default: what the model was trained for, or what
            fits in the KV pool.
        max_num_seqs: See `EngineConfig`.
        max_num_batched_tokens: See `EngineConfig`.
        kv_memory: Bytes for the KV pool; default: a part of the available memory.
        prefix_cache: See `EngineConfig`.
        prefix_memory: See `EngineConfig`.
        prefix_store: See `EngineConfig`.
        prefix_store_size: See `EngineConfig`; goes with `prefix_store`.
        schedule: See `EngineConfig`.
        ageing: See `EngineConfig`.
        batching: See `EngineConfig`.
        preferred_batch_size: See `EngineConfig`; goes with `batching` `dynamic`, and only with it.
        max_queue_delay: Likewise.
        max_queue: See `EngineConfig`.
        first_token_timeout: See `EngineConfig`.
        request_timeout: See `EngineConfig`.
        embedding_batch_size: See `EngineConfig`.
        embedding_queue_delay: See `EngineConfig`.
        speculative: See `EngineConfig`; by default tokens are looked up.
        packed_size: Most bytes of packed weights on the disk, those of all models together; 0 keeps
            none. Default: half of what is free there.
        chat_template: A template, Jinja's or Go's, to use instead of the model's.
        generation_config: `auto`: what the model's maker recommends for sampling holds for requests
            that don't say otherwise; `none`: it doesn't.
        for_all: These are meant for whatever model is loaded: what one of them can't have, for it
            was trained for less or generates nothing, is left out for it and not refused.
    """

    backend: str = "native"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_memory: int | None = None
    prefix_cache: bool = True
    prefix_memory: int | None = None
    prefix_store: str | None = None
    prefix_store_size: int | None = None
    schedule: ScheduleOrder = "prefix"
    ageing: float | None = None
    batching: Batching = "continuous"
    preferred_batch_size: int | None = None
    max_queue_delay: float | None = None
    max_queue: int | None = None
    first_token_timeout: float | None = None
    request_timeout: float | None = None
    embedding_batch_size: int | None = None
    embedding_queue_delay: float | None = None
    speculative: Speculation | None = LOOK_UP
    packed_size: int | None = None
    chat_template: str | None = None
    generation_config: GenerationConfig = "auto"
    for_all: bool = False

    def __post_init__(self) -> None:
        """Check what doesn't depend on a model.

        Raises:
            ParameterError: Names the option.
        """
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_memory",
            "preferred_batch_size",
            "max_queue",
            "embedding_batch_size",
            "packed_size",
            "prefix_memory",
            "prefix_store_size",
            "memory",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ParameterError(name, f"{name} must be an integer, but is {value!r}.")
        for name in (
            "ageing",
            "max_queue_delay",
            "first_token_timeout",
            "request_timeout",
            "embedding_queue_delay",
        ):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise ParameterError(name, f"{name} must be a number of seconds, but is {value!r}.")
        for name in ("preferred_batch_size", "max_queue_delay"):
            if self.batching != "dynamic" and getattr(self, name) is not None:
                raise ParameterError(name, f"{name} goes with batching dynamic only.")
        if not isinstance(self.prefix_store, str | None):
            kind = type(self.prefix_store).__name__
            raise ParameterError("prefix_store", f"prefix_store must be a path, not {kind}.")
        if self.prefix_store == "":  # which would be the folder that the process runs in
            raise ParameterError("prefix_store", "prefix_store must be a path, but is empty.")
        if self.prefix_store_size is not None and self.prefix_store is None:
            raise ParameterError("prefix_store_size", "prefix_store_size goes with prefix_store.")
        for name in ("prefix_memory", "prefix_store"):
            if getattr(self, name) and not self.prefix_cache:
                raise ParameterError(name, f"{name} goes with a prefix cache only.")
        if not isinstance(self.chat_template, str | None):
            kind = type(self.chat_template).__name__
            raise ParameterError("chat_template", f"chat_template must be text, not {kind}.")
        for name, allowed in (
            ("schedule", get_args(ScheduleOrder)),
            ("batching", get_args(Batching)),
            ("prefix_cache", (True, False)),
            ("generation_config", get_args(GenerationConfig)),
        ):
            if getattr(self, name) not in allowed:
                options = " or ".join(map(repr, allowed))
                raise ParameterError(
                    name, f"{name} must be {options}, not {getattr(self, name)!r}."
                )
        if not isinstance(self.speculative, Speculation | None):
            raise ParameterError(
                "speculative", f"speculative must be a Speculation, not {self.speculative!r:.80}."
            )
        find_backend(self.backend).check_options(self)

    def for_engine(self) -> dict[str, Any]:
        """What is chosen of `ENGINE_OPTIONS`, by name."""
        given = {name: getattr(self, name) for name in ENGINE_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}


def parse_size(text: str) -> int:
    """Bytes of a size such as `512M`, `2GiB` or `1.5g`; units are powers of 1024.

    Raises:
        ParameterError: The text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            "kv_memory",
            f"{text!r:.80} is not a size; write a number and a unit, e.g. 512M or 2GiB.",
        )
    size = int(float(match["number"]) * _UNITS[match["unit"].upper()])
    if size >= _MOST:  # which no message to a worker has room for
        raise ParameterError("kv_memory", f"{text!r:.80} is more than any machine has.")
    return size
