"""The prefix cache: which computed blocks are kept, in a radix tree over the keys of their tokens.

Follows RadixAttention (SGLang, arXiv 2312.07104) on paged memory. The tree sees a *key* for each
token: an integer that, with those before it, says what the token's KV was computed from. That is
the token id wherever nothing else stands in its place. How a prefix is found is in
`prefix_tree.py`. Nodes with fewer keys than a block has room for are leaves.

A node has a block of the main pool, always; besides, as long as they are there, one of each pool
for windows, and a *snapshot*. Those are given up by themselves, each kind for its own; with a node
all that it has goes.

A block's reference count is the node's lock. Every table that references a node's block references
the blocks of all its ancestors too (`insert` keeps it so), hence a block nobody references has no
locked descendants: everything cached can be evicted, leaf by leaf. And whoever references one of
a node's other things references its block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from caudal.engine.kv import BlockPool
from caudal.engine.nodes import BlockKeys, Node, Root
from caudal.engine.prefix_tree import PrefixTree, oldest_needed
from caudal.engine.retained import Retained
from caudal.engine.space import Space
from caudal.engine.tables import SequenceMemory

MAIN = 0
"""The kind of the main pool's blocks; those of pools for windows follow, and slots are last."""

_UNNEEDED = -1
"""The stamp of a window's block that no checkpoint needs: given up before all others."""


class RadixCache(PrefixTree):
    """Cached prefixes on the blocks of pools, one root for each space.

    Args:
        pools: Those whose blocks the tree retains, by kind.
        windows: The windows, in tokens, of those behind the first.
        has_states: Whether the last one is that of slots.
    """

    def __init__(
        self, pools: Sequence[BlockPool], windows: Sequence[int] = (), *, has_states: bool = False
    ) -> None:
        super().__init__(pools[MAIN].block_size, windows, has_states=has_states)
        self._pool = pools[MAIN]
        self._kinds = [Retained(pool) for pool in pools]
        self._main = self._kinds[MAIN]
        self._window_kinds = self._kinds[1 : 1 + len(windows)]
        self._states = self._kinds[-1] if has_states else None
        self._clock = 0
        self.gives_up: Callable[[Node, int], None] | None = None
        """Called with a node and a kind before it loses what it has of that, for lack of room."""
        self.version = 0
        """Changes whenever a match might; a match of the same version need not be repeated."""

    @property
    def num_nodes(self) -> int:
        """Blocks of the main pool that the tree holds, in use or not."""
        return self._main.num_nodes

    def holders(self) -> Sequence[Node | None]:
        """The node that holds each block of the main pool."""
        return self._main.nodes

    def by_use(self) -> list[Node]:
        """All nodes, the most recently used first, and those that others are behind before them."""
        nodes = [(self._main.stamps[i], node) for i, node in enumerate(self._main.nodes) if node]
        nodes.sort(key=lambda each: (-each[0], each[1].end))
        return [node for _, node in nodes]

    @property
    def sizes(self) -> list[int]:
        """Blocks that the tree holds of each kind, in use or not."""
        return [kind.num_nodes for kind in self._kinds]

    def clear(self, covers: Callable[[Space], bool] = lambda space: True) -> None:
        """Give up all that nobody uses right now, of some spaces, for good."""
        gives_up, self.gives_up = self.gives_up, None
        for root in list(self._roots.values()):
            if covers(root.space):
                for node in reversed(_below(root)):
                    if not node.children and self._is_idle(self._main, node.block):
                        self._remove(node)
        self.gives_up = gives_up

    def insert(self, space: Space, keys: Sequence[int], held: SequenceMemory) -> Node | None:
        """Retain the whole blocks that a sequence has computed.

        Where the tree has a block of the same content already, the sequence's is given up for it:
        its tables are changed in place, so that they reference the tree's path.

        Args:
            space: Selects the root.
            keys: The sequence's.
            held: What it has; `node` is what the insertion before returned.

        Returns:
            The node of the last whole block, or None if there is none.
        """
        size = self._block_size
        length = held.length
        if length < size:
            return None
        node: Node = held.node if held.node is not None else self._root(space)
        for position in range(node.end, length - size + 1, size):
            block_keys = tuple(keys[position : position + size])
            child = node.children.get(block_keys)
            if child is None:
                child = self._add(node, block_keys, held)
            else:
                self._share(child, held, position // size)
            node = child
        return node

    def insert_tail(self, space: Space, keys: Sequence[int], held: SequenceMemory) -> Node | None:
        """Retain what a sequence that writes no more has behind its last whole block.

        Args:
            space: Selects the root.
            keys: The sequence's.
            held: What it has; `node` is what `insert` has just returned.

        Returns:
            The node that its last token is in; None where nothing has been kept.
        """
        size = self._block_size
        length = held.length
        if length % size == 0:
            return held.node
        if self._states is not None and held.slot < 0:
            return None  # nobody could go on within a block
        parent = held.node if held.node is not None else self._root(space)
        rest = tuple(keys[parent.end : length])
        same = parent.children.get(rest)
        if same is not None:
            self._complete(same, held, parent.end // size)
            return same
        order = parent.order
        place = bisect_left(order, rest)
        if place < len(order) and order[place][: len(rest)] == rest:
            covering = parent.children[order[place]]
            if self._states is None and min(covering.windows, default=0) >= 0:
                return covering
        if self._pool.is_retained(held.blocks[parent.end // size]):
            return None  # it is still another's, and was about to be copied
        return self._add(parent, rest, held)

    def keep_state(self, node: Node, slot: int) -> None:
        """Retain a slot with the state at a node's end, or use the one that is there once more."""
        states = self._states
        assert states is not None
        if node.slot < 0:
            states.keep(slot, node)
            node.slot = slot
            self.version += 1
        elif self._is_idle(states, node.slot):
            states.note_idle(node.slot, self._clock)

    def forget_state(self, slot: int) -> None:
        """Give a snapshot up for the one sequence that references it, which will write to it."""
        assert self._states is not None
        self._drop_state(self._states.node_of(slot))

    def keep_window(self, node: Node, length: int) -> None:
        """Keep the windows of a checkpoint longer than other blocks.

        Args:
            node: The node that its last token is in.
            length: Its length.
        """
        for place, (window, retained) in enumerate(
            zip(self._windows, self._window_kinds, strict=True)
        ):
            bit = 1 << place
            each: Node | None = node
            while each is not None and each.block >= 0 and each.end > oldest_needed(window, length):
                block = each.windows[place]
                if block >= 0 and not each.needed & bit:
                    each.needed |= bit
                    if self._is_idle(retained, block):
                        retained.note_idle(block, self._clock)
                each = each.parent

    def note_idle(self, kind: int, block: int) -> None:
        """Tell the tree that something it retains is referenced by nobody any more."""
        retained = self._kinds[kind]
        node = retained.node_of(block)
        if kind == MAIN:
            retained.note_idle(block, self._clock, evictable=not node.children)
        elif retained is self._states or node.needed >> (kind - 1) & 1:
            retained.note_idle(block, self._clock)
        else:
            retained.note_idle(block, _UNNEEDED)

    def tick(self) -> None:
        """Start a new moment: what becomes idle from now on was used more recently."""
        self._clock += 1

    def evict(self, kind: int = MAIN) -> bool:
        """Free the least recently used thing of a kind that nobody references.

        That is a leaf for the main pool's blocks; nodes may lose what else they have at any time.

        Returns:
            Whether one became free.
        """
        retained = self._kinds[kind]
        node = retained.pop()
        if node is None:
            return False
        if kind == MAIN:
            self._remove(node)
        elif retained is self._states:
            self._drop_state(node)
        else:
            self._drop_window(node, kind - 1, retained)
        return True

    def _root(self, space: Space) -> Root:
        root = self._roots.get(space)
        if root is None:
            root = self._roots[space] = Root(space)
        return root

    def _add(self, parent: Node, keys: BlockKeys, held: SequenceMemory) -> Node:
        """A new node, of the blocks that a sequence has behind `parent`."""
        index = parent.end // self._block_size
        block = held.blocks[index]
        node = Node(keys, parent.end + len(keys), block, parent)
        node.root.tokens += len(keys)
        order = parent.order
        place = bisect_left(order, keys)
        order.insert(place, keys)
        parent.children[keys] = node
        self._main.keep(block, node)
        if self._windows:
            node.windows = [table.blocks[index] for table in held.windows]
            for retained, block in zip(self._window_kinds, node.windows, strict=True):
                if block >= 0:
                    retained.keep(block, node)
        self.version += 1
        # A shorter leaf that the new block begins with has nothing of its own left. There is at
        # most one, right before the new one in sorted order; but for those kept for a snapshot or
        # for blocks of windows.
        if place and order[place - 1] == keys[: len(order[place - 1])]:
            shorter = parent.children[order[place - 1]]
            if shorter.slot < 0 and all(
                mine >= 0 or other < 0
                for mine, other in zip(node.windows, shorter.windows, strict=True)
            ):
                self._remove(shorter, superseded=True)
        return node

    def _share(self, node: Node, held: SequenceMemory, index: int) -> None:
        """Let a sequence and a node of the same keys have the same blocks."""
        if node.block != held.blocks[index]:
            self._pool.acquire(node.block)
            self._pool.release(held.blocks[index])
            held.blocks[index] = node.block
        for place, retained in enumerate(self._window_kinds):
            table = held.windows[place]
            block = table.blocks[index]
            other = node.windows[place]
            if block >= 0 and other >= 0 and block != other:
                retained.pool.acquire(other)
                retained.pool.release(block)
                table.blocks[index] = other
        if self._windows:
            self._complete(node, held, index)

    def _complete(self, node: Node, held: SequenceMemory, index: int) -> None:
        """Let a node have those blocks of windows that it lacks and a sequence has."""
        for place, retained in enumerate(self._window_kinds):
            block = held.windows[place].blocks[index]
            if block >= 0 and node.windows[place] < 0 and not retained.pool.is_retained(block):
                retained.keep(block, node)
                node.windows[place] = block
                self.version += 1

    def _give_up(self, node: Node, kind: int) -> None:
        if self.gives_up is not None:
            self.gives_up(node, kind)

    def _drop_window(
        self, node: Node, place: int, retained: Retained, *, superseded: bool = False
    ) -> None:
        if not superseded and node.needed >> place & 1:
            self._give_up(node, place + 1)
        retained.forget(node.windows[place])
        node.windows[place] = -1
        node.needed &= ~(1 << place)
        self.version += 1

    def _drop_state(self, node: Node) -> None:
        """Give up a snapshot, and the nodes that led to nothing else and are idle.

        One of a part of a block goes at once, even while it is being copied from: nobody can go on
        there any more.
        """
        assert self._states is not None
        self._give_up(node, len(self._kinds) - 1)
        self._states.forget(node.slot)
        node.slot = -1
        self.version += 1
        each: Node | None = node
        while (
            each is not None
            and each.block >= 0
            and each.slot < 0
            and not each.children
            and (self._is_idle(self._main, each.block) or len(each.keys) < self._block_size)
        ):
            parent = each.parent
            self._remove(each)
            each = parent

    def _remove(self, node: Node, *, superseded: bool = False) -> None:
        """Take a leaf out; `superseded` is one of which another has all."""
        parent = node.parent
        assert parent is not None
        if node.slot >= 0:
            self._give_up(node, len(self._kinds) - 1)
        if not superseded:
            self._give_up(node, MAIN)
        del parent.children[node.keys]
        del parent.order[bisect_left(parent.order, node.keys)]
        self._main.forget(node.block)
        node.block = -1
        node.root.tokens -= len(node.keys)
        for place, retained in enumerate(self._window_kinds):
            if node.windows[place] >= 0:
                self._drop_window(node, place, retained, superseded=superseded)
        if node.slot >= 0:
            assert self._states is not None
            self._states.forget(node.slot)
            node.slot = -1
        self.version += 1
        if not parent.children:
            if isinstance(parent, Root):
                del self._roots[parent.space]
            elif self._is_idle(self._main, parent.block):
                self._main.push(parent.block)

    @staticmethod
    def _is_idle(retained: Retained, block: int) -> bool:
        return retained.pool.references(block) == 0


def _below(root: Root) -> list[Node]:
    """All nodes behind a root, each behind its parent."""
    found: list[Node] = list(root.children.values())
    for node in found:
        found.extend(node.children.values())
    return found
