"""What lies behind the radix tree: what it gives up goes there, and comes back for who wants it.

All of this is bookkeeping in the engine's thread, between iterations; what takes longer than
copying a few blocks is done by the store's threads. A sequence whose prefix is on its way back
waits, and others go on; where it doesn't arrive, it is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from caudal.backends.executor import Executor
from caudal.engine.memory import Memory, block_of
from caudal.engine.nodes import Match, Node
from caudal.engine.radix import MAIN
from caudal.engine.sequence import Sequence, Status
from caudal.engine.tiers.links import Links
from caudal.engine.tiers.pieces import Key, next_link
from caudal.engine.tiers.recall import Plan, Recall, plan_recall
from caudal.engine.tiers.reservations import Reservations
from caudal.engine.tiers.store import PieceStore
from caudal.engine.tiers.tier_stats import TierStats

MEMORY_RATE = 4e9
"""Bytes a second that copying to and from pools is taken to do."""

READ_SECONDS = 0.001
"""What a recall takes besides the bytes."""

ADVANCE_SECONDS = 0.002
ADVANCE_SHARE = 0.05
"""So long, or for this share of an iteration, pieces are written to the pools between two."""

SAVED_BYTES = 2 << 20
"""What is copied at a time while nothing is computed, for the disk."""

LOOKED_AT = 2048
"""Nodes that are looked at meanwhile."""

FLUSH_SECONDS = 2.0
"""So long closing may take, to save what isn't on the disk yet."""

END_SECONDS = 0.5
"""And so much longer, for the file that is being read or written."""


class SecondTier:
    """Takes what the tree gives up, and brings it back.

    Args:
        executor: Has the bytes.
        memory: The pools, with a tree.
        links: What pieces are found by.
        store: Where they go.

    Attributes:
        store: Where pieces go.
        links: What they are found by.
        hits: Requests that took something from memory, and from the disk.
        hit_tokens: What they took from there.
    """

    def __init__(self, executor: Executor, memory: Memory, links: Links, store: PieceStore) -> None:
        if memory.cache is None:
            raise ValueError("without a prefix cache there is nothing to keep")
        self._executor = executor
        self._memory = memory
        self._cache = memory.cache
        self._reservations = Reservations(memory)
        self.links = links
        self.store = store
        self.hits = {"memory": 0, "disk": 0}
        self.hit_tokens = {"memory": 0, "disk": 0}
        self._num_hits = self._misses = self._declined = self._dropped = 0
        self._recalls: dict[Sequence, Recall] = {}
        self._behind: dict[Sequence, Recall] = {}  # who waits for what is read for another
        self._cost: float | None = None  # seconds that computing a token of a prompt takes
        self._cursor = 0  # the node that `save` goes on with
        self._seen_version = self._saved_version = -1  # the tree's, when that began and was through
        self._cache.gives_up = self._give_up

    @property
    def is_reading(self) -> bool:
        """Whether a prefix is on its way."""
        return bool(self._recalls)

    @property
    def num_requests(self) -> tuple[int, int]:
        """Requests that something was brought back for, and others."""
        return self._num_hits, self._misses + self._declined

    def stats(self) -> TierStats:
        """What there is and was."""
        disk = self.store.disk
        return TierStats(
            memory_bytes=self.store.memory_bytes,
            disk_bytes=0 if disk is None else disk.size,
            disk_limit=0 if disk is None else disk.limit,
            memory_hit_tokens=self.hit_tokens["memory"],
            disk_hit_tokens=self.hit_tokens["disk"],
            hits=self._num_hits,
            misses=self._misses,
            declined=self._declined,
            written=0 if disk is None else disk.written,
            written_bytes=0 if disk is None else disk.written_bytes,
            evicted=0 if disk is None else disk.evicted,
            dropped=self._dropped,
            failures=0 if disk is None else disk.failures,
            reading=len(self._recalls),
            disk_rate=0.0 if disk is None else disk.rate,
        )

    def observe(self, tokens: int, seconds: float) -> None:
        """Note what computing tokens of prompts has taken."""
        each = seconds / tokens
        if each > 0:
            self._cost = each if self._cost is None else 0.9 * self._cost + 0.1 * each

    # Out of the tree

    def save(self) -> bool:
        """Copy some of what only the pools have, for the disk, while nothing is computed.

        Returns:
            Whether there is more.
        """
        if self.store.disk is None or self._saved_version == self._cache.version:
            return False
        nodes = self._cache.holders()
        if self._cursor == 0:
            self._seen_version = self._cache.version
        looked_at, copied = 0, 0
        while looked_at < LOOKED_AT and copied < SAVED_BYTES:
            if self._cursor >= len(nodes):
                self._cursor = 0
                self._saved_version = self._seen_version
                return self._saved_version != self._cache.version
            node = nodes[self._cursor]
            if node is not None:
                saved = self._save_node(node)
                if saved is None:
                    return True  # there is no room before what is there is written
                copied += saved
            self._cursor += 1
            looked_at += 1
        return True

    def _save_node(self, node: Node) -> int | None:
        """Keep all that a node has; returns the bytes copied, None where there was no room."""
        copied = 0
        for kind in range(len(self.store.block_bytes)):
            if self._block(node, kind) >= 0 and self._is_worth_keeping(node, kind):
                if self.links.key(node, kind) in self.store:
                    continue
                if not self._keep(node, kind):
                    return None
                copied += self.store.block_bytes[kind]
        return copied

    def _give_up(self, node: Node, kind: int) -> None:
        """The tree is about to lose what a node has of a kind."""
        if self._is_worth_keeping(node, kind) and self.links.key(node, kind) not in self.store:
            self._keep(node, kind)

    def _keep(self, node: Node, kind: int) -> bool:
        """Copy what a node has; returns whether there was room for it."""
        data = self.store.take(self.store.block_bytes[kind])
        if data is None:
            self._dropped += 1
            return False
        self._executor.read_blocks(kind, [self._block(node, kind)], data)
        self.store.put(self.links.piece(node, kind), data)
        return True

    def _is_worth_keeping(self, node: Node, kind: int) -> bool:
        """Whether anybody could go on from what a node has of a kind."""
        if len(node.keys) < self._memory.pool.block_size and node.slot < 0:
            return False  # a few tokens, of no use without a state
        return kind in (MAIN, self._memory.slot_kind) or bool(node.needed >> (kind - 1) & 1)

    def _block(self, node: Node, kind: int) -> int:
        return node.slot if kind == self._memory.slot_kind else block_of(node, kind)

    # Back into it

    def holds_back(self, seq: Sequence, match: Match, owed: Callable[[], SequenceOf[int]]) -> bool:
        """Whether a waiting sequence should wait for a prefix that is being read, or is from here
        on.

        Args:
            seq: The sequence, which could start now.
            match: What the tree has of it.
            owed: Says how many blocks of each pool those who run still need.
        """
        if seq in self._recalls:
            return True
        behind = self._behind.get(seq)
        if behind is not None:  # planning again what it could have would take most of an iteration
            if self._recalls.get(behind.seq) is behind:
                return True
            del self._behind[seq]
        if seq.recalled or self.store.is_empty:
            return False
        plan = self._plan(seq, match)
        if plan is None:
            return False
        for other in self._recalls.values():
            if other.fetch.chain[: len(plan.path) + 2] == plan.chain[: len(plan.path) + 2]:
                self._behind[seq] = other  # which reads the same
                return True
        return self._begin(seq, match, plan, owed)

    def note_started(self, seq: Sequence) -> None:
        """A request starts, with what there was of its prompt."""
        if not seq.recalled:
            self._misses += 1

    def forget(self, seq: Sequence) -> None:
        """A sequence ends: what is read for it alone isn't wanted any more."""
        self._behind.pop(seq, None)
        recall = self._recalls.get(seq)
        if recall is not None:
            self._finish(recall, complete=False)

    def advance(self, last_seconds: float) -> None:
        """Write to the pools what has arrived, for so long as an iteration can wait.

        Args:
            last_seconds: What the latest iteration took.
        """
        if not self._recalls:
            return
        until = time.monotonic() + max(ADVANCE_SECONDS, ADVANCE_SHARE * last_seconds)
        for recall in list(self._recalls.values()):
            self._advance(recall, until)

    def _plan(self, seq: Sequence, match: Match) -> Plan | None:
        first = self.links.first(seq.group.space)
        limit, deepest = seq.match_limit, match.deepest
        size = self._memory.pool.block_size
        position = 0 if deepest is None else deepest.end
        link = first if deepest is None else self.links.of(deepest)
        if not self._memory.has_more_kinds:  # as it is most often: is there anything behind it?
            if position + size > limit:
                return None
            if (next_link(link, seq.keys[position : position + size]), MAIN) not in self.store:
                return None
        path = self._cache.path(deepest)
        chain = [first, *map(self.links.of, path)]
        return plan_recall(
            self._reservations, self.store, path, chain, seq.keys, limit, match.total
        )

    def _begin(
        self, seq: Sequence, match: Match, plan: Plan, owed: Callable[[], SequenceOf[int]]
    ) -> bool:
        """Begin to read what is planned, if that is worth it and there is memory for it."""
        memory = self._memory
        lacking = self._reservations.lacking_for(plan.path, plan.length)
        keys = [plan.key(each, memory.slot_kind) for each in lacking]
        if not self._is_worth_reading(keys, plan.length - match.total):
            seq.recalled = True
            self._declined += 1
            return False
        fetch = self.store.fetch(keys, plan.chain)  # before memory is taken, which may cost pieces
        if fetch is None:
            return False
        spare = [*owed(), *([1] if memory.slots is not None else [])]
        held = self._reservations.begin(plan.path, plan.length, lacking, spare)
        if held is None:
            return False
        own = list(seq.keys[: plan.length])
        self._recalls[seq] = Recall(seq, seq.group.space, own, match.total, held, lacking, fetch)
        self.store.start(fetch)
        return True

    def _is_worth_reading(self, keys: SequenceOf[Key], tokens: int) -> bool:
        """Whether reading pieces is faster than computing the tokens, as far as is known."""
        if self._cost is None:
            return True
        total = sum(self.store.block_bytes[kind] for _, kind in keys)
        seconds = READ_SECONDS + total / MEMORY_RATE + self.store.read_seconds(keys)
        return seconds < tokens * self._cost

    def _advance(self, recall: Recall, until: float) -> None:
        while recall.written < len(recall.lacking):
            if time.monotonic() >= until:
                return
            try:
                data = recall.fetch.take()
            except IndexError:
                return
            lacking = recall.lacking[recall.written]
            block = None if data is None else self._reservations.place(recall.held, lacking)
            if data is None or block is None:
                self._finish(recall, complete=False)
                return
            self._executor.write_blocks(lacking.kind, [block], data)
            recall.written += 1
        self._finish(recall, complete=True)

    def _finish(self, recall: Recall, *, complete: bool) -> None:
        """Let the tree have what has been written, as far as one can go on from it."""
        recall.fetch.cancelled = True
        del self._recalls[recall.seq]
        recall.seq.recalled = True
        length = len(recall.keys) if complete else self._usable(recall)
        self._reservations.restore(recall.held, recall.space, recall.keys, length)
        if length > recall.start:
            self._count_hit(recall)
        elif recall.seq.status is Status.WAITING:
            self._misses += 1

    def _usable(self, recall: Recall) -> int:
        """Tokens of a recall that wasn't completed that one can go on from."""
        if self._memory.has_more_kinds or not recall.written:
            return 0
        return (recall.lacking[recall.written - 1].index + 1) * self._memory.pool.block_size

    def _count_hit(self, recall: Recall) -> None:
        self._num_hits += 1
        size = self._memory.pool.block_size
        tokens = {"memory": 0, "disk": 0}
        sources = recall.fetch.sources[: recall.written]
        for place, source in zip(recall.lacking, sources, strict=False):
            where = "disk" if source.data is None else "memory"
            if place.kind == MAIN:
                end = min((place.index + 1) * size, len(recall.keys))
                tokens[where] += max(0, end - max(place.index * size, recall.start))
            self.hits[where] += source is sources[0]
        for where, count in tokens.items():
            self.hit_tokens[where] += count

    # For whoever asks

    def give_up_recalls(self) -> None:
        """Read nothing that is being read to its end."""
        for recall in list(self._recalls.values()):
            self._finish(recall, complete=False)

    def close(self) -> None:
        """Save what isn't on the disk yet, in the order of its use, and end the threads.

        Takes `FLUSH_SECONDS` and `END_SECONDS` at most.
        """
        deadline = time.monotonic() + FLUSH_SECONDS
        self.give_up_recalls()
        if self.store.disk is not None:
            for node in self._cache.by_use():
                while self._save_node(node) is None and time.monotonic() < deadline:
                    self.store.flush(min(deadline, time.monotonic() + 0.01))
                if time.monotonic() >= deadline:
                    break
            self.store.flush(deadline)
        self.store.close(deadline + END_SECONDS)
