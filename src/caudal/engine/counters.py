"""What an engine counts as it goes, and what that says about how long a full queue takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from caudal.engine.histogram import Histogram, HistogramCounts
from caudal.engine.request import FinishReason

MAX_RETRY_AFTER = 60
"""Seconds; the longest wait suggested to a client that finds the queue full."""

ITERATION_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
BATCH_SEQUENCES = tuple(2**power for power in range(9))
BATCH_TOKENS = tuple(2**power for power in range(14))
"""Bounds of what batches are counted by."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What batches have been like.

    Attributes:
        seconds: What they took to execute.
        sequences: How many sequences they had.
        tokens: How many tokens.
    """

    seconds: HistogramCounts
    sequences: HistogramCounts
    tokens: HistogramCounts


class Counters:
    """Sums since `started_at`, on the engine's clock; see `EngineStats` for the names."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self.finished = dict.fromkeys(FinishReason, 0)
        self.generated_tokens = 0
        self.iterations = 0
        self.batched_tokens = 0
        self._batch_seconds = Histogram(ITERATION_SECONDS)
        self._batch_sequences = Histogram(BATCH_SEQUENCES)
        self._batch_tokens = Histogram(BATCH_TOKENS)
        self.failures = 0
        self.last_batch = (0, 0, 0.0)  # sequences, tokens, seconds

    def count_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        """A batch has been executed."""
        self.iterations += 1
        self.batched_tokens += tokens
        self._batch_seconds.observe(seconds)
        self._batch_sequences.observe(sequences)
        self._batch_tokens.observe(tokens)
        self.last_batch = (sequences, tokens, seconds)

    @property
    def batches(self) -> BatchCounts:
        """What batches have been like. Safe to take from other threads."""
        return BatchCounts(
            self._batch_seconds.counts, self._batch_sequences.counts, self._batch_tokens.counts
        )

    def retry_after(self, max_queue: int, now: float) -> int:
        """Seconds in which half of a full queue is likely to be served."""
        ended = sum(self.finished.values())
        if not ended:
            return 1
        each = (now - self._started_at) / ended
        return min(MAX_RETRY_AFTER, max(1, math.ceil(each * max_queue / 2)))


@dataclass(slots=True)
class CacheCounts:
    """What prompts have had from the prefix cache.

    Attributes:
        prompt_tokens: Tokens of prompts of requests that have started.
        hit_tokens: Those of them that were cached.
        hits: Requests of which any was.
        misses: Those of which none was.
    """

    prompt_tokens: int = 0
    hit_tokens: int = 0
    hits: int = 0
    misses: int = 0

    def add(self, prompt: int, cached: int) -> None:
        """A request starts, with so many tokens, of which some are cached."""
        self.prompt_tokens += prompt
        self.hit_tokens += cached
        if cached:
            self.hits += 1
        else:
            self.misses += 1
