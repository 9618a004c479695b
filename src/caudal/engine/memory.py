"""A sequence's block table: how it starts from the cache, grows, forks and is given back."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.engine.kv import BlockPool
from caudal.engine.radix import Match, Node, RadixCache
from caudal.engine.space import Space


class BlockTable:
    """Where one sequence's KV lives.

    Attributes:
        blocks: Physical block of each logical block.
        length: Tokens whose KV is computed.
        node: The deepest node of the radix tree on the sequence's own path.
        copy: (source, destination) to copy before the next iteration runs. The table holds a
            reference to both until it has.
    """

    __slots__ = ("blocks", "copy", "length", "node")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0
        self.node: Node | None = None
        self.copy: tuple[int, int] | None = None


class KVMemory:
    """The pool and the prefix cache on it, as one thing that sequences take room from.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens a block holds.
        prefix_cache: Keep blocks of ended and preempted sequences for those that start the same.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.cache = RadixCache(self.pool) if prefix_cache else None

    @property
    def num_available(self) -> int:
        """Blocks that can be had right now: the free ones and everything cached."""
        return self.pool.num_blocks - self.pool.num_used

    def open(self, match: Match) -> BlockTable:
        """A table that starts with a cached prefix.

        `match` must be fresh: nothing inserted or evicted since. A part of a block is used only
        where a block for its copy can be had.
        """
        table = BlockTable()
        if self.cache is None or match.total == 0:
            return table
        table.node = match.node
        table.length = match.length
        table.blocks = self.cache.path_blocks(match.node)
        for block in table.blocks:
            self.pool.acquire(block)
        if match.source is not None:
            source = match.source.block
            self.pool.acquire(source)  # before taking the destination, which may evict
            if self.num_available:
                table.copy = (source, self._take())
                table.blocks.append(table.copy[1])
                table.length += match.extra
            else:
                self._release_block(source)
        return table

    def drop_copied_part(self, table: BlockTable) -> None:
        """Give up the copied part of a block of a table just opened."""
        if table.copy is not None:
            source, destination = table.copy
            table.copy = None
            table.blocks.pop()
            table.length = len(table.blocks) * self.pool.block_size
            self._release_block(source)
            self._release_block(destination)

    def extend(self, table: BlockTable, length: int) -> bool:
        """Make room for tokens up to `length`, and the first block written to exclusive.

        Returns:
            False, with nothing changed, if there are not enough blocks.
        """
        blocks = table.blocks
        size = self.pool.block_size
        first = table.length // size
        shared = first < len(blocks) and not self.pool.is_exclusive(blocks[first])
        missing = -(-length // size) - len(blocks)
        if missing <= 0 and not shared:
            return True
        if max(missing, 0) + shared > self.num_available:
            return False
        if shared:  # copy on write
            table.copy = (blocks[first], self._take())
            blocks[first] = table.copy[1]
        for _ in range(missing):
            blocks.append(self._take())
        return True

    def trim(self, table: BlockTable, length: int) -> None:
        """Only the first `length` tokens' KV counts: give back the blocks behind them.

        What is given back was written in the iteration just run, by this sequence alone.
        """
        table.length = length
        for block in table.blocks[self.pool.blocks_for(length) :]:
            self._release_block(block)
        del table.blocks[self.pool.blocks_for(length) :]

    def settle(self, table: BlockTable) -> None:
        """The pending copy has been made: let go of its source."""
        if table.copy is not None:
            self._release_block(table.copy[0])
            table.copy = None

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table that shares every block; whoever writes to one first copies it."""
        twin = BlockTable()
        twin.blocks = table.blocks.copy()
        twin.length = table.length
        twin.node = table.node
        for block in twin.blocks:
            self.pool.acquire(block)
        return twin

    def publish(self, table: BlockTable, space: Space, keys: Sequence[int]) -> None:
        """Put the whole blocks computed so far into the tree, for others to share."""
        if self.cache is not None:
            table.node = self.cache.insert(space, keys, table.length, table.blocks, table.node)

    def close(self, table: BlockTable, space: Space, keys: Sequence[int], *, keep: bool) -> None:
        """Give all blocks back; with `keep`, those computed stay in the tree.

        A pending copy has not been made, so the part it would have filled is not kept.
        """
        if table.copy is not None:
            source, destination = table.copy
            table.copy = None
            index = table.blocks.index(destination)
            table.blocks[index] = source
            self._release_block(destination)
        if self.cache is not None:
            if keep:
                self.publish(table, space, keys)
                self.cache.insert_tail(space, keys, table.length, table.blocks, table.node)
            self.cache.tick()
        for block in reversed(table.blocks):
            self._release_block(block)
        table.blocks = []
        table.length = 0
        table.node = None

    def _take(self) -> int:
        if self.pool.num_free == 0 and (self.cache is None or not self.cache.evict()):
            raise RuntimeError("no block is available")
        return self.pool.allocate()

    def _release_block(self, block: int) -> None:
        if self.pool.release(block):
            assert self.cache is not None
            self.cache.note_idle(block)
