"""What sequences have in memory: how it starts from the cache, grows, forks and is given back."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.engine.kv import BlockPool
from caudal.engine.radix import Match, Node, RadixCache
from caudal.engine.space import Space


class SequenceMemory:
    """What one sequence has in memory.

    Attributes:
        blocks: Its block table: the physical block of each logical block of its KV.
        length: Tokens whose KV is computed.
        node: The deepest node of the radix tree on the sequence's own path.
        copy: (source, destination) blocks to copy before the next iteration runs. It holds a
            reference to both until then.
    """

    __slots__ = ("blocks", "copy", "length", "node")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0
        self.node: Node | None = None
        self.copy: tuple[int, int] | None = None


class Memory:
    """The pool of KV blocks and the prefix cache on it, as one thing that sequences take from.

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

    def open(self, match: Match) -> SequenceMemory:
        """Memory that starts with a cached prefix.

        `match` must be fresh: nothing inserted or evicted since. A part of a block is used only
        where a block for its copy can be had.
        """
        held = SequenceMemory()
        if self.cache is None or match.total == 0:
            return held
        held.node = match.node
        held.length = match.length
        held.blocks = self.cache.path_blocks(match.node)
        for block in held.blocks:
            self.pool.acquire(block)
        if match.source is not None:
            source = match.source.block
            self.pool.acquire(source)  # before taking the destination, which may evict
            if self.num_available:
                held.copy = (source, self._take())
                held.blocks.append(held.copy[1])
                held.length += match.extra
            else:
                self._release_block(source)
        return held

    def drop_copied_part(self, held: SequenceMemory) -> None:
        """Give up the copied part of a block of what was just opened."""
        if held.copy is not None:
            source, destination = held.copy
            held.copy = None
            held.blocks.pop()
            held.length = len(held.blocks) * self.pool.block_size
            self._release_block(source)
            self._release_block(destination)

    def extend(self, held: SequenceMemory, length: int) -> bool:
        """Take blocks for tokens up to `length`, and make the first one written to exclusive.

        Returns:
            False, with nothing changed, if there are not enough blocks.
        """
        blocks = held.blocks
        size = self.pool.block_size
        first = held.length // size
        shared = first < len(blocks) and not self.pool.is_exclusive(blocks[first])
        missing = -(-length // size) - len(blocks)
        if missing <= 0 and not shared:
            return True
        if max(missing, 0) + shared > self.num_available:
            return False
        if shared:  # copy on write
            held.copy = (blocks[first], self._take())
            blocks[first] = held.copy[1]
        for _ in range(missing):
            blocks.append(self._take())
        return True

    def trim(self, held: SequenceMemory, length: int) -> None:
        """Only the first `length` tokens' KV counts: give back the blocks behind them.

        What is given back was written in the iteration just run, by this sequence alone.
        """
        held.length = length
        for block in held.blocks[self.pool.blocks_for(length) :]:
            self._release_block(block)
        del held.blocks[self.pool.blocks_for(length) :]

    def settle(self, held: SequenceMemory) -> None:
        """The pending copy has been made: let go of its source."""
        if held.copy is not None:
            self._release_block(held.copy[0])
            held.copy = None

    def fork(self, held: SequenceMemory) -> SequenceMemory:
        """A second one that shares every block; whoever writes to one first copies it."""
        twin = SequenceMemory()
        twin.blocks = held.blocks.copy()
        twin.length = held.length
        twin.node = held.node
        for block in twin.blocks:
            self.pool.acquire(block)
        return twin

    def publish(self, held: SequenceMemory, space: Space, keys: Sequence[int]) -> None:
        """Put the whole blocks computed so far into the tree, for others to share."""
        if self.cache is not None:
            held.node = self.cache.insert(space, keys, held.length, held.blocks, held.node)

    def close(self, held: SequenceMemory, space: Space, keys: Sequence[int], *, keep: bool) -> None:
        """Give all blocks back; with `keep`, those computed stay in the tree.

        A pending copy has not been made, so the part it would have filled is not kept.
        """
        if held.copy is not None:
            source, destination = held.copy
            held.copy = None
            index = held.blocks.index(destination)
            held.blocks[index] = source
            self._release_block(destination)
        if self.cache is not None:
            if keep:
                self.publish(held, space, keys)
                self.cache.insert_tail(space, keys, held.length, held.blocks, held.node)
            self.cache.tick()
        for block in reversed(held.blocks):
            self._release_block(block)
        held.blocks = []
        held.length = 0
        held.node = None

    def _take(self) -> int:
        if self.pool.num_free == 0 and (self.cache is None or not self.cache.evict()):
            raise RuntimeError("no block is available")
        return self.pool.allocate()

    def _release_block(self, block: int) -> None:
        if self.pool.release(block):
            assert self.cache is not None
            self.cache.note_idle(block)
