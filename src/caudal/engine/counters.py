"""What an engine counts as it goes, and what that says about how long a full queue takes."""

from __future__ import annotations

import math

from caudal.engine.request import FinishReason

MAX_RETRY_AFTER = 60
"""Seconds; the longest wait suggested to a client that finds the queue full."""


class Counters:
    """Sums since `started_at`, on the engine's clock; see `EngineStats` for the names."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self.finished = dict.fromkeys(FinishReason, 0)
        self.generated_tokens = 0
        self.iterations = 0
        self.batched_tokens = 0
        self.failures = 0
        self.last_batch = (0, 0, 0.0)  # sequences, tokens, seconds

    def count_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        """A batch has been executed."""
        self.iterations += 1
        self.batched_tokens += tokens
        self.last_batch = (sequences, tokens, seconds)

    def retry_after(self, max_queue: int, now: float) -> int:
        """Seconds in which half of a full queue is likely to be served."""
        ended = sum(self.finished.values())
        if not ended:
            return 1
        each = (now - self._started_at) / ended
        return min(MAX_RETRY_AFTER, max(1, math.ceil(each * max_queue / 2)))
