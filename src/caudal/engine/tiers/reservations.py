"""Memory for prefixes on their way back from a tier: what it takes, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caudal.engine.memory import Memory, block_of
from caudal.engine.nodes import Node
from caudal.engine.radix import MAIN
from caudal.engine.space import Space
from caudal.engine.tables import GONE, SequenceMemory


@dataclass(frozen=True, slots=True)
class Lacking:
    """A place in memory of which the tree has nothing to put there.

    Attributes:
        kind: The kind; see `radix.MAIN`.
        index: Which block of the sequence it is; of a slot, the last.
    """

    kind: int
    index: int


class Reservations:
    """Places in the pools for what is being read, which nobody else has meanwhile.

    Args:
        memory: The pools, with a tree.

    Attributes:
        memory: They.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def lacking_for(self, path: Sequence[Node], length: int) -> list[Lacking]:
        """All that going on at a length takes and the tree hasn't; see `lacking_besides`."""
        blocks = range(len(path), self.memory.pool.blocks_for(length))
        besides = self.lacking_besides(path, length)
        return [*(Lacking(MAIN, index) for index in blocks), *besides]

    def lacking_besides(self, path: Sequence[Node], length: int) -> Iterator[Lacking]:
        """What going on at a length takes, besides the main pool's blocks, that the tree hasn't.

        Args:
            path: Nodes of the tree from the first on.
            length: Where to go on: their end, or more.
        """
        memory = self.memory
        blocks = memory.pool.blocks_for(length)
        if memory.slots is not None:
            ends = bool(path) and path[-1].end == length
            if not ends or path[-1].slot < 0:
                yield Lacking(memory.slot_kind, blocks - 1)
        for kind in range(1, len(memory.windows) + 1):
            for index in range(memory.first_needed(kind, length), blocks):
                if index >= len(path) or path[index].windows[kind - 1] < 0:
                    yield Lacking(kind, index)

    def begin(
        self,
        path: Sequence[Node],
        length: int,
        lacking: Sequence[Lacking],
        spare: Sequence[int],
    ) -> SequenceMemory | None:
        """What the tree has of a prefix of which the rest is going to be written.

        Args:
            path: Nodes of the tree from the first on.
            length: Tokens of the prefix, as many as the nodes have at least.
            lacking: What `lacking_for` says of them.
            spare: Blocks to leave for others, by kind.

        Returns:
            What `place` and `restore` take. None where there isn't enough memory for all that is
            lacking; nothing has changed then.
        """
        memory = self.memory
        missing = {(each.kind, each.index) for each in lacking}
        held = SequenceMemory(len(memory.windows))
        for kind, table in enumerate(held.tables):
            table.first = memory.first_needed(kind, length) if kind else 0
            table.blocks = [GONE] * memory.pool.blocks_for(length)
            for index in range(table.first, len(path)):
                if (kind, index) not in missing:
                    table.blocks[index] = block_of(path[index], kind)
                    memory.pools[kind].acquire(table.blocks[index])
        if memory.slots is not None and (memory.slot_kind, len(held.blocks) - 1) not in missing:
            held.slot = path[-1].slot
            memory.slots.acquire(held.slot)
        for kind in range(len(memory.pools)):
            count = sum(each.kind == kind for each in lacking)
            if count and count + spare[kind] > memory.available(kind):
                self._close(held)
                return None
        return held

    def place(self, held: SequenceMemory, lacking: Lacking) -> int | None:
        """A block, or a slot, for something that was lacking; None where there is none any more."""
        if not self.memory.available(lacking.kind):
            return None
        block = self.memory.take(lacking.kind)
        if lacking.kind == self.memory.slot_kind:
            held.slot = block
        else:
            held.tables[lacking.kind].blocks[lacking.index] = block
        return block

    def restore(self, held: SequenceMemory, space: Space, keys: Sequence[int], length: int) -> None:
        """Put a prefix into the tree, for others to share.

        Args:
            held: From `begin`.
            space: Who may share it.
            keys: Those of its tokens.
            length: As many of them as are there, with all that going on takes; 0: nobody could.
        """
        if not length:
            self._close(held)
            return
        for table in held.tables:
            del table.blocks[self.memory.pool.blocks_for(length) :]
        held.length = length
        self.memory.close(held, space, keys, length, keep=True)

    def _close(self, held: SequenceMemory) -> None:
        """Give back what there is of a prefix that isn't going to be restored."""
        for kind, table in enumerate(held.tables):
            for block in reversed(table.blocks):
                if block != GONE:
                    self.memory.release(kind, block)
            table.blocks = []
        if held.slot != GONE:
            self.memory.release(self.memory.slot_kind, held.slot)
            held.slot = GONE
