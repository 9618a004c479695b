"""Who of those that wait may start, and with how many tokens."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from caudal.engine.awaited_prefixes import AwaitedPrefixes
from caudal.engine.config import EngineConfig
from caudal.engine.counters import CacheCounts
from caudal.engine.growing import Growing
from caudal.engine.lane import Lane
from caudal.engine.lanes import Lanes
from caudal.engine.lost_prefixes import POSITIONS, find_lost
from caudal.engine.memory import Memory
from caudal.engine.policy import least_important
from caudal.engine.sequence import Sequence, Status
from caudal.engine.tables import SequenceMemory
from caudal.engine.tiers.second_tier import SecondTier


class Starting:
    """Lets sequences start that fit, beside what those that run still need.

    Args:
        config: Limits and policies.
        memory: The pools and their prefix cache.
        tier: What lies behind that; None: nothing.
        lanes: All sequences.
        growing: Takes memory back from what makes way.

    Attributes:
        cache_counts: What prompts that started had from the cache.
        lost_tokens: What they would have had but for a short difference, by where it was.
    """

    def __init__(
        self,
        config: EngineConfig,
        memory: Memory,
        tier: SecondTier | None,
        lanes: Lanes,
        growing: Growing,
    ) -> None:
        self._config = config
        self._memory = memory
        self._tier = tier
        self._lanes = lanes
        self._growing = growing
        self._prefixes = AwaitedPrefixes(memory, tier, lanes, self._owed)
        self.cache_counts = CacheCounts()
        self.lost_tokens = dict.fromkeys(POSITIONS, 0)

    def admit(self, lane: Lane, budget: int, now: float) -> int:
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
        if memory.slots is not None and self._lanes.num_running >= memory.slots.num_blocks:
            return budget
        for seq in waiting.candidates(now, self._prefixes.cached_tokens):
            if budget <= 0:
                break
            if not seq.preempted and quota <= 0:
                continue  # one in the background that was preempted may come behind it
            if self._prefixes.awaits(lane, seq):
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

    def admit_urgent(self, lane: Lane, budget: int, now: float) -> int:
        """Let waiting sequences start that aren't in the background, in the place of what is.

        Returns:
            What is left of the budget.
        """
        waiting = lane.waiting
        quota = lane.admission.quota(len(lane.running) + waiting.num_preempted, waiting, now)
        for seq in waiting.candidates(now, self._prefixes.cached_tokens):
            if budget <= 0 or seq.in_background or (not seq.preempted and quota <= 0):
                break
            if self._prefixes.awaits(lane, seq):
                continue
            while len(seq.branches) > lane.num_free:
                freed = self._make_way(lane.running, now)
                if freed is None:
                    return budget
                budget += freed
            while not (chunk := self._start(lane, seq, budget)):
                freed = self._make_way(self._lanes.running, now)
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
        self._growing.preempt(victim)
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
        held = memory.open(self._prefixes.look_up(seq))
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
        chunk = self._growing.chunk(seq, held, min(budget, seq.extent - held.length))
        if not memory.extend(held, held.length + chunk, proposes=bool(seq.draft)):
            raise RuntimeError("a sequence that fits found no blocks")
        lane.waiting.remove(seq)
        seq.memory = held
        seq.charged = max(seq.charged, held.length)
        seq.planned = chunk
        seq.status = Status.RUNNING
        lane.running.append(seq)
        return chunk

    def _fits(self, seq: Sequence, held: SequenceMemory) -> bool:
        memory = self._memory
        if not memory.finds_slot(held):
            return False
        lacking = memory.lacking(held, seq.extent)
        if not any(lane.running for lane in self._lanes):
            return all(lacks <= memory.available(kind) for kind, lacks in enumerate(lacking))
        more = len(seq.branches)
        if memory.slots is not None and self._lanes.num_running + more > memory.slots.num_blocks:
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
        for seq in self._lanes.running:
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
