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
from caudal.engine.drafting.speculation import MAX_PROPOSED
from caudal.engine.growing import Growing
from caudal.engine.lane import Lane
from caudal.engine.lanes import Lanes
from caudal.engine.memory import Memory
from caudal.engine.sequence import Sequence, Status
from caudal.engine.starting import Starting
from caudal.engine.tiers.second_tier import SecondTier

BACKGROUND_SHARE = 16
"""Prompts in the background get 1/16 of an iteration's tokens while anything else runs: what
somebody waits for comes with the iterations, and these take the longer the more they compute."""

URGENT_SECONDS = 5.0
"""So long after anything else they still do: more of it may come, which then has to wait for the
iteration that is being computed."""


class Scheduler:
    """Decides, once per iteration; told of sequences that come, fork and end.

    Args:
        config: Limits and policies.
        memory: The pools and their prefix cache.
        tier: What lies behind that; None: nothing.

    Attributes:
        lanes: All sequences.
        growing: Finds memory for those that run.
        starting: Lets those start that wait.
    """

    def __init__(
        self, config: EngineConfig, memory: Memory, tier: SecondTier | None = None
    ) -> None:
        self._config = config
        self._tier = tier
        self.lanes = Lanes(config)
        self.growing = Growing(config, memory, self.lanes)
        self.starting = Starting(config, memory, tier, self.lanes, self.growing)
        self._num_background = 0  # that wait or run
        self._num_urgent = 0  # the others
        self._urgent_at = -math.inf  # when there were any last

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        lane = self.lanes.of(seq)
        lane.waiting.add(seq, lane.running)
        self._count(seq, 1)

    def join(self, seq: Sequence) -> None:
        """Let a forked sequence run; it was counted when its parent was admitted."""
        lane = self.lanes.of(seq)
        lane.running.append(seq)
        lane.waiting.tenants.join(seq)
        self._count(seq, 1)

    def end(self, seq: Sequence, *, keep: bool) -> None:
        """Take a sequence out, wherever it is, and give its blocks back.

        Args:
            seq: A sequence that has not ended.
            keep: Leave what it computed in the prefix cache.
        """
        lane = self.lanes.of(seq)
        if seq.status is Status.RUNNING:
            lane.running.remove(seq)
        else:
            lane.waiting.remove(seq)
            if self._tier is not None:
                self._tier.forget(seq)
        seq.status = Status.ENDED
        self.growing.close(seq, keep=keep)
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
        preemptions = self.growing.num_preemptions
        if self._num_urgent:
            self._urgent_at = now
        lanes, growing = self.lanes, self.growing
        for lane in lanes:
            spare = lanes.room_for_guesses if lane.decodes else 0
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
                    count = growing.chunk(seq, seq.memory, count)
                if growing.extend(seq, count, now):
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
        lanes = self.lanes
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
            if left > 0 and lane.waiting.num_urgent and self.growing.num_preemptions == preemptions:
                left = self.starting.admit_urgent(lane, left, now)
            prefilling = [seq for seq in prefilling if seq.in_background]
            if self._keeps_room(now):
                share = max(1, self._config.max_num_batched_tokens // BACKGROUND_SHARE)
                spared = max(0, left - share)
                left -= spared
        left = self._go_on(prefilling, left, now)
        if left > 0 and len(lane.waiting) and self.growing.num_preemptions == preemptions:
            left = self.starting.admit(lane, left, now)
        return budget - left - spared

    def _keeps_room(self, now: float) -> bool:
        """Whether prompts in the background leave most of an iteration."""
        if self._config.encoder:  # what is computed whole or not at all would never have its turn
            return not all(seq.in_background for seq in self.lanes.running)
        return now - self._urgent_at < URGENT_SECONDS

    def _go_on(self, prefilling: SequenceOf[Sequence], left: int, now: float) -> int:
        """Plan chunks of prompts of sequences that run; returns what is left of the budget."""
        for seq in prefilling:
            if left <= 0:
                break
            if seq.status is Status.RUNNING:
                chunk = self.growing.chunk(seq, seq.memory, min(left, seq.remaining))
                if self.growing.extend(seq, chunk, now):
                    left -= seq.planned
        return left


def _goes_on(seq: Sequence, certain: int) -> bool:
    """Whether a sequence decodes that has more than one token to compute.

    A grammar has forced them; or a wrong guess has sent it back to the recurrent state before.
    """
    return certain <= MAX_PROPOSED + 1 and seq.memory.length >= len(seq.group.prompt)
