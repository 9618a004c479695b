"""Who of the waiting comes next, and when the waiting may start at all."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice

from caudal.engine.config import Batching
from caudal.engine.sequence import Sequence
from caudal.engine.tenants import Account, Tenants

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


def least_important(running: SequenceOf[Sequence], now: float, ageing: float) -> Sequence:
    """Who gives way when memory has run out.

    Of the least urgent, one of the tenant that holds the most memory by weight; of that tenant's,
    the last by `rank`.

    Args:
        running: All that run, at least one.
        now: The engine's clock.
        ageing: See `rank`.
    """
    first = running[0].group.request.tenant
    if all(seq.group.request.tenant == first for seq in running):
        return max(running, key=lambda seq: rank(seq, now, ageing))
    held: dict[str | None, float] = {}
    for seq in running:
        request = seq.group.request
        held[request.tenant] = held.get(request.tenant, 0.0) + seq.memory.length / request.weight

    def importance(seq: Sequence) -> tuple[int, float, Rank]:
        request = seq.group.request
        return (request.priority, held[request.tenant], rank(seq, now, ageing))

    return max(running, key=importance)


class WaitingQueue:
    """Sequences that wait: the preempted ones in front, new ones behind.

    Among new ones, the most urgent tenant comes first, by its best priority; of equally urgent ones
    that which has had least (`Tenants`). Within a tenant a request comes by its effective priority,
    then by its cached prefix or its arrival. What is in the background comes behind all else, if it
    has run before, too.

    Args:
        ageing: Seconds of waiting that improve a priority by one. A request can be overtaken
            without end only by later ones of better effective priority, and its own improves
            as it waits while theirs starts at the bottom: so it cannot starve. Nor can a tenant,
            whose urgency improves while nothing of it is admitted.
        order: `prefix` or `fcfs`; see `EngineConfig.schedule`.

    Attributes:
        tenants: Whose they are.
    """

    def __init__(self, ageing: float, order: str) -> None:
        self._ageing = ageing
        self._by_prefix = order == "prefix"
        self.tenants = Tenants()
        self._preempted: dict[Sequence, None] = {}
        self._num_new = 0
        self._num_background = 0

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
    def num_urgent(self) -> int:
        """Sequences that aren't in the background."""
        return len(self) - self._num_background

    @property
    def oldest(self) -> float | None:
        """When the new sequence that has waited longest was submitted."""
        firsts = (
            next(iter(bucket))
            for account in self.tenants.waiting
            for bucket in account.waiting.values()
        )
        return min((seq.group.submitted for seq in firsts), default=None)

    def add(self, seq: Sequence, running: SequenceOf[Sequence]) -> None:
        """Queue a sequence, by whether it was preempted.

        Args:
            seq: The sequence.
            running: All that run in its lane.
        """
        self._num_background += seq.in_background
        if seq.preempted:
            self._preempted[seq] = None
        else:
            self.tenants.enter(seq, running)
            self._num_new += 1

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        self._num_background -= seq.in_background
        if seq.preempted:
            del self._preempted[seq]
        else:
            self.tenants.withdraw(seq)
            self._num_new -= 1

    def candidates(self, now: float, cached: Callable[[Sequence], int]) -> list[Sequence]:
        """Sequences in the order in which they should be admitted.

        Args:
            now: The engine's clock.
            cached: Tokens of a sequence that the prefix cache holds.
        """
        front = sorted(self._preempted, key=lambda seq: rank(seq, now, self._ageing))
        waiting = self.tenants.waiting
        behind: list[Sequence] = []
        if len(waiting) > 1:
            behind = self._in_turn(now, cached)
        else:
            for account in waiting:
                behind = self._of_one(account, LOOKAHEAD, now, cached)
        if self._num_background and front:
            return sorted(front + behind, key=lambda seq: seq.in_background)  # stable
        return front + behind

    def _of_one(
        self, account: Account, most: int, now: float, cached: Callable[[Sequence], int]
    ) -> list[Sequence]:
        """The first of a tenant's new sequences."""
        # Within a priority, earlier arrival means equal or better effective priority, so each
        # bucket is sorted already and the merge reads no further than it must.
        window: Iterator[Sequence] = heapq.merge(
            *account.waiting.values(), key=lambda seq: rank(seq, now, self._ageing)
        )
        first = list(islice(window, most))
        if self._by_prefix and len(first) > 1:
            first.sort(key=lambda seq: (rank(seq, now, self._ageing)[0], -cached(seq)))  # stable
        return first

    def _in_turn(self, now: float, cached: Callable[[Sequence], int]) -> list[Sequence]:
        """The first of all tenants' new sequences.

        Each is taken to cost its prompt, for those behind it.
        """
        waiting = self.tenants.waiting
        most = max(1, LOOKAHEAD // len(waiting))
        # Urgency, counter, and for ties the place in the order of arrival of tenants.
        turns = [
            (account.urgency(now, self._ageing), account.served, place)
            for place, account in enumerate(waiting)
        ]
        heapq.heapify(turns)
        accounts = list(waiting)
        windows: dict[int, list[Sequence]] = {}
        found: list[Sequence] = []
        while turns and len(found) < LOOKAHEAD:
            _, served, place = heapq.heappop(turns)
            account = accounts[place]
            window = windows.get(place)
            if window is None:
                window = windows[place] = self._of_one(account, most, now, cached)[::-1]
            seq = window.pop()
            found.append(seq)
            if window:
                cost = (seq.extent - cached(seq)) / account.weight
                priority = window[-1].group.request.priority
                heapq.heappush(turns, (priority, served + cost, place))
            elif account.num_waiting > most:
                break  # it may be its turn again before those that are left
        return found


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
