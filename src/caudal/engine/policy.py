"""Who of the waiting comes next, and when the waiting may start at all."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import islice

from caudal.engine.config import Batching
from caudal.engine.sequence import Sequence

LOOKAHEAD = 64
"""Waiting requests whose cached prefixes are compared when one is chosen.

Bounds the work of an iteration whatever the queue's length; it is beyond what one iteration can
admit at the usual `max_num_seqs`.
"""

Rank = tuple[int, int, int]


def rank(seq: Sequence, now: float, ageing: float) -> Rank:
    """Effective priority, then arrival: the smaller, the more important.

    Args:
        seq: The sequence.
        now: The engine's clock.
        ageing: Seconds of waiting that improve a priority by one.
    """
    group = seq.group
    waited = now - group.submitted
    effective = group.request.priority - math.floor(waited / ageing)
    return (effective, group.arrival, seq.index)


class WaitingQueue:
    """Sequences that wait: the preempted ones in front, new ones behind.

    Args:
        ageing: Seconds of waiting that improve a priority by one. A request can be overtaken
            without end only by later ones of better effective priority, and its own improves
            as it waits while theirs starts at the bottom: so it cannot starve.
        order: `prefix` or `fcfs`; see `EngineConfig.schedule`.
    """

    def __init__(self, ageing: float, order: str) -> None:
        self._ageing = ageing
        self._by_prefix = order == "prefix"
        # By priority, each in order of arrival. Dictionaries serve as ordered sets.
        self._new: dict[int, dict[Sequence, None]] = {}
        self._preempted: dict[Sequence, None] = {}
        self._num_new = 0

    def __len__(self) -> int:
        return self._num_new + len(self._preempted)

    @property
    def num_new(self) -> int:
        """Sequences that have never run."""
        return self._num_new

    @property
    def num_preempted(self) -> int:
        """Sequences that have run and were preempted."""
        return len(self._preempted)

    @property
    def oldest(self) -> float | None:
        """When the new sequence that has waited longest was submitted."""
        firsts = (next(iter(bucket)) for bucket in self._new.values())
        return min((seq.group.submitted for seq in firsts), default=None)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence, by whether it was preempted."""
        if seq.preempted:
            self._preempted[seq] = None
        else:
            self._new.setdefault(seq.group.request.priority, {})[seq] = None
            self._num_new += 1

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        if seq.preempted:
            del self._preempted[seq]
            return
        priority = seq.group.request.priority
        bucket = self._new[priority]
        del bucket[seq]
        if not bucket:
            del self._new[priority]
        self._num_new -= 1

    def candidates(self, now: float, cached: Callable[[Sequence], int]) -> list[Sequence]:
        """Sequences in the order in which they should be admitted.

        Args:
            now: The engine's clock.
            cached: Tokens of a sequence that the prefix cache holds.
        """
        front = sorted(self._preempted, key=lambda seq: rank(seq, now, self._ageing))
        # Within a priority, earlier arrival means equal or better effective priority, so each
        # bucket is sorted already and the merge reads no further than it must.
        window: Iterator[Sequence] = heapq.merge(
            *self._new.values(), key=lambda seq: rank(seq, now, self._ageing)
        )
        behind = list(islice(window, LOOKAHEAD))
        if self._by_prefix and len(behind) > 1:
            behind.sort(key=lambda seq: (rank(seq, now, self._ageing)[0], -cached(seq)))  # stable
        return front + behind


class Admission:
    """When waiting requests may start. One class, three forms (`EngineConfig.batching`).

    `continuous` opens at every iteration (Orca, OSDI '22). `static` and `dynamic` run one batch
    from start to end: a batch is made up when nothing runs any more, of all that wait then up to
    `max_num_seqs`; `dynamic` first waits until `preferred_batch_size` requests are there or the
    oldest has waited `max_queue_delay` (as Triton's dynamic batcher).

    Args:
        form: Which of them.
        limit: Most sequences of a batch.
        preferred: `dynamic`: see `EngineConfig.preferred_batch_size`.
        delay: `dynamic`: see `EngineConfig.max_queue_delay`.
    """

    def __init__(self, form: Batching, *, limit: int, preferred: int, delay: float) -> None:
        self._form = form
        self._limit = limit
        self._preferred = min(preferred, limit)
        self._delay = delay
        self._quota = 0

    def quota(self, active: int, queue: WaitingQueue, now: float) -> int:
        """New requests that may start in this iteration, as far as this policy goes.

        Args:
            active: Sequences that have started and not ended.
            queue: The waiting.
            now: The engine's clock.
        """
        if self._form == "continuous":
            return queue.num_new
        if active == 0:
            due = self.seconds_until_due(queue, now) == 0
            self._quota = min(queue.num_new, self._limit) if due else 0
        return self._quota

    def admitted(self) -> None:
        """A new request has started."""
        if self._form != "continuous":
            self._quota -= 1

    def seconds_until_due(self, queue: WaitingQueue, now: float) -> float:
        """How long the waiting must be left to wait while nothing runs."""
        oldest = queue.oldest
        if self._form != "dynamic" or oldest is None or queue.num_new >= self._preferred:
            return 0.0
        return max(0.0, oldest + self._delay - now)
