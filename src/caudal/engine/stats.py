"""What an engine has done and holds, as one immutable snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caudal.engine.drafting.counts import DraftCounts
from caudal.engine.kv import BlockPool
from caudal.engine.request import FinishReason
from caudal.engine.tiers.tier_stats import TierStats


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How much of a pool, or of the slots, is in use.

    Attributes:
        total: What there is; the next three add up to it.
        free: What holds nothing.
        used: What running sequences have.
        cached: What only the prefix cache holds, given up on demand.
    """

    total: int
    free: int
    used: int
    cached: int

    @classmethod
    def of(cls, pool: BlockPool) -> PoolUse:
        """That of a pool now."""
        return cls(
            total=pool.num_blocks, free=pool.num_free, used=pool.num_used, cached=pool.num_cached
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot, taken between iterations. Counters only ever grow.

    Attributes:
        waiting: Sequences in the queue, preempted ones included.
        running: Sequences that run.
        blocks_total: KV blocks in the pool; the next three add up to it.
        blocks_free: Blocks that hold nothing.
        blocks_used: Blocks of running sequences.
        blocks_cached: Blocks that only the prefix cache holds, given up on demand.
        windows: The same of the pools for windows, by window.
        slots: The same of the slots for recurrent states; None where there are none.
        prompt_tokens: Counter: prompt tokens of requests that have started.
        cache_hit_tokens: Counter: those of them taken from the prefix cache.
        lost_tokens: Counter: those of them that were cached behind other tokens, as the prompt had
            broken its own prefix; by where, each of `lost_prefixes.POSITIONS`.
        generated_tokens: Counter: tokens generated.
        preemptions: Counter: sequences that had to give up their blocks.
        iterations: Counter: batches executed.
        batched_tokens: Counter: tokens computed.
        executor_failures: Counter: batches that the executor could not run.
        finished: Counter: sequences ended, by reason; every reason is present.
        last_batch_sequences: Sequences of the latest batch.
        last_batch_tokens: Tokens of the latest batch.
        last_batch_seconds: How long it took to execute.
        drafts: What has become of guesses.
        adapters: Requests that live, by the name of the adapter that they use; every one that is
            loaded is present.
        tiers: What lies behind the pools; None: nothing.
    """

    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    blocks_used: int
    blocks_cached: int
    windows: Mapping[int, PoolUse]
    slots: PoolUse | None
    prompt_tokens: int
    cache_hit_tokens: int
    lost_tokens: Mapping[int, int]
    generated_tokens: int
    preemptions: int
    iterations: int
    batched_tokens: int
    executor_failures: int
    finished: Mapping[FinishReason, int]
    last_batch_sequences: int
    last_batch_tokens: int
    last_batch_seconds: float
    drafts: DraftCounts = field(default_factory=DraftCounts)
    adapters: Mapping[str, int] = field(default_factory=dict)
    tiers: TierStats | None = None
