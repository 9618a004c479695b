"""How running sequences grow, and who gives way where memory doesn't suffice for all of them."""

from __future__ import annotations

from caudal.engine.config import EngineConfig
from caudal.engine.drafting.speculation import MAX_PROPOSED
from caudal.engine.lanes import Lanes
from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.policy import least_important
from caudal.engine.sequence import Sequence, Status
from caudal.engine.tables import SequenceMemory


class Growing:
    """Finds memory for the next tokens of sequences, and takes it back from them.

    Args:
        config: Limits and policies.
        memory: The pools and their prefix cache.
        lanes: All sequences.

    Attributes:
        num_preemptions: Sequences that have had to wait again.
    """

    def __init__(self, config: EngineConfig, memory: Memory, lanes: Lanes) -> None:
        self._ageing = config.ageing
        self._memory = memory
        self._lanes = lanes
        self.num_preemptions = 0

    def chunk(self, seq: Sequence, held: SequenceMemory, count: int) -> int:
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
        return memory.affordable(held, count, self._lanes.num_running)

    def extend(self, seq: Sequence, count: int, now: float) -> bool:
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
            victim = least_important(self._lanes.running, now, self._ageing)
            self.preempt(victim)
            if victim is seq:
                return False
        seq.planned = count
        return True

    def preempt(self, seq: Sequence) -> None:
        """Let a running sequence wait again; what it computed stays in the cache, unlocked."""
        lane = self._lanes.of(seq)
        lane.running.remove(seq)
        self.close(seq, keep=True)
        seq.planned = 0
        seq.status = Status.WAITING
        seq.preempted = True
        seq.draft = []
        seq.match = Match()
        seq.match_version = -1
        seq.recalled = False
        lane.waiting.add(seq, lane.running)
        self.num_preemptions += 1

    def close(self, seq: Sequence, *, keep: bool) -> None:
        """Charge a sequence's tenant for what it has had, and give its memory back.

        Args:
            seq: A sequence that ran.
            keep: Leave what it computed in the prefix cache.
        """
        group = seq.group
        self._lanes.of(seq).waiting.tenants.account_of(seq).charge(seq)
        self._memory.close(seq.memory, group.space, seq.keys, len(group.prompt), keep=keep)
