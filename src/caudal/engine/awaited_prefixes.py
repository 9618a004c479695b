"""What sequences that wait would have from the cache, and whether it is worth waiting for more."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from caudal.engine.lane import Lane
from caudal.engine.lanes import Lanes
from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.prefix_tree import common_prefix
from caudal.engine.sequence import Sequence
from caudal.engine.tiers.second_tier import SecondTier

WORTHWHILE_SHARE = 8
"""A prefix being computed elsewhere is waited for if it is at least 1/8 of what is missing."""


class AwaitedPrefixes:
    """Looks up the prefixes of sequences that wait.

    Args:
        memory: The pools and their prefix cache.
        tier: What lies behind that; None: nothing.
        lanes: All sequences.
        owed: Blocks of each pool that those that run will take.
    """

    def __init__(
        self,
        memory: Memory,
        tier: SecondTier | None,
        lanes: Lanes,
        owed: Callable[[], SequenceOf[int]],
    ) -> None:
        self._memory = memory
        self._tier = tier
        self._lanes = lanes
        self._owed = owed

    def look_up(self, seq: Sequence) -> Match:
        """What the cache has of a sequence now."""
        cache = self._memory.cache
        if cache is not None and seq.match_version != cache.version:
            seq.match = cache.match(seq.group.space, seq.keys, seq.match_limit, seq.match.deepest)
            seq.match_version = cache.version
        return seq.match

    def cached_tokens(self, seq: Sequence) -> int:
        """How many tokens that is."""
        return self.look_up(seq).total

    def awaits(self, lane: Lane, seq: Sequence) -> bool:
        """Whether a sequence that could start waits for a prefix that will be there soon."""
        if lane.awaits_prefixes and self._is_computed_elsewhere(seq):
            return True
        return self._tier is not None and self._tier.holds_back(seq, self.look_up(seq), self._owed)

    def _is_computed_elsewhere(self, seq: Sequence) -> bool:
        """Whether to wait for a prefix that a running sequence is just computing.

        The one waited for runs, so it gets on or is preempted at every iteration; either way
        the question is asked afresh at the next.
        """
        if self._memory.cache is None:
            return False
        size = self._memory.pool.block_size
        space, keys = seq.group.space, seq.keys
        limit = seq.match_limit
        for other in self._lanes.running:
            if other.remaining <= 1 or other.group.space != space:
                continue
            whole = len(other.keys) // size * size
            matched = self.look_up(seq)
            start = matched.length
            # Quick and usually decisive: the next block differs.
            if keys[start : start + size] != other.keys[start : start + size]:
                continue
            most = min(common_prefix(keys, other.keys), limit, whole)
            if self._memory.slots is not None:
                most = self._memory.last_cut(other.memory, len(other.group.prompt), most)
            gain = most - matched.total
            if gain >= size and gain * WORTHWHILE_SHARE >= limit - matched.total:
                return True
        return False
