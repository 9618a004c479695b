"""A prefix on its way back from a tier, into memory that nobody else has meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.engine.nodes import Node
from caudal.engine.radix import MAIN
from caudal.engine.sequence import Sequence as EngineSequence
from caudal.engine.space import Space
from caudal.engine.tables import SequenceMemory
from caudal.engine.tiers.pieces import Key, next_link
from caudal.engine.tiers.reservations import Lacking, Reservations
from caudal.engine.tiers.store import Fetch, PieceStore


@dataclass(frozen=True, slots=True)
class Plan:
    """What could be brought back for a sequence.

    Attributes:
        path: Nodes of the tree that it begins with.
        chain: The links from the space's first up to the last one.
        length: Tokens up to there.
    """

    path: Sequence[Node]
    chain: Sequence[bytes]
    length: int

    def key(self, lacking: Lacking, slot_kind: int) -> Key:
        """What the piece for a place is found by."""
        link = self.chain[-1] if lacking.kind == slot_kind else self.chain[lacking.index + 1]
        return (link, lacking.kind)


@dataclass(eq=False, slots=True)
class Recall:
    """A prefix that is being read.

    Attributes:
        seq: The sequence that it is read for.
        space: Who may share it.
        keys: Those of its tokens.
        start: How many of them the sequence would have had without it.
        held: The memory that it is written to, with what the tree has of it already.
        lacking: What has to be written, in the order of reading.
        fetch: What is being read.
        written: How many have been written.
    """

    seq: EngineSequence
    space: Space
    keys: Sequence[int]
    start: int
    held: SequenceMemory
    lacking: Sequence[Lacking]
    fetch: Fetch
    written: int = 0


def plan_recall(
    reservations: Reservations,
    store: PieceStore,
    path: Sequence[Node],
    chain: list[bytes],
    keys: Sequence[int],
    limit: int,
    least: int,
) -> Plan | None:
    """The longest prefix of a sequence that the tree and the store have together.

    Args:
        reservations: Say what the tree has, and what going on takes.
        store: The tiers.
        path: The nodes of the tree whose keys match.
        chain: Their links, behind the first of the space.
        keys: The sequence's.
        limit: Most tokens.
        least: Fewer tokens than one more than these are of no use.
    """
    memory = reservations.memory
    size = memory.pool.block_size
    position = path[-1].end if path else 0
    while position + size <= limit:
        link = next_link(chain[-1], keys[position : position + size])
        if (link, MAIN) not in store:
            break
        chain.append(link)
        position += size
    if not memory.has_more_kinds:
        return Plan(path, chain, position) if position > least else None
    if memory.slots is not None:
        for end in range(min(position + size - 1, limit), max(position, least), -1):
            link = next_link(chain[-1], keys[position:end])
            if (link, MAIN) in store:
                tail = Plan(path, [*chain, link], end)
                if _can_go_on(reservations, store, tail):
                    return tail
    while position > least:
        plan = Plan(path[: position // size], chain[: position // size + 1], position)
        if _can_go_on(reservations, store, plan):
            return plan
        position -= size
    return None


def _can_go_on(reservations: Reservations, store: PieceStore, plan: Plan) -> bool:
    """Whether there is all that it takes to go on from a prefix's end."""
    return all(
        plan.key(each, reservations.memory.slot_kind) in store
        for each in reservations.lacking_besides(plan.path, plan.length)
    )
