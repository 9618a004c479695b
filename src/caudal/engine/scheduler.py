"""Who runs in the next iteration, and how many tokens of each.

Iteration-level scheduling (Orca, OSDI '22) with chunked prefill: running sequences that decode go
first with one token each, the rest of the token budget goes to prefill chunks, then to newly
admitted requests. Each type of work (generating, pooling) goes down a lane of its own, with a queue
of its own and an equal share of that rest while others want it too: so neither waits behind the
other for more than an iteration, as long as there is memory. Nothing is reserved; blocks are taken
as tokens arrive, and when they run out the least important sequence is preempted through the prefix
cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

from caudal.engine.config import EngineConfig
from caudal.engine.counters import CacheCounts
from caudal.engine.drafting.speculation import MAX_PROPOSED
from caudal.engine.lane import Lane, generating_lane, pooling_lane
from caudal.engine.lost_prefixes import POSITIONS, find_lost
from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.policy import least_important
from caudal.engine.prefix_tree import common_prefix
from caudal.engine.request import Generate, Pool
from caudal.engine.sequence import Sequence, Status
from caudal.engine.tables import SequenceMemory
from caudal.engine.tiers.second_tier import SecondTier

WORTHWHILE_SHARE = 8
"""A prefix being computed elsewhere is waited for if it is at least 1/8 of what is missing."""

BACKGROUND_SHARE = 16
"""Prompts in the background get 1/16 of an iteration's tokens while anything else runs: what
somebody waits for comes with the iterations, and these take the longer the more they compute."""

GUESSES_SHARE = 4
"""Guesses get 1/4 of an iteration's tokens at most while prompts are computed or could start."""

URGENT_SECONDS = 5.0
"""So long after anything else they still do: more of it may come, which then has to wait for the
iteration that is being computed."""


class Scheduler:
    """Decides; owns the running and the waiting, and the growth of what they have in memory.

    Args:
        config: Limits and policies.
        memory: The pools and their prefix cache.
        tier: What lies behind that; None: nothing.
    """

    def __init__(
        self, config: EngineConfig, memory: Memory, tier: SecondTier | None = None
    ) -> None:
        self._config = config
        self._memory = memory
        self._tier = tier
        self._lanes: dict[type[Generate | Pool], Lane] = {
            Pool: pooling_lane(config),
            Generate: generating_lane(config),
        }
        self._num_background = 0  # that wait or run
        self._num_urgent = 0  # the others
        self._urgent_at = -math.inf  # when there were any last
        self.num_preemptions = 0
        self.cache_counts = CacheCounts()
        self.lost_tokens = dict.fromkeys(POSITIONS, 0)

    @property
    def running(self) -> list[Sequence]:
        """All that run."""
        return [seq for lane in self._lanes.values() for seq in lane.running]

    @property
    def answering(self) -> SequenceOf[Sequence]:
        """Those that run and generate."""
        return self._lanes[Generate].running

    @property
    def room_for_guesses(self) -> int:
        """Most tokens of an iteration that may be guesses, beside one for each that decodes.

        Prompts that are there leave them a part only.
        """
        lane = self._lanes[Generate]
        room = max(0, self._config.max_num_batched_tokens - self.num_running)
        if lane.prefilling or (len(lane.waiting) and lane.num_free > 0):
            room //= GUESSES_SHARE
        return room

    @property
    def num_free(self) -> int:
        """Generating sequences that could still run under `max_num_seqs`."""
        return self._lanes[Generate].num_free

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

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        lane = self._lane_of(seq)
        lane.waiting.add(seq, lane.running)
        self._count(seq, 1)

    def join(self, seq: Sequence) -> None:
        """Let a forked sequence run; it was counted when its parent was admitted."""
        lane = self._lane_of(seq)
        lane.running.append(seq)
        lane.waiting.tenants.join(seq)
        self._count(seq, 1)

    def end(self, seq: Sequence, *, keep: bool) -> None:
        """Take a sequence out, wherever it is, and give its blocks back.

        Args:
            seq: A sequence that has not ended.
            keep: Leave what it computed in the prefix cache.
        """
        lane = self._lane_of(seq)
        if seq.status is Status.RUNNING:
            lane.running.remove(seq)
        else:
            lane.waiting.remove(seq)
            if self._tier is not None:
                self._tier.forget(seq)
        seq.status = Status.ENDED
        self._close(seq, keep=keep)
        lane.waiting.tenants.leave(seq)
        self._count(seq, -1)

    def schedule(self, now: float) -> list[Sequence]:
        """Plan one iteration.

        Args:
            now: The engine's clock.

        Returns:
            The sequences that run, each with `planned` tokens and blocks for them. Empty if nothing
            may start yet, or if the only one that ran gave way to itself for lack of a block.
        """
        budget = self._config.max_num_batched_tokens
        preemptions = self.num_preemptions
        if self._num_urgent:
            self._urgent_at = now
        lanes = self._lanes.values()
        for lane in lanes:
            spare = self.room_for_guesses if lane.decodes else 0
            lane.prefilling.clear()
            if lane.waiting.tenants.several:
                lane.waiting.tenants.settle(lane.running)
            decodes = lane.decodes
            for seq in lane.running.copy():
                seq.planned = 0
                if seq.status is not Status.RUNNING:
                    continue
                certain = len(seq.tokens) - seq.memory.length
                if not decodes or (certain > 1 and not _goes_on(seq, certain)):
                    lane.prefilling.append(seq)
                    continue
                count = 1
                if certain > 1 or seq.draft:
                    count += min(certain - 1 + len(seq.draft), spare)
                    count = self._chunk(seq, seq.memory, count)
                if self._extend(seq, count, now):
                    budget -= seq.planned
                    spare -= seq.planned - 1
        eager = [lane for lane in lanes if lane.prefilling or len(lane.waiting)]
        behind: list[Lane] = []
        if self._num_background:
            behind = [lane for lane in eager if not lane.is_urgent]
            eager = [lane for lane in eager if lane.is_urgent]
        for group in (eager, behind):
            for number, lane in enumerate(group):
                share = -(-budget // (len(group) - number))
                budget -= self._prefill(lane, share, preemptions, now)
        return [seq for lane in lanes for seq in lane.running if seq.planned]

    def seconds_until_due(self, now: float) -> float | None:
        """How long there is nothing to schedule: 0 for work right now, None for no work at all."""
        lanes = self._lanes.values()
        if any(lane.running or lane.waiting.num_preempted for lane in lanes):
            return 0.0
        return min(
            (
                lane.admission.seconds_until_due(lane.waiting, now)
                for lane in lanes
                if len(lane.waiting)
            ),
            default=None,
        )

    def _count(self, seq: Sequence, change: int) -> None:
        if seq.in_background:
            self._num_background += change
        else:
            self._num_urgent += change

    def _close(self, seq: Sequence, *, keep: bool) -> None:
        group = seq.group
        self._lane_of(seq).waiting.tenants.account_of(seq).charge(seq)
        self._memory.close(seq.memory, group.space, seq.keys, len(group.prompt), keep=keep)

    def _lane_of(self, seq: Sequence) -> Lane:
        return self._lanes[type(seq.group.request.work)]

    def _prefill(self, lane: Lane, budget: int, preemptions: int, now: float) -> int:
        """Plan chunks of a lane's prompts, first of those that run, then of those that may start.

        Args:
            lane: The lane.
            budget: Most tokens to plan.
            preemptions: How many there had been before this iteration.
            now: The engine's clock.

        Returns:
            The tokens planned.
        """
        prefilling, left, spared = lane.prefilling, budget, 0
        # Blocks that a preemption has just freed are for those who run.
        if self._num_background:
            left = self._go_on([seq for seq in prefilling if not seq.in_background], left, now)
            if left > 0 and lane.waiting.num_urgent and self.num_preemptions == preemptions:
                left = self._admit_urgent(lane, left, now)
            prefilling = [seq for seq in prefilling if seq.in_background]
            if self._keeps_room(now):
                share = max(1, self._config.max_num_batched_tokens // BACKGROUND_SHARE)
                spared = max(0, left - share)
                left -= spared
        left = self._go_on(prefilling, left, now)
        if left > 0 and len(lane.waiting) and self.num_preemptions == preemptions:
            left = self._admit(lane, left, now)
        return budget - left - spared

    def _keeps_room(self, now: float) -> bool:
        """Whether prompts in the background leave most of an iteration."""
        if self._config.encoder:  # what is computed whole or not at all would never have its turn
            return not all(seq.in_background for seq in self.running)
        return now - self._urgent_at < URGENT_SECONDS

    def _go_on(self, prefilling: SequenceOf[Sequence], left: int, now: float) -> int:
        """Plan chunks of prompts of sequences that run; returns what is left of the budget."""
        for seq in prefilling:
            if left <= 0:
                break
            if seq.status is Status.RUNNING:
                chunk = self._chunk(seq, seq.memory, min(left, seq.remaining))
                if self._extend(seq, chunk, now):
                    left -= seq.planned
        return left

    def _extend(self, seq: Sequence, count: int, now: float) -> bool:
        """Plan `count` more tokens of a running sequence, preempting others for blocks.

        They are fewer where it gives up its draft before that.

        Returns:
            Whether it still runs.
        """
        held = seq.memory
        while not self._memory.extend(held, held.length + count, proposes=bool(seq.draft)):
            if seq.draft:  # which may come to nothing: not worth another's blocks
                seq.draft = []
                count = min(count, seq.remaining)
                continue
            victim = least_important(self.running, now, self._config.ageing)
            self._preempt(victim)
            if victim is seq:
                return False
        seq.planned = count
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Let a running sequence wait again; what it computed stays in the cache, unlocked."""
        lane = self._lane_of(seq)
        lane.running.remove(seq)
        self._close(seq, keep=True)
        seq.planned = 0
        seq.status = Status.WAITING
        seq.preempted = True
        seq.draft = []
        seq.match = Match()
        seq.match_version = -1
        seq.recalled = False
        lane.waiting.add(seq, lane.running)
        self.num_preemptions += 1

    def _admit(self, lane: Lane, budget: int, now: float) -> int:
        """Let waiting sequences start; returns what is left of the budget."""
        waiting = lane.waiting
        free = lane.num_free
        if free <= 0:
            return budget
        active = len(lane.running) + waiting.num_preempted
        quota = lane.admission.quota(active, waiting, now)
        if quota <= 0 and not waiting.num_preempted:
            return budget
        # Whatever is cached of it, a sequence needs a block for its last token at least. Asking
        # first saves looking at the queue in every iteration while memory is full.
        memory = self._memory
        if any(owed >= memory.available(kind) for kind, owed in enumerate(self._owed())):
            return budget
        if memory.slots is not None and self.num_running >= memory.slots.num_blocks:
            return budget
        for seq in waiting.candidates(now, self._cached_tokens):
            if budget <= 0:
                break
            if not seq.preempted and quota <= 0:
                continue  # one in the background that was preempted may come behind it
            if self._awaits_prefix(lane, seq):
                continue
            # No skipping ahead of what does not fit: it would never get its turn.
            if len(seq.branches) > free:
                break
            chunk = self._start(lane, seq, budget)
            if not chunk:
                break
            budget -= chunk
            free -= len(seq.branches)
            quota -= not seq.preempted
            self._note_started(lane, seq, now)
        return budget

    def _admit_urgent(self, lane: Lane, budget: int, now: float) -> int:
        """Let waiting sequences start that aren't in the background, in the place of what is.

        Returns:
            What is left of the budget.
        """
        waiting = lane.waiting
        quota = lane.admission.quota(len(lane.running) + waiting.num_preempted, waiting, now)
        for seq in waiting.candidates(now, self._cached_tokens):
            if budget <= 0 or seq.in_background or (not seq.preempted and quota <= 0):
                break
            if self._awaits_prefix(lane, seq):
                continue
            while len(seq.branches) > lane.num_free:
                freed = self._make_way(lane.running, now)
                if freed is None:
                    return budget
                budget += freed
            while not (chunk := self._start(lane, seq, budget)):
                freed = self._make_way(self.running, now)
                if freed is None:
                    return budget
                budget += freed
            budget -= chunk
            quota -= not seq.preempted
            self._note_started(lane, seq, now)
        return budget

    def _make_way(self, running: SequenceOf[Sequence], now: float) -> int | None:
        """Preempt one that runs in the background.

        Returns:
            How many tokens of it had been planned; None where nothing runs there.
        """
        background = [seq for seq in running if seq.in_background]
        if not background:
            return None
        victim = least_important(background, now, self._config.ageing)
        planned = victim.planned
        self._preempt(victim)
        return planned

    def _start(self, lane: Lane, seq: Sequence, budget: int) -> int:
        """Give a waiting sequence its first blocks.

        It must fit as a whole now, beside what the running still need for their prompts and one
        more block for each of them; otherwise it would soon be preempted again.

        Returns:
            The tokens planned; 0 if it doesn't fit, with nothing changed.
        """
        if self._config.encoder and seq.extent > budget:
            return 0  # it is computed whole or not at all
        memory = self._memory
        held = memory.open(self._look_up(seq))
        if held.copy is not None and not self._fits(seq, held):
            # The copy's blocks and their source are two for the tokens of one.
            memory.close(held, seq.group.space, (), 0, keep=False)
            assert memory.cache is not None
            held = memory.open(memory.cache.without_part(seq.match))
        if not self._fits(seq, held):
            memory.close(held, seq.group.space, (), 0, keep=False)
            return 0
        if seq.draft and not memory.finds_slot(held, proposes=True):
            seq.draft = []
        chunk = self._chunk(seq, held, min(budget, seq.extent - held.length))
        if not memory.extend(held, held.length + chunk, proposes=bool(seq.draft)):
            raise RuntimeError("a sequence that fits found no blocks")
        lane.waiting.remove(seq)
        seq.memory = held
        seq.charged = max(seq.charged, held.length)
        seq.planned = chunk
        seq.status = Status.RUNNING
        lane.running.append(seq)
        return chunk

    def _chunk(self, seq: Sequence, held: SequenceMemory, count: int) -> int:
        """How many of the next `count` tokens of a sequence to compute at once."""
        memory = self._memory
        if not memory.has_more_kinds:
            return count
        if memory.slots is not None:
            cut = memory.next_cut(held, len(seq.group.prompt))
            if cut is not None:
                count = min(count, cut - held.length)
            certain = len(seq.tokens) - held.length
            if seq.draft and certain > MAX_PROPOSED:
                # Where a guess is wrong, all of its step is computed once more.
                count = min(count, certain - 1)
        return memory.affordable(held, count, self.num_running)

    def _fits(self, seq: Sequence, held: SequenceMemory) -> bool:
        memory = self._memory
        if not memory.finds_slot(held):
            return False
        lacking = memory.lacking(held, seq.extent)
        if not any(lane.running for lane in self._lanes.values()):
            return all(lacks <= memory.available(kind) for kind, lacks in enumerate(lacking))
        more = len(seq.branches)
        if memory.slots is not None and self.num_running + more > memory.slots.num_blocks:
            return False
        return all(
            lacks + more - 1 + owed <= memory.available(kind)
            for kind, (lacks, owed) in enumerate(zip(lacking, self._owed(), strict=True))
        )

    def _owed(self) -> list[int]:
        """Blocks that the running need for the rest of their prompts, and one more for each.

        Of every pool. Slots are not among them: each that runs takes one, whatever it computes.
        """
        owed = [0] * (1 + len(self._memory.windows))
        for seq in self.running:
            for kind, lacks in enumerate(self._memory.lacking(seq.memory, seq.extent)):
                owed[kind] += max(0, lacks) + len(seq.branches)
        return owed

    def _note_started(self, lane: Lane, seq: Sequence, now: float) -> None:
        group = seq.group
        if not seq.preempted:
            lane.admission.admitted()
        lane.waiting.tenants.account_of(seq).served_at = now
        if group.num_cached is None:
            # What a grammar forces stands behind the prompt already, and may be cached too.
            group.num_cached = min(seq.memory.length, len(group.prompt))
            group.first_scheduled = now
            self.cache_counts.add(len(group.prompt), group.num_cached)
            if self._tier is not None:
                self._tier.note_started(seq)
            self._note_lost(seq)

    def _note_lost(self, seq: Sequence) -> None:
        """Count what a prompt that has just started would have had from the cache."""
        cache, group = self._memory.cache, seq.group
        if cache is None:
            return
        lost = find_lost(cache, group.space, seq.keys, seq.match_limit, seq.match)
        if lost is not None:
            group.lost = lost
            self.lost_tokens[lost.bucket] += lost.tokens

    def _look_up(self, seq: Sequence) -> Match:
        cache = self._memory.cache
        if cache is not None and seq.match_version != cache.version:
            seq.match = cache.match(seq.group.space, seq.keys, seq.match_limit, seq.match.deepest)
            seq.match_version = cache.version
        return seq.match

    def _cached_tokens(self, seq: Sequence) -> int:
        return self._look_up(seq).total

    def _awaits_prefix(self, lane: Lane, seq: Sequence) -> bool:
        """Whether a sequence that could start waits for a prefix that will be there soon."""
        if lane.awaits_prefixes and self._is_computed_elsewhere(seq):
            return True
        return self._tier is not None and self._tier.holds_back(seq, self._look_up(seq), self._owed)

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
        for other in self.running:
            if other.remaining <= 1 or other.group.space != space:
                continue
            whole = len(other.keys) // size * size
            matched = self._look_up(seq)
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


def _goes_on(seq: Sequence, certain: int) -> bool:
    """Whether a sequence decodes that has more than one token to compute.

    A grammar has forced them; or a wrong guess has sent it back to the recurrent state before.
    """
    return certain <= MAX_PROPOSED + 1 and seq.memory.length >= len(seq.group.prompt)
