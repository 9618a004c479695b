"""Physical KV blocks and who holds them.

In the terms of PagedAttention (arXiv 2309.06180) blocks are pages, tokens are bytes and requests
are processes. This file only counts; which blocks hold what is the radix tree's business
(`radix.py`), and how what a sequence holds grows, forks and is given back is in `memory.py`.
"""

from __future__ import annotations


class BlockPool:
    """A fixed number of blocks, each exactly one of free, in use or cached.

    A block is *in use* while a block table (or a pending copy that reads it) references it,
    *cached* while only the radix tree retains it, and *free* otherwise. A block in use may be
    retained too: then it becomes cached, not free, when its last reference goes.

    Args:
        num_blocks: Blocks in the pool; ids are 0 to `num_blocks - 1`.
        block_size: Tokens a block holds.
    """

    __slots__ = ("_free", "_references", "_retained", "_used", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and tokens, not {num_blocks} × {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._retained = [False] * num_blocks
        # Last freed, first taken: a block that was just used is likely still in the CPU's cache,
        # and memory that was never touched stays untouched.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._used = 0

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that some table references."""
        return self._used

    @property
    def num_cached(self) -> int:
        """Blocks that only the radix tree retains; given up when someone needs a block."""
        return self.num_blocks - len(self._free) - self._used

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens occupy."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """Tables (and pending copies) that reference `block`."""
        return self._references[block]

    def is_retained(self, block: int) -> bool:
        """Whether the radix tree retains `block`."""
        return self._retained[block]

    def is_exclusive(self, block: int) -> bool:
        """Whether the one table that references `block` may write to it."""
        return self._references[block] == 1 and not self._retained[block]

    def allocate(self) -> int:
        """Take a free block with one reference.

        Raises:
            IndexError: None is free; the caller evicts first.
        """
        block = self._free.pop()
        self._references[block] = 1
        self._used += 1
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a block that is in use or cached."""
        if self._references[block] == 0:
            if not self._retained[block]:
                raise RuntimeError(f"block {block} is free and cannot be referenced")
            self._used += 1
        self._references[block] += 1

    def release(self, block: int) -> bool:
        """Drop a reference.

        Returns:
            Whether the block has just become cached.
        """
        references = self._references
        if references[block] < 1:
            raise RuntimeError(f"block {block} was released more often than it was acquired")
        references[block] -= 1
        if references[block]:
            return False
        self._used -= 1
        if self._retained[block]:
            return True
        self._free.append(block)
        return False

    def retain(self, block: int) -> None:
        """Let the radix tree keep a block that is in use, beyond its last reference."""
        if self._references[block] == 0 or self._retained[block]:
            raise RuntimeError(f"block {block} is not in use, or retained already")
        self._retained[block] = True

    def forget(self, block: int) -> None:
        """Undo `retain`: the block is free at once if nobody references it."""
        if not self._retained[block]:
            raise RuntimeError(f"block {block} is not retained")
        self._retained[block] = False
        if self._references[block] == 0:
            self._free.append(block)
