"""What sequences have in memory: how it starts from the cache, grows, forks and is given back."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.backends.executor import WindowPool, blocks_of_window
from caudal.engine.checkpoints import CHECKPOINTS, Checkpoints
from caudal.engine.kv import BlockPool
from caudal.engine.nodes import Match, Node
from caudal.engine.prefix_tree import oldest_needed
from caudal.engine.radix import MAIN, RadixCache
from caudal.engine.space import Space
from caudal.engine.tables import GONE, BlockTable, SequenceMemory


class Memory:
    """The pools and the prefix cache on them, as one thing that sequences take from.

    Args:
        num_blocks: Blocks in the main pool, for the layers that see all tokens.
        block_size: Tokens a block holds, in every pool.
        prefix_cache: Keep blocks of ended and preempted sequences for those that start the same.
        windows: The pools for layers that see no further than a window.
        num_slots: Slots for recurrent layers' states; 0 where the model has none.
        checkpoints: Where prompts can be taken up again that don't keep everything.

    Attributes:
        pool: The main pool.
        windows: The others, in the same order.
        slots: The slots, counted like blocks; None where the model has none.
        pools: All of them, by kind; see `radix.MAIN`.
        cache: The prefix cache; None without.
        has_more_kinds: Whether there is anything but the main pool.
        slot_kind: The kind of slots, where there are any.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool,
        windows: Sequence[WindowPool] = (),
        num_slots: int = 0,
        checkpoints: Checkpoints = CHECKPOINTS,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.windows = tuple(BlockPool(pool.num_blocks, block_size) for pool in windows)
        self.slots = BlockPool(num_slots, 1) if num_slots else None
        self.has_more_kinds = bool(windows) or num_slots > 0
        self._lengths = [pool.window for pool in windows]
        self._checkpoints = checkpoints
        self.pools = [self.pool, *self.windows]
        self.slot_kind = len(self.pools)
        if self.slots is not None:
            self.pools.append(self.slots)
        self.cache: RadixCache | None = None
        if prefix_cache:
            self.cache = RadixCache(self.pools, self._lengths, has_states=num_slots > 0)

    def available(self, kind: int = MAIN) -> int:
        """Blocks of a pool that can be had right now: the free ones and everything cached."""
        pool = self.pools[kind]
        return pool.num_blocks - pool.num_used

    def lacking(self, held: SequenceMemory, length: int) -> list[int]:
        """Blocks of each pool that so many tokens take, beyond what is held.

        Of a pool for a window no more than a sequence has there between two steps.
        """
        blocks = self.pool.blocks_for(length)
        lacking = [blocks - len(held.blocks)]
        for table, window in zip(held.windows, self._lengths, strict=True):
            most = min(blocks, blocks_of_window(window, self.pool.block_size))
            lacking.append(max(0, most - (len(table.blocks) - table.first)))
        return lacking

    def open(self, match: Match) -> SequenceMemory:
        """Memory that starts with a cached prefix.

        `match` must be fresh: nothing inserted or evicted since. A part of a block is used only
        where blocks for its copies can be had.
        """
        held = SequenceMemory(len(self.windows))
        if self.cache is None or match.total == 0:
            return held
        path = self.cache.path(match.node)
        held.node = match.node
        held.length = match.length
        for kind, table in enumerate(held.tables):
            if kind:
                table.first = min(self._first_seen(kind, match.total), len(path))
            seen = path[table.first :]
            table.blocks = [GONE] * table.first + [block_of(node, kind) for node in seen]
            for block in table.blocks[table.first :]:
                self.pools[kind].acquire(block)
        last = match.last
        assert last is not None
        if self.slots is not None:
            held.slot = last.slot
            self.slots.acquire(held.slot)
        if match.source is not None and not self._copy_part(held, match.source, match.extra):
            self.close(held, Space(), (), 0, keep=False)
            return self.open(self.cache.without_part(match))
        held.kept = held.length
        return held

    def _copy_part(self, held: SequenceMemory, source: Node, extra: int) -> bool:
        """Use the first `extra` tokens of a node by copying its blocks, if there are enough."""
        tables = held.tables
        blocks = [block_of(source, kind) for kind in range(len(tables))]
        for kind, block in enumerate(blocks):
            self.pools[kind].acquire(block)  # before taking the destinations, which may evict
        if not all(self.available(kind) for kind in range(len(tables))):
            for kind, block in enumerate(blocks):
                self.release(kind, block)
            return False
        for kind, table in enumerate(tables):
            table.copy = (blocks[kind], self.take(kind))
            table.blocks.append(table.copy[1])
        held.length += extra
        return True

    def extend(self, held: SequenceMemory, length: int, *, proposes: bool = False) -> bool:
        """Take what tokens up to `length` need, and make the first block written to exclusive.

        Args:
            held: What the sequence has.
            length: Tokens that it has after the next step.
            proposes: The step may turn out not to count, so the state before it stays as it is.

        Returns:
            False, with nothing changed, if there is not enough of any kind.
        """
        pool, blocks = self.pool, held.blocks
        size = pool.block_size
        if (
            length <= len(blocks) * size
            and not self.has_more_kinds
            and pool.is_exclusive(blocks[held.length // size])
        ):
            return True  # the usual case: a token more in a block of one's own
        if self._lacks(pool, held, length, held.length) > self.available():
            return False
        for kind, table in enumerate(held.windows, 1):
            if self._lacks(self.pools[kind], table, length, held.length) > self.available(kind):
                return False
        if self.slots is not None and not self._take_next_slot(held, proposes=proposes):
            return False
        for kind, table in enumerate(held.tables):
            self._grow(kind, table, length, held.length)
        return True

    def finds_slot(self, held: SequenceMemory, *, proposes: bool = False) -> bool:
        """Whether there is a slot for the state after the next step, if the model has any.

        That is a fresh one, or the one that only this sequence has, and at most the tree. While a
        step runs a sequence may have two.
        """
        slots = self.slots
        if slots is None or self.available(self.slot_kind):
            return True
        return held.slot != GONE and not proposes and slots.references(held.slot) == 1

    def affordable(self, held: SequenceMemory, count: int, spare: int) -> int:
        """As many of the next `count` tokens as windows' pools have blocks for; one at least.

        What a chunk takes there beyond a window comes back after it, so a smaller one is better
        than taking another's.

        Args:
            held: What the sequence has.
            count: Tokens that it would like to compute.
            spare: Blocks to leave for others.
        """
        for kind, table in enumerate(held.windows, 1):
            pool = self.pools[kind]
            copied = self._lacks(pool, table, held.length, held.length)
            blocks = len(table.blocks) + self.available(kind) - copied - spare
            count = min(count, blocks * pool.block_size - held.length)
        return max(count, 1)

    def next_cut(self, held: SequenceMemory, prompt: int) -> int | None:
        """The length at which a step must end for its state to be kept; None for no such.

        Args:
            held: What the sequence has.
            prompt: Tokens of its prompt.
        """
        if self.slots is None or self.cache is None:
            return None
        return self._checkpoint_after(held.length, held, prompt)

    def last_cut(self, held: SequenceMemory, prompt: int, most: int) -> int:
        """The longest of the lengths still to come at which a running one's state will be kept.

        Args:
            held: What it has.
            prompt: Tokens of its prompt.
            most: The length must not exceed this.

        Returns:
            The length; 0 where there is none.
        """
        last, cut = 0, self.next_cut(held, prompt)
        while cut is not None and cut <= most:
            last, cut = cut, self._checkpoint_after(cut, held, prompt)
        return last

    def settle(self, held: SequenceMemory, *, proposed: bool = False) -> None:
        """A step has been run: let go of what it was copied from, and of the state before it.

        Args:
            held: What the sequence has.
            proposed: Whether its tokens count is known later; then `trim` follows.
        """
        for kind, table in enumerate(held.tables) if self.windows else ((MAIN, held),):
            if table.copy is not None:
                self.release(kind, table.copy[0])
                table.copy = None
        if self.slots is not None and not proposed:
            self._advance(held)

    def trim(self, held: SequenceMemory, length: int, context: int) -> None:
        """Only the first `length` tokens count: give back the blocks behind them.

        What is given back was written in the iteration just run, by this sequence alone. A
        recurrent state is that after all tokens of the step; where some don't count, the sequence
        goes back to where it was, and those that do are computed once more.

        Args:
            held: What the sequence has.
            length: Tokens that count.
            context: Tokens before the step.
        """
        if self.slots is not None:
            if length < held.length:
                length = context
                self._drop_next_slot(held)
            else:
                self._advance(held)
        held.length = length
        for kind, table in enumerate(held.tables):
            for block in table.blocks[self.pool.blocks_for(length) :]:
                self.release(kind, block)
            del table.blocks[self.pool.blocks_for(length) :]

    def slide(self, held: SequenceMemory) -> None:
        """Give back the blocks that no query sees any more."""
        for kind, table in enumerate(held.windows, 1):
            first = self._first_seen(kind, held.length)
            while table.first < first:
                self.release(kind, table.blocks[table.first])
                table.blocks[table.first] = GONE
                table.first += 1

    def fork(self, held: SequenceMemory) -> SequenceMemory:
        """A second one that shares everything; whoever writes to it first copies it."""
        twin = SequenceMemory(len(held.windows))
        twin.length = held.length
        twin.node = held.node
        twin.kept = held.kept
        for kind, (table, other) in enumerate(zip(held.tables, twin.tables, strict=True)):
            other.blocks = table.blocks.copy()
            other.first = table.first
            for block in table.blocks[table.first :]:
                self.pools[kind].acquire(block)
        if held.slot != GONE:
            twin.slot = held.slot
            self.pools[self.slot_kind].acquire(held.slot)
        return twin

    def publish(self, held: SequenceMemory, space: Space, keys: Sequence[int], prompt: int) -> None:
        """Put the whole blocks computed so far into the tree, for others to share.

        Args:
            held: What the sequence has.
            space: Who may share it.
            keys: The sequence's.
            prompt: Tokens of its prompt.
        """
        if self.cache is None:
            return
        before = 0 if held.node is None else held.node.end
        held.node = self.cache.insert(space, keys, held)
        if self.has_more_kinds and held.node is not None:
            self._keep_checkpoints(held, before, prompt)

    def close(
        self, held: SequenceMemory, space: Space, keys: Sequence[int], prompt: int, *, keep: bool
    ) -> None:
        """Give everything back; with `keep`, what is computed stays in the tree.

        Pending copies have not been made, so the parts they would have filled are not kept.

        Args:
            held: What the sequence has.
            space: Who may share it.
            keys: The sequence's.
            prompt: Tokens of its prompt.
            keep: Whether to keep it.
        """
        for kind, table in enumerate(held.tables):
            if table.copy is not None:
                source, destination = table.copy
                table.copy = None
                table.blocks[table.blocks.index(destination)] = source
                self.release(kind, destination)
        self._drop_next_slot(held)
        if self.cache is not None:
            if keep:
                self.publish(held, space, keys, prompt)
                self._keep_end(held, space, keys)
            self.cache.tick()
        for kind, table in enumerate(held.tables):
            for block in reversed(table.blocks[table.first :]):
                self.release(kind, block)
            table.blocks = []
            table.first = 0
        if held.slot != GONE:
            self.release(self.slot_kind, held.slot)
            held.slot = GONE
        held.length = 0
        held.kept = 0
        held.node = None

    def _keep_checkpoints(self, held: SequenceMemory, before: int, prompt: int) -> None:
        """Keep what going on takes at the checkpoints that have been passed since `before`."""
        assert self.cache is not None
        assert held.node is not None
        point = self._checkpoint_after(before, held, prompt)
        while point is not None and point <= held.node.end:
            node: Node | None = held.node
            while node is not None and node.end > point:
                node = node.parent
            if node is not None and (self.slots is None or point == held.length):
                self.cache.keep_window(node, point)
                if self.slots is not None:
                    self.cache.keep_state(node, held.slot)
                held.kept = point
            point = self._checkpoint_after(point, held, prompt)

    def _keep_end(self, held: SequenceMemory, space: Space, keys: Sequence[int]) -> None:
        """Keep what is behind the last whole block, and what going on from the end takes."""
        assert self.cache is not None
        node = self.cache.insert_tail(space, keys, held)
        if node is not None and self.has_more_kinds:
            self.cache.keep_window(node, held.length)
            if held.slot != GONE:
                self.cache.keep_state(node, held.slot)

    def _checkpoint_after(self, length: int, held: SequenceMemory, prompt: int) -> int | None:
        size = self.pool.block_size
        return self._checkpoints.after(length, prompt, kept=held.kept, block_size=size)

    def _first_seen(self, kind: int, length: int) -> int:
        """The first block that the query behind `length` tokens sees, in a pool for a window."""
        return max(0, length - self._lengths[kind - 1] + 1) // self.pool.block_size

    def first_needed(self, kind: int, length: int) -> int:
        """The first block that going on at a length takes of a pool for a window, or is copied."""
        window = self._lengths[kind - 1]
        return max(0, oldest_needed(window, length)) // self.pool.block_size

    @staticmethod
    def _lacks(pool: BlockPool, table: BlockTable, length: int, computed: int) -> int:
        """Blocks that a table lacks for `length` tokens, of which some are computed.

        A block that others see too and that would be written to is to be copied.
        """
        blocks = table.blocks
        size = pool.block_size
        lacks = -(-length // size) - len(blocks)
        if lacks < 0:
            lacks = 0
        first = computed // size
        if first < len(blocks) and not pool.is_exclusive(blocks[first]):
            lacks += 1
        return lacks

    def _grow(self, kind: int, table: BlockTable, length: int, computed: int) -> None:
        """Take the blocks that a table lacks."""
        pool = self.pools[kind]
        blocks = table.blocks
        first = computed // pool.block_size
        if first < len(blocks) and not pool.is_exclusive(blocks[first]):  # copy on write
            table.copy = (blocks[first], self.take(kind))
            blocks[first] = table.copy[1]
        while len(blocks) * pool.block_size < length:
            blocks.append(self.take(kind))

    def _take_next_slot(self, held: SequenceMemory, *, proposes: bool) -> bool:
        """Find a slot for the state after the next step: the same one, if nobody else reads it."""
        slots = self.slots
        assert slots is not None
        if not self.finds_slot(held, proposes=proposes):
            return False
        if held.slot != GONE and not proposes and slots.is_exclusive(held.slot):
            held.next_slot = held.slot
        elif self.available(self.slot_kind):
            held.next_slot = self.take(self.slot_kind)
        else:
            assert self.cache is not None
            self.cache.forget_state(held.slot)
            held.next_slot = held.slot
        return True

    def _advance(self, held: SequenceMemory) -> None:
        """The state that a step has left is the sequence's."""
        if held.slot not in (GONE, held.next_slot):
            self.release(self.slot_kind, held.slot)
        held.slot, held.next_slot = held.next_slot, GONE

    def _drop_next_slot(self, held: SequenceMemory) -> None:
        """The state that a step has left, or would have, doesn't count."""
        if held.next_slot not in (GONE, held.slot):
            self.release(self.slot_kind, held.next_slot)
        held.next_slot = GONE

    def take(self, kind: int) -> int:
        """A block, or a slot: a free one, or what was used least recently of what is cached.

        Raises:
            RuntimeError: None is available; the caller asks first.
        """
        pool = self.pools[kind]
        if pool.num_free == 0 and (self.cache is None or not self.cache.evict(kind)):
            raise RuntimeError("no block is available")
        return pool.allocate()

    def release(self, kind: int, block: int) -> None:
        """Give back what was taken, or acquired of the pool."""
        if self.pools[kind].release(block):
            assert self.cache is not None
            self.cache.note_idle(kind, block)


def block_of(node: Node, kind: int) -> int:
    return node.block if kind == MAIN else node.windows[kind - 1]
