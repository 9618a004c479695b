"""What sequences have in memory, of each kind: plain data, which `memory.py` changes."""

from __future__ import annotations

from caudal.engine.nodes import Node

GONE = -1
"""Stands for a block, or a slot, that isn't there (any more)."""


class BlockTable:
    """The physical blocks of a sequence in one pool.

    Attributes:
        blocks: The physical block of each logical block of its KV; `GONE` for those that no
            query sees any more, as they lie outside its window.
        first: The first logical block that is not gone.
        copy: (source, destination) blocks to copy before the next iteration runs. It holds a
            reference to both until then.
    """

    __slots__ = ("blocks", "copy", "first")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.first = 0
        self.copy: tuple[int, int] | None = None


class SequenceMemory(BlockTable):
    """What one sequence has in memory: its table in the main pool, and what there is besides.

    Attributes:
        length: Tokens that are computed.
        node: The deepest node of the radix tree on the sequence's own path.
        kept: The longest of its lengths at which the radix tree lets others go on; see
            `checkpoints.py`.
        windows: Its tables in the pools for windows, in their order.
        slot: Where the recurrent layers' state after `length` tokens is; `GONE` where there is
            none: at the start, or in a model without such layers.
        next_slot: Where the planned step leaves its state. It holds a reference until the step has
            been run; `GONE` where none is planned.
    """

    __slots__ = ("kept", "length", "next_slot", "node", "slot", "windows")

    def __init__(self, num_windows: int = 0) -> None:
        super().__init__()
        self.length = 0
        self.node: Node | None = None
        self.kept = 0
        self.windows: tuple[BlockTable, ...] = ()
        if num_windows:
            self.windows = tuple(BlockTable() for _ in range(num_windows))
        self.slot = GONE
        self.next_slot = GONE

    @property
    def tables(self) -> tuple[BlockTable, ...]:
        """Those of all pools, the main one's first."""
        return (self, *self.windows)
