"""What the radix tree keeps of one pool, and what of that nobody uses, in the order of its use."""

from __future__ import annotations

import heapq

from caudal.engine.kv import BlockPool
from caudal.engine.nodes import Node


class Retained:
    """The blocks (or slots) of one pool that nodes of the tree hold.

    Args:
        pool: The pool.

    Attributes:
        pool: The pool.
        num_nodes: Blocks that the tree holds, in use or not.
        nodes: The node that holds each block; None where none does.
        stamps: When each block became idle.
    """

    __slots__ = ("_entries", "_heap", "_pushes", "nodes", "num_nodes", "pool", "stamps")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.num_nodes = 0
        self.nodes: list[Node | None] = [None] * pool.num_blocks
        self.stamps = [0] * pool.num_blocks
        self._entries = [0] * pool.num_blocks  # each block's latest in the heap; 0 for none
        self._heap: list[tuple[int, int, int]] = []  # stamp, number, block; stale ones are skipped
        self._pushes = 0

    def evictable(self) -> dict[int, int]:
        """Blocks that `pop` may give, with their stamps."""
        return {block: stamp for stamp, number, block in self._heap if self._valid(number, block)}

    def keep(self, block: int, node: Node) -> None:
        """A node holds a block from here on, which somebody references."""
        self.pool.retain(block)
        self.num_nodes += 1
        self.nodes[block] = node

    def forget(self, block: int) -> None:
        """No node holds a block any more: it is free as soon as nobody references it."""
        self.nodes[block] = None
        self.num_nodes -= 1
        self._entries[block] = 0
        self.pool.forget(block)

    def node_of(self, block: int) -> Node:
        """The node that holds a block."""
        node = self.nodes[block]
        if node is None:
            raise RuntimeError(f"block {block} is not in the radix tree")
        return node

    def note_idle(self, block: int, stamp: int, *, evictable: bool = True) -> None:
        """Nobody references a block any more; it may be given up now, or after a `push`."""
        self.stamps[block] = stamp
        self._entries[block] = 0
        if evictable:
            self.push(block)

    def push(self, block: int) -> None:
        """An idle block may be given up: before those of larger stamps, and after others."""
        self._pushes += 1
        self._entries[block] = self._pushes
        heapq.heappush(self._heap, (self.stamps[block], self._pushes, block))
        if len(self._heap) > 4 * self.pool.num_blocks + 64:
            self._heap = [entry for entry in self._heap if self._valid(entry[1], entry[2])]
            heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        """The node of the idle block with the smallest stamp; None where there is none."""
        while self._heap:
            _, number, block = heapq.heappop(self._heap)
            if self._valid(number, block):
                return self.nodes[block]
        return None

    def _valid(self, number: int, block: int) -> bool:
        return self._entries[block] == number and self.pool.references(block) == 0
