"""What a model's service says of itself, once and for all: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.service.facts import ServedFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits and policies of a service.

    Attributes:
        max_num_seqs: Most sequences that run at once.
        max_queue: Most requests that wait; one more is refused.
        max_num_batched_tokens: Most tokens computed in one iteration.
        schedule: The order in which requests that wait are admitted: `prefix` or `fifo`.
        prefix_cache: Whether computed prefixes are kept.
        prefix_memory: Bytes of memory for those that the pools had to give up.
        prefix_store: The directory for those; None: there is none.
        prefix_store_size: Most bytes that it may take; 0 without one.
        speculative: What guesses tokens, as `--speculative` says it; None: nothing does.
        num_speculative_tokens: Most tokens guessed at once; 0 where nothing guesses.
        block_size: Tokens of a block of the pool.
        num_blocks: Blocks that the pool has.
    """

    max_num_seqs: int
    max_queue: int
    max_num_batched_tokens: int
    schedule: str
    prefix_cache: bool
    block_size: int
    num_blocks: int
    prefix_memory: int = 0
    prefix_store: str | None = None
    prefix_store_size: int = 0
    speculative: str | None = None
    num_speculative_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo:
    """A model's chat template.

    Attributes:
        sources: The source, and that for requests with tools where there is another.
        variables: What it reads that makes a difference; empty for a model that doesn't chat.
        can_think: Whether the model thinks before it answers, as far as the template shows.
        is_default: The model came without one, and this was chosen for it.
        fills_gaps: Whether the model can write what is missing between two texts, by its template
            or its vocabulary.
    """

    sources: Sequence[str]
    variables: frozenset[str]
    can_think: bool
    is_default: bool
    fills_gaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """An adapter that requests may have a model answer with.

    Attributes:
        name: What requests call it.
        number: Its number, never given twice while the model runs.
        path: The file or folder that it is from.
        created: Unix time of loading, in seconds.
        rank: The largest rank of its changes.
        bytes: Memory that it takes.
    """

    name: str
    number: int
    path: str
    created: int
    rank: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """A served model.

    Attributes:
        names: Names that requests may use; its own first.
        created: Unix time of loading, in seconds.
        facts: What was loaded and what runs it.
        fingerprint: Changes when anything changes that may change answers.
        limits: Its limits and policies.
        template: Its chat template.
        bos_token: The control token that begins texts, by its name; empty where there is none.
        eos_token: The one that ends them.
    """

    names: Sequence[str]
    created: int
    facts: ServedFacts
    fingerprint: str
    limits: ServiceLimits
    template: TemplateInfo
    bos_token: str
    eos_token: str
