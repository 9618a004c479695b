"""All sequences that wait and run, lane by lane, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from caudal.engine.config import EngineConfig
from caudal.engine.lane import Lane, generating_lane, pooling_lane
from caudal.engine.request import Generate, Pool
from caudal.engine.sequence import Sequence

GUESSES_SHARE = 4
"""Guesses get 1/4 of an iteration's tokens at most while prompts are computed or could start."""


class Lanes:
    """The lanes of all types of work: pooling first, which is soon over.

    Args:
        config: Limits and policies.
    """

    __slots__ = ("_generating", "_lanes", "_max_num_batched_tokens")

    def __init__(self, config: EngineConfig) -> None:
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._generating = generating_lane(config)
        self._lanes: dict[type[Generate | Pool], Lane] = {
            Pool: pooling_lane(config),
            Generate: self._generating,
        }

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def of(self, seq: Sequence) -> Lane:
        """The lane that a sequence goes down."""
        return self._lanes[type(seq.group.request.work)]

    @property
    def running(self) -> list[Sequence]:
        """All that run."""
        return [seq for lane in self._lanes.values() for seq in lane.running]

    @property
    def answering(self) -> SequenceOf[Sequence]:
        """Those that run and generate."""
        return self._generating.running

    @property
    def num_free(self) -> int:
        """Generating sequences that could still run under `max_num_seqs`."""
        return self._generating.num_free

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return sum(lane.num_running for lane in self._lanes.values())

    @property
    def num_waiting(self) -> int:
        """Sequences in the queues."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def num_new(self) -> int:
        """Sequences in the queues that have never run."""
        return sum(lane.waiting.num_new for lane in self._lanes.values())

    def num_new_of(self, tenant: str | None) -> int:
        """Those of a tenant. Safe to call from other threads."""
        return sum(lane.waiting.tenants.num_waiting(tenant) for lane in self._lanes.values())

    def waiting_of_tenants(self) -> dict[str | None, int]:
        """Sequences that have never run, of tenants that have any. Safe to call likewise."""
        waiting: dict[str | None, int] = {}
        for lane in self._lanes.values():
            for tenant, number in lane.waiting.tenants.all_waiting():
                waiting[tenant] = waiting.get(tenant, 0) + number
        return waiting

    def waiting_weights(self) -> dict[str | None, float]:
        """The weights of tenants that have something waiting. Safe to call from other threads."""
        pooling, generating = (lane.waiting.tenants.weights() for lane in self._lanes.values())
        return pooling | generating

    @property
    def room_for_guesses(self) -> int:
        """Most tokens of an iteration that may be guesses, beside one for each that decodes.

        Prompts that are there leave them a part only.
        """
        lane = self._generating
        room = max(0, self._max_num_batched_tokens - self.num_running)
        if lane.prefilling or (len(lane.waiting) and lane.num_free > 0):
            room //= GUESSES_SHARE
        return room
