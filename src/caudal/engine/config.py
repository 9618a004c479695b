"""The engine's limits and policies, checked once when they are set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from caudal.engine.checkpoints import CHECKPOINTS, Checkpoints
from caudal.engine.drafting.speculation import Speculation
from caudal.errors import ParameterError

MOST_SEQS = 4096
MOST_TOKENS = 65536
"""The executor sets memory aside for every token of an iteration, used or not."""
MOST_DELAY = 3600
"""Seconds that a batch may wait for more; the clock that waits for it has an end too."""

STAGING_BYTES = 64 << 20
"""Memory for prefixes on their way to the disk."""
AHEAD_BYTES = 64 << 20
"""Memory for prefixes that were read and aren't in the pools yet."""

ScheduleOrder = Literal["prefix", "fcfs"]
Batching = Literal["continuous", "dynamic", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits and policies of one engine. Names are vLLM's where the concept is the same.

    Attributes:
        max_model_len: Most tokens of one sequence, prompt and answer together.
        max_num_seqs: Most sequences that run at once. With 32, reading the weights is well
            amortised on a CPU: more sequences add latency and little throughput.
        max_num_batched_tokens: Most tokens computed in one iteration; running sequences take one
            each and prefill gets the rest, so it must exceed `max_num_seqs`. Smaller values keep
            streams smooth while a long prompt comes in, larger ones read the weights less often.
        jump_ahead: Append the tokens that a grammar forces instead of generating each; off only to
            measure what that brings.
        prefix_cache: Keep the KV of prompts and answers for requests that start the same.
        schedule: `prefix` admits waiting requests by priority, then by what their tenants have had,
            then longest cached prefix; `fcfs` the same, but at last by arrival.
        ageing: Seconds of waiting that improve a request's priority by one, so nobody starves.
        batching: When waiting requests may start: `continuous` at every iteration, `static` when
            the previous batch has ended, `dynamic` also waits for a batch worth starting.
        preferred_batch_size: `dynamic`: start a batch as soon as so many requests wait, or as
            many as `max_num_seqs`.
        max_queue_delay: `dynamic`: start it anyway once the oldest has waited so many seconds.
        max_queue: Most requests that wait while as many run as may; one more is rejected, unless
            it is of a tenant that has less than its share of them.
        first_token_timeout: Seconds for the first token of a request that sets none itself.
        request_timeout: Seconds for the whole of a request that sets none itself.
        encoder: The model attends both ways, so that a prompt is computed whole, in one iteration,
            and nothing can be reused; it generates nothing, and takes pooling requests only.
        embedding_batch_size: Pooling requests have a queue of their own, batched dynamically: a
            batch starts as soon as so many wait.
        embedding_queue_delay: It starts anyway once the oldest has waited so many seconds.
        checkpoints: Where prompts can be taken up again by models with windows or states.
        speculative: How tokens are guessed, to be computed several at once; None: not at all.
        prefix_memory: Bytes of memory beyond the KV pool for prefixes that it had to give up.
        prefix_store: A directory for those, which outlives the process; None: there is none.
        prefix_store_size: Most bytes that it may take; None: half of what would be free without
            it.

    Raises:
        ParameterError: Names the field and what it may be.
    """

    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    jump_ahead: bool = True
    prefix_cache: bool = True
    schedule: ScheduleOrder = "prefix"
    ageing: float = 5.0
    batching: Batching = "continuous"
    preferred_batch_size: int = 8
    max_queue_delay: float = 0.05
    max_queue: int = 512
    first_token_timeout: float | None = None
    request_timeout: float | None = None
    encoder: bool = False
    embedding_batch_size: int = 8
    embedding_queue_delay: float = 0.002
    checkpoints: Checkpoints = CHECKPOINTS
    speculative: Speculation | None = None
    prefix_memory: int = 0
    prefix_store: str | None = None
    prefix_store_size: int | None = None

    @property
    def keeps_prefixes(self) -> bool:
        """Whether there is anything behind the pools that they are kept in."""
        tiers = self.prefix_memory > 0 or self.prefix_store is not None
        return tiers and self.prefix_cache and not self.encoder

    @property
    def prefix_bytes(self) -> int:
        """Bytes of memory that those take at most, with those on their way to the disk."""
        if not self.keeps_prefixes:
            return 0
        return tier_bytes(self.prefix_memory, has_store=self.prefix_store is not None)

    def __post_init__(self) -> None:
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        for name, most in (("max_num_seqs", MOST_SEQS), ("max_num_batched_tokens", MOST_TOKENS)):
            if getattr(self, name) > most:
                raise ParameterError(
                    name, f"{name} must be at most {most}, but is {getattr(self, name)}."
                )
        _at_least("max_queue", self.max_queue, 0)
        _at_least("prefix_memory", self.prefix_memory, 0)
        if self.prefix_store_size is not None:
            _at_least("prefix_store_size", self.prefix_store_size, 0)
        _at_least("preferred_batch_size", self.preferred_batch_size, 1)
        _at_least("embedding_batch_size", self.embedding_batch_size, 1)
        if self.encoder and self.max_num_batched_tokens < self.max_model_len:
            raise ParameterError(
                "max_num_batched_tokens",
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be less than "
                f"max_model_len ({self.max_model_len}): this model reads each input as a whole.",
            )
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ParameterError(
                "max_num_batched_tokens",
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed max_num_seqs "
                f"({self.max_num_seqs}): every running sequence takes one token of an iteration.",
            )
        _one_of("schedule", self.schedule, get_args(ScheduleOrder))
        _one_of("batching", self.batching, get_args(Batching))
        _positive("ageing", self.ageing)
        for name in ("max_queue_delay", "embedding_queue_delay"):
            seconds = getattr(self, name)
            if not 0 <= seconds <= MOST_DELAY:
                raise ParameterError(
                    name, f"{name} must be 0 to {MOST_DELAY} seconds, but is {seconds}."
                )
        for name in ("first_token_timeout", "request_timeout"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))


def tier_bytes(prefix_memory: int, *, has_store: bool) -> int:
    """Bytes of memory that places for prefixes beyond the pools take at most."""
    if not has_store:
        return prefix_memory
    return max(prefix_memory, STAGING_BYTES) + AHEAD_BYTES


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ParameterError(name, f"{name} must be an integer of at least {low}, but is {value}.")


def _positive(name: str, seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise ParameterError(name, f"{name} must be more than 0 seconds, but is {seconds}.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ParameterError(name, f"{name} must be {' or '.join(allowed)}, but is {value!r}.")
