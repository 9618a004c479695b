"""The prefix cache: a radix tree over keys whose nodes are KV blocks.

Follows RadixAttention (SGLang, arXiv 2312.07104) on paged memory. The tree sees a *key* for each
token: an integer that, with those before it, says what the token's KV was computed from. That is
the token id wherever nothing else stands in its place. A node is one block, found under the tuple
of the keys that the block holds, so that a path from the root spells a sequence; there is a root
for each *space*. Nodes with fewer keys than a block has room for are leaves. Siblings are kept in
sorted order as well as in a dictionary: whole blocks are found by hash, and the sibling that shares
the longest *part* of a block is a neighbour in that order, which makes the match exact to the token
without a scan.

A block's reference count is the node's lock. Every table that references a node's block references
the blocks of all its ancestors too (`insert` keeps it so), hence a block nobody references has no
locked descendants: everything cached can be evicted, leaf by leaf.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from caudal.engine.kv import BlockPool
from caudal.engine.space import Space

BlockKeys = tuple[int, ...]
"""The keys of the tokens that a block holds, one for each."""


class Node:
    """A block's worth of tokens at one place in the tree.

    Attributes:
        keys: Those of the tokens the block holds.
        end: Tokens from the root up to and including this node.
        block: Physical block, or -1 for a root and for a node no longer in the tree.
        parent: The node before it; None for a root.
        children: Nodes that continue this one, by their keys. Only full nodes have any.
        order: What the children are found under, sorted.
        stamp: When its block became idle; eviction takes the smallest.
    """

    __slots__ = ("block", "children", "end", "keys", "order", "parent", "stamp")

    def __init__(self, keys: BlockKeys, end: int, block: int, parent: Node | None) -> None:
        self.keys = keys
        self.end = end
        self.block = block
        self.parent = parent
        self.children: dict[BlockKeys, Node] = {}
        self.order: list[BlockKeys] = []
        self.stamp = 0


class _Root(Node):
    """The start of all sequences of a space."""

    __slots__ = ("space",)

    def __init__(self, space: Space) -> None:
        super().__init__((), 0, -1, None)
        self.space = space


@dataclass(slots=True)
class Match:
    """The longest cached prefix of a sequence.

    Attributes:
        node: The last whole block that matches; None where not even the first does.
        length: Tokens matched by whole blocks.
        source: The node whose block's first `extra` tokens match beyond that.
        extra: Tokens of `source` that match; the caller copies its block to use them.
    """

    node: Node | None = None
    length: int = 0
    source: Node | None = None
    extra: int = 0

    @property
    def total(self) -> int:
        """Tokens that need not be computed."""
        return self.length + self.extra


class RadixCache:
    """Cached prefixes on the blocks of a pool, one root for each space.

    Args:
        pool: The pool whose blocks the tree retains.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._roots: dict[Space, _Root] = {}
        self._nodes: list[Node | None] = [None] * pool.num_blocks  # by block
        self._idle_leaves: list[tuple[int, int, Node]] = []  # heap; stale entries are skipped
        self._pushes = 0
        self._clock = 0
        self.version = 0
        """Changes whenever a match might; a match of the same version need not be repeated."""

    @property
    def num_nodes(self) -> int:
        """Blocks that the tree holds, in use or not."""
        return sum(node is not None for node in self._nodes)

    def match(
        self, space: Space, keys: Sequence[int], limit: int, hint: Node | None = None
    ) -> Match:
        """Find the longest cached prefix of `keys[:limit]`. Changes nothing.

        Args:
            space: Selects the root.
            keys: The sequence's.
            limit: Most tokens to match.
            hint: A node that an earlier match of the same sequence ended at. If it is still
                there so are its ancestors (only leaves are evicted), so the walk goes on from it.
        """
        node: Node | None = hint
        if node is None or node.block < 0 or node.end > limit:
            node = self._roots.get(space)
            if node is None:
                return Match()
        size = self._pool.block_size
        position = node.end
        while position + size <= limit:
            child = node.children.get(tuple(keys[position : position + size]))
            if child is None:
                break
            node = child
            position += size
        match = Match(node if node.block >= 0 else None, position)
        if node.order and position < limit:
            self._match_part(node, tuple(keys[position : min(position + size, limit)]), match)
        return match

    @staticmethod
    def _match_part(node: Node, rest: BlockKeys, match: Match) -> None:
        order = node.order
        place = bisect_left(order, rest)
        for neighbour in order[max(place - 1, 0) : place + 1]:
            shared = common_prefix(neighbour, rest)
            if shared > match.extra:
                match.extra = shared
                match.source = node.children[neighbour]

    def path_blocks(self, node: Node | None) -> list[int]:
        """Blocks from the root to `node`, in order."""
        blocks: list[int] = []
        while node is not None and node.block >= 0:
            blocks.append(node.block)
            node = node.parent
        blocks.reverse()
        return blocks

    def insert(
        self,
        space: Space,
        keys: Sequence[int],
        length: int,
        blocks: list[int],
        start: Node | None,
    ) -> Node | None:
        """Retain the whole blocks of `keys[:length]`, which the caller references.

        Where the tree has a block of the same content already, the caller's is given up for it:
        `blocks` is changed in place, so that the caller's table references the tree's path.

        Args:
            space: Selects the root.
            keys: The sequence's.
            length: Tokens whose KV is computed.
            blocks: The sequence's block table.
            start: The node that an earlier insertion of the sequence returned, or None.

        Returns:
            The node of the last whole block, or None if there is none.
        """
        size = self._pool.block_size
        if length < size:
            return None
        node: Node = start if start is not None else self._root(space)
        for position in range(node.end, length - size + 1, size):
            block_keys = tuple(keys[position : position + size])
            index = position // size
            child = node.children.get(block_keys)
            if child is None:
                child = self._add(node, block_keys, blocks[index])
            elif child.block != blocks[index]:
                self._pool.acquire(child.block)
                self._pool.release(blocks[index])
                blocks[index] = child.block
            node = child
        return node

    def insert_tail(
        self,
        space: Space,
        keys: Sequence[int],
        length: int,
        blocks: Sequence[int],
        node: Node | None,
    ) -> None:
        """Retain the last, partly filled block of `keys[:length]`, if there is one.

        Only for a sequence that writes no more; arguments are those of `insert`, and `node` is
        what it returned.
        """
        size = self._pool.block_size
        if length % size == 0:
            return
        parent = node if node is not None else self._root(space)
        rest = tuple(keys[parent.end : length])
        place = bisect_left(parent.order, rest)
        covered = place < len(parent.order) and parent.order[place][: len(rest)] == rest
        if not covered:
            self._add(parent, rest, blocks[length // size])

    def note_idle(self, block: int) -> None:
        """Tell the tree that a block it retains is referenced by nobody any more."""
        node = self._nodes[block]
        if node is None:
            raise RuntimeError(f"block {block} is not in the radix tree")
        node.stamp = self._clock
        if not node.children:
            self._push(node)

    def tick(self) -> None:
        """Start a new moment: what becomes idle from now on was used more recently."""
        self._clock += 1

    def evict(self) -> bool:
        """Free the least recently used leaf that nobody references.

        Returns:
            Whether a block became free.
        """
        while self._idle_leaves:
            stamp, _, node = heapq.heappop(self._idle_leaves)
            if self._is_idle_leaf(node, stamp):
                self._remove(node)
                return True
        return False

    def _root(self, space: Space) -> _Root:
        root = self._roots.get(space)
        if root is None:
            root = self._roots[space] = _Root(space)
        return root

    def _add(self, parent: Node, keys: BlockKeys, block: int) -> Node:
        node = Node(keys, parent.end + len(keys), block, parent)
        order = parent.order
        place = bisect_left(order, keys)
        order.insert(place, keys)
        parent.children[keys] = node
        self._pool.retain(block)
        self._nodes[block] = node
        self.version += 1
        # A shorter leaf that the new block begins with has nothing of its own left. There is at
        # most one, right before the new one in sorted order.
        if place and order[place - 1] == keys[: len(order[place - 1])]:
            self._remove(parent.children[order[place - 1]])
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.keys]
        del parent.order[bisect_left(parent.order, node.keys)]
        self._nodes[node.block] = None
        self._pool.forget(node.block)
        node.block = -1
        self.version += 1
        if not parent.children:
            if isinstance(parent, _Root):
                del self._roots[parent.space]
            elif self._pool.references(parent.block) == 0:
                self._push(parent)

    def _is_idle_leaf(self, node: Node, stamp: int) -> bool:
        return (
            node.block >= 0
            and not node.children
            and node.stamp == stamp
            and self._pool.references(node.block) == 0
        )

    def _push(self, node: Node) -> None:
        self._pushes += 1
        heapq.heappush(self._idle_leaves, (node.stamp, self._pushes, node))
        if len(self._idle_leaves) > 4 * self._pool.num_blocks + 64:
            live = [e for e in self._idle_leaves if self._is_idle_leaf(e[2], e[0])]
            unique = {entry[2].block: entry for entry in live}
            self._idle_leaves = list(unique.values())
            heapq.heapify(self._idle_leaves)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two sequences of the same type."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:  # left[:low] == right[:low] and left[:high] != right[:high]
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
