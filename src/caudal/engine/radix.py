"""The prefix cache: a radix tree over tokens whose nodes are KV blocks.

Follows RadixAttention (SGLang, arXiv 2312.07104) on paged memory. A node is one block: its key is
the tuple of tokens the block holds, so that a path from the root spells a sequence. Nodes with
fewer tokens than a block has room for are leaves. Siblings are kept in sorted order as well as in
a dictionary: whole blocks are found by hash, and the sibling that shares the longest *part* of a
block is a neighbour in that order, which makes the match token-exact without a scan.

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

Key = tuple[int, ...]


class Node:
    """A block's worth of tokens at one place in the tree.

    Attributes:
        key: The tokens the block holds.
        end: Tokens from the root up to and including this node.
        block: Physical block, or -1 for a root and for a node no longer in the tree.
        parent: The node before it; None for a root.
        children: Nodes that continue this one, by key. Only full nodes have any.
        order: The children's keys, sorted.
        stamp: When its block became idle; eviction takes the smallest.
    """

    __slots__ = ("block", "children", "end", "key", "order", "parent", "stamp")

    def __init__(self, key: Key, end: int, block: int, parent: Node | None) -> None:
        self.key = key
        self.end = end
        self.block = block
        self.parent = parent
        self.children: dict[Key, Node] = {}
        self.order: list[Key] = []
        self.stamp = 0


class _Root(Node):
    """The start of all sequences that share a cache salt."""

    __slots__ = ("salt",)

    def __init__(self, salt: str | None) -> None:
        super().__init__((), 0, -1, None)
        self.salt = salt


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
    """Cached prefixes on the blocks of a pool, one root per cache salt.

    Args:
        pool: The pool whose blocks the tree retains.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._roots: dict[str | None, _Root] = {}
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
        self, salt: str | None, tokens: Sequence[int], limit: int, hint: Node | None = None
    ) -> Match:
        """Find the longest cached prefix of `tokens[:limit]`. Changes nothing.

        Args:
            salt: Selects the root.
            tokens: The sequence.
            limit: Most tokens to match.
            hint: A node that an earlier match of the same sequence ended at. If it is still
                there so are its ancestors (only leaves are evicted), so the walk goes on from it.
        """
        node: Node | None = hint
        if node is None or node.block < 0 or node.end > limit:
            node = self._roots.get(salt)
            if node is None:
                return Match()
        size = self._pool.block_size
        position = node.end
        while position + size <= limit:
            child = node.children.get(tuple(tokens[position : position + size]))
            if child is None:
                break
            node = child
            position += size
        match = Match(node if node.block >= 0 else None, position)
        if node.order and position < limit:
            self._match_part(node, tuple(tokens[position : min(position + size, limit)]), match)
        return match

    @staticmethod
    def _match_part(node: Node, rest: Key, match: Match) -> None:
        order = node.order
        place = bisect_left(order, rest)
        for key in order[max(place - 1, 0) : place + 1]:
            shared = common_prefix(key, rest)
            if shared > match.extra:
                match.extra = shared
                match.source = node.children[key]

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
        salt: str | None,
        tokens: Sequence[int],
        length: int,
        blocks: list[int],
        start: Node | None,
    ) -> Node | None:
        """Retain the whole blocks of `tokens[:length]`, which the caller references.

        Where the tree has a block of the same content already, the caller's is given up for it:
        `blocks` is changed in place, so that the caller's table references the tree's path.

        Args:
            salt: Selects the root.
            tokens: The sequence.
            length: Tokens whose KV is computed.
            blocks: The sequence's block table.
            start: The node that an earlier insertion of the sequence returned, or None.

        Returns:
            The node of the last whole block, or None if there is none.
        """
        size = self._pool.block_size
        if length < size:
            return None
        node: Node = start if start is not None else self._root(salt)
        for position in range(node.end, length - size + 1, size):
            key = tuple(tokens[position : position + size])
            index = position // size
            child = node.children.get(key)
            if child is None:
                child = self._add(node, key, blocks[index])
            elif child.block != blocks[index]:
                self._pool.acquire(child.block)
                self._pool.release(blocks[index])
                blocks[index] = child.block
            node = child
        return node

    def insert_tail(
        self,
        salt: str | None,
        tokens: Sequence[int],
        length: int,
        blocks: Sequence[int],
        node: Node | None,
    ) -> None:
        """Retain the last, partly filled block of `tokens[:length]`, if there is one.

        Only for a sequence that writes no more; arguments are those of `insert`, and `node` is
        what it returned.
        """
        size = self._pool.block_size
        if length % size == 0:
            return
        parent = node if node is not None else self._root(salt)
        key = tuple(tokens[parent.end : length])
        place = bisect_left(parent.order, key)
        covered = place < len(parent.order) and parent.order[place][: len(key)] == key
        if not covered:
            self._add(parent, key, blocks[length // size])

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

    def _root(self, salt: str | None) -> _Root:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = _Root(salt)
        return root

    def _add(self, parent: Node, key: Key, block: int) -> Node:
        node = Node(key, parent.end + len(key), block, parent)
        order = parent.order
        place = bisect_left(order, key)
        order.insert(place, key)
        parent.children[key] = node
        self._pool.retain(block)
        self._nodes[block] = node
        self.version += 1
        # A shorter leaf that the new block begins with has nothing of its own left. There is at
        # most one, right before the new key in sorted order.
        if place and order[place - 1] == key[: len(order[place - 1])]:
            self._remove(parent.children[order[place - 1]])
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        del parent.order[bisect_left(parent.order, node.key)]
        self._nodes[node.block] = None
        self._pool.forget(node.block)
        node.block = -1
        self.version += 1
        if not parent.children:
            if isinstance(parent, _Root):
                del self._roots[parent.salt]
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
    """Length of the longest common prefix of two token sequences of the same type."""
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
