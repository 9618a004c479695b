"""Who runs in the next iteration, and how many tokens of each.

Iteration-level scheduling (Orca, OSDI '22) with chunked prefill: running sequences that decode go
first with one token each, the rest of the token budget goes to prefill chunks, then to newly
admitted requests. Pooling requests (embeddings) go down a lane of their own, with places and a
queue of their own, and half of that rest while prompts of both kinds want it: so neither kind waits
behind the other for more than an iteration, as long as there is memory. Nothing is reserved; blocks
are taken as tokens arrive, and when they run out the least important sequence is preempted through
the prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from caudal.engine.config import EngineConfig
from caudal.engine.memory import KVMemory
from caudal.engine.policy import Admission, WaitingQueue
from caudal.engine.radix import Match, common_prefix
from caudal.engine.sequence import Sequence, Status

WORTHWHILE_SHARE = 8
"""A prefix being computed elsewhere is waited for if it is at least 1/8 of what is missing."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What generating and pooling requests have each for themselves.

    Attributes:
        pools: Which of the two it is for.
        waiting: The queue.
        admission: When those who wait may start.
    """

    pools: bool
    waiting: WaitingQueue
    admission: Admission


class Scheduler:
    """Decides; owns the running list, the waiting queue and every block table's growth.

    Args:
        config: Limits and policies.
        memory: The KV pool and its prefix cache.
    """

    def __init__(self, config: EngineConfig, memory: KVMemory) -> None:
        self._config = config
        self._memory = memory
        self._generating = Lane(
            False,
            WaitingQueue(config.ageing, config.schedule),
            Admission(
                config.batching,
                limit=config.max_num_seqs,
                preferred=config.preferred_batch_size,
                delay=config.max_queue_delay,
            ),
        )
        self._pooling = Lane(
            True,
            WaitingQueue(config.ageing, config.schedule),
            Admission(
                "dynamic",
                limit=config.max_num_seqs,
                preferred=config.embedding_batch_size,
                delay=config.embedding_queue_delay,
            ),
        )
        self._lanes = (self._pooling, self._generating)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.prompt_tokens = 0
        self.cache_hit_tokens = 0

    @property
    def free_places(self) -> int:
        """Generating sequences that could still run under `max_num_seqs`."""
        return self._free_places(self._generating)

    @property
    def num_running(self) -> int:
        """Sequences that have a place."""
        return sum(len(seq.branches) for seq in self.running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queues."""
        return sum(len(lane.waiting) for lane in self._lanes)

    @property
    def num_new(self) -> int:
        """Sequences in the queues that have never run."""
        return sum(lane.waiting.num_new for lane in self._lanes)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self._lane_of(seq).waiting.add(seq)

    def join(self, seq: Sequence) -> None:
        """Let a forked sequence run; its place was taken when its parent was admitted."""
        self.running.append(seq)

    def end(self, seq: Sequence, *, keep: bool) -> None:
        """Take a sequence out, wherever it is, and give its blocks back.

        Args:
            seq: A sequence that has not ended.
            keep: Leave what it computed in the prefix cache.
        """
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        else:
            self._lane_of(seq).waiting.remove(seq)
        seq.status = Status.ENDED
        self._memory.close(seq.table, seq.state.space, seq.keys, keep=keep)

    def schedule(self, now: float) -> list[Sequence]:
        """Plan one iteration.

        Args:
            now: The engine's clock.

        Returns:
            The sequences that run, each with `planned` tokens and room for them. Empty if nothing
            may start yet, or if the only one that ran gave way to itself for lack of a block.
        """
        budget = self._config.max_num_batched_tokens
        preemptions = self.num_preemptions
        prefilling: list[Sequence] = []
        pooling: list[Sequence] = []
        for seq in self.running.copy():
            seq.planned = 0
            if seq.status is not Status.RUNNING:
                continue
            if seq.state.pool is not None:
                pooling.append(seq)
            elif seq.draft or len(seq.tokens) - seq.table.length > 1:
                prefilling.append(seq)
            elif self._extend(seq, 1, now):
                budget -= 1
        if pooling or len(self._pooling.waiting):
            others = prefilling or len(self._generating.waiting)
            share = (budget + 1) // 2 if others else budget
            budget -= self._prefill(self._pooling, pooling, share, preemptions, now)
        self._prefill(self._generating, prefilling, budget, preemptions, now)
        return [seq for seq in self.running if seq.planned]

    def seconds_until_due(self, now: float) -> float | None:
        """How long there is nothing to schedule: 0 for work right now, None for no work at all."""
        if self.running or any(lane.waiting.num_preempted for lane in self._lanes):
            return 0.0
        return min(
            (
                lane.admission.seconds_until_due(lane.waiting, now)
                for lane in self._lanes
                if len(lane.waiting)
            ),
            default=None,
        )

    def _lane_of(self, seq: Sequence) -> Lane:
        return self._generating if seq.state.pool is None else self._pooling

    def _free_places(self, lane: Lane) -> int:
        taken = sum(len(seq.branches) for seq in self.running if self._lane_of(seq) is lane)
        return self._config.max_num_seqs - taken

    def _prefill(
        self, lane: Lane, prefilling: list[Sequence], budget: int, preemptions: int, now: float
    ) -> int:
        """Plan chunks of a lane's prompts, first of those that run, then of those that may start.

        Returns:
            The tokens planned.
        """
        left = budget
        for seq in prefilling:
            if left <= 0:
                break
            if seq.status is Status.RUNNING:
                chunk = min(left, seq.remaining)
                if self._extend(seq, chunk, now):
                    left -= seq.planned
        # Room that a preemption has just made is for those who run.
        if left > 0 and len(lane.waiting) and self.num_preemptions == preemptions:
            left = self._admit(lane, left, now)
        return budget - left

    def _extend(self, seq: Sequence, count: int, now: float) -> bool:
        """Plan `count` more tokens of a running sequence, preempting others for blocks.

        They are fewer where it gives up its draft before that.

        Returns:
            Whether it still runs.
        """
        while not self._memory.extend(seq.table, seq.table.length + count):
            if seq.draft:  # which may come to nothing: not worth another's place
                seq.draft = []
                count = min(count, seq.remaining)
                continue
            rank = self._generating.waiting.rank
            victim = max(self.running, key=lambda other: rank(other, now))
            self._preempt(victim)
            if victim is seq:
                return False
        seq.planned = count
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Take a running sequence's place; what it computed stays in the cache, unlocked."""
        self.running.remove(seq)
        self._memory.close(seq.table, seq.state.space, seq.keys, keep=True)
        seq.planned = 0
        seq.status = Status.WAITING
        seq.preempted = True
        seq.draft = []
        seq.match = Match()
        seq.match_version = -1
        self._lane_of(seq).waiting.add(seq)
        self.num_preemptions += 1

    def _admit(self, lane: Lane, budget: int, now: float) -> int:
        """Let waiting sequences start; returns what is left of the budget."""
        waiting = lane.waiting
        places = self._free_places(lane)
        if places <= 0:
            return budget
        running = sum(1 for seq in self.running if self._lane_of(seq) is lane)
        starts = lane.admission.places(running + waiting.num_preempted, waiting, now)
        if starts <= 0 and not waiting.num_preempted:
            return budget
        # Whatever is cached of it, a sequence needs a block for its last token at least. Asking
        # first saves looking at the queue in every iteration while memory is full.
        if self._owed() >= self._memory.num_available:
            return budget
        for seq in waiting.candidates(now, self._cached_tokens):
            if budget <= 0:
                break
            if not seq.preempted and starts <= 0:
                break
            if not lane.pools and self._is_computed_elsewhere(seq):
                continue
            # No skipping ahead of what does not fit: it would never get its turn.
            if len(seq.branches) > places:
                break
            chunk = self._start(lane, seq, budget)
            if not chunk:
                break
            budget -= chunk
            places -= len(seq.branches)
            if not seq.preempted:
                starts -= 1
                lane.admission.admitted()
            self._note_started(seq, now)
        return budget

    def _start(self, lane: Lane, seq: Sequence, budget: int) -> int:
        """Give a waiting sequence its first blocks.

        It must fit as a whole now, beside what the running still need for their prompts and one
        more block for each of them; otherwise it would soon be preempted again.

        Returns:
            The tokens planned; 0 if there is no room, with nothing changed.
        """
        if self._config.encoder and seq.extent > budget:
            return 0  # it is computed whole or not at all
        memory = self._memory
        table = memory.open(self._look_up(seq))
        if not self._fits(seq, table.blocks):
            memory.drop_copied_part(table)
            if not self._fits(seq, table.blocks):
                memory.close(table, seq.state.space, (), keep=False)
                return 0
        chunk = min(budget, seq.extent - table.length)
        if not memory.extend(table, table.length + chunk):
            raise RuntimeError("a sequence that fits found no blocks")
        lane.waiting.remove(seq)
        seq.table = table
        seq.planned = chunk
        seq.status = Status.RUNNING
        self.running.append(seq)
        return chunk

    def _fits(self, seq: Sequence, held: list[int]) -> bool:
        memory = self._memory
        blocks_for = memory.pool.blocks_for
        needed = blocks_for(seq.extent) - len(held)
        if not self.running:
            return needed <= memory.num_available
        return needed + len(seq.branches) - 1 + self._owed() <= memory.num_available

    def _owed(self) -> int:
        """Blocks that the running need for the rest of their prompts, and one more for each."""
        blocks_for = self._memory.pool.blocks_for
        return sum(
            max(0, blocks_for(seq.extent) - len(seq.table.blocks)) + len(seq.branches)
            for seq in self.running
        )

    def _note_started(self, seq: Sequence, now: float) -> None:
        state = seq.state
        if state.num_cached is None:
            # What a grammar forces stands behind the prompt already, and may be cached too.
            state.num_cached = min(seq.table.length, len(state.prompt))
            state.first_scheduled = now
            self.prompt_tokens += len(state.prompt)
            self.cache_hit_tokens += state.num_cached

    def _look_up(self, seq: Sequence) -> Match:
        cache = self._memory.cache
        if cache is not None and seq.match_version != cache.version:
            seq.match = cache.match(seq.state.space, seq.keys, seq.match_limit, seq.match.node)
            seq.match_version = cache.version
        return seq.match

    def _cached_tokens(self, seq: Sequence) -> int:
        return self._look_up(seq).total

    def _is_computed_elsewhere(self, seq: Sequence) -> bool:
        """Whether to wait for a prefix that a running sequence is just computing.

        The one waited for runs, so it gets on or loses its place at every iteration; either way
        the question is asked afresh at the next.
        """
        if self._memory.cache is None:
            return False
        size = self._memory.pool.block_size
        space, keys = seq.state.space, seq.keys
        limit = seq.match_limit
        for other in self.running:
            if other.remaining <= 1 or other.state.space != space:
                continue
            whole = len(other.keys) // size * size
            matched = self._look_up(seq)
            start = matched.length
            # Quick and usually decisive: the next block differs.
            if keys[start : start + size] != other.keys[start : start + size]:
                continue
            gain = min(common_prefix(keys, other.keys), limit, whole) - matched.total
            if gain >= size and gain * WORTHWHILE_SHARE >= limit - matched.total:
                return True
        return False
