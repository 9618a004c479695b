"""What sequences of one type of work have for themselves: a queue, an admission, and a limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from caudal.engine.config import EngineConfig
from caudal.engine.policy import Admission, WaitingQueue
from caudal.engine.sequence import Sequence


@dataclass(slots=True)
class Lane:
    """The sequences of one type of work (`Request.work`), and what sets it apart from others.

    Attributes:
        waiting: Those that wait.
        admission: When they may start.
        max_running: Most sequences of it that run at once.
        decodes: Whether its sequences go on token by token, with one each in every iteration.
        awaits_prefixes: Whether a sequence waits for a prefix that another is just computing.
        running: Those that run, in the order in which they started.
        prefilling: Those of them that are to compute more than that one token in the iteration
            being planned.
    """

    waiting: WaitingQueue
    admission: Admission
    max_running: int
    decodes: bool
    awaits_prefixes: bool
    running: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)

    @property
    def is_urgent(self) -> bool:
        """Whether anything in it that wants to compute a prompt isn't in the background."""
        return self.waiting.num_urgent > 0 or not all(seq.in_background for seq in self.prefilling)

    @property
    def num_running(self) -> int:
        """Sequences that run; one that is to fork counts as all that it stands for."""
        return sum(len(seq.branches) for seq in self.running)

    @property
    def num_free(self) -> int:
        """Sequences that could still run."""
        return self.max_running - self.num_running


def generating_lane(config: EngineConfig) -> Lane:
    """For answers."""
    admission = Admission(
        config.batching,
        limit=config.max_num_seqs,
        preferred=config.preferred_batch_size,
        delay=config.max_queue_delay,
    )
    queue = WaitingQueue(config.ageing, config.schedule)
    return Lane(queue, admission, config.max_num_seqs, decodes=True, awaits_prefixes=True)


def pooling_lane(config: EngineConfig) -> Lane:
    """For embeddings and scores: gathered for a moment, since many at once cost less."""
    admission = Admission(
        "dynamic",
        limit=config.max_num_seqs,
        preferred=config.embedding_batch_size,
        delay=config.embedding_queue_delay,
    )
    queue = WaitingQueue(config.ageing, config.schedule)
    return Lane(queue, admission, config.max_num_seqs, decodes=False, awaits_prefixes=False)
