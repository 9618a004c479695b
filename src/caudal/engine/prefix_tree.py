"""Cached prefixes as a tree, and what is found in it; `radix.py` says what becomes of it.

Nodes are blocks of tokens, each found under the tuple of the keys that the block holds, so that a
path from the root spells a sequence; there is a root for each *space*. Siblings are kept in sorted
order as well as in a dictionary: whole blocks are found by hash, and the sibling that shares the
longest *part* of a block is a neighbour in that order, which makes the match exact to the token
without a scan.

A match ends where all kinds of memory can go on: with blocks of all its window's tokens, and at a
*snapshot*, the slot with the recurrent layers' state at a node's end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from caudal.engine.nodes import BlockKeys, Match, Node, Root
from caudal.engine.space import Space


class PrefixTree:
    """The nodes behind one root for each space. Nothing here changes them.

    Args:
        block_size: Tokens of a block.
        windows: The windows, in tokens, of the pools behind the main one.
        has_states: Whether there are recurrent states, to be gone on from at snapshots alone.
    """

    def __init__(self, block_size: int, windows: Sequence[int], *, has_states: bool) -> None:
        self._block_size = block_size
        self._windows = windows
        self._has_states = has_states
        self._roots: dict[Space, Root] = {}

    @property
    def tokens(self) -> dict[Space, int]:
        """How many tokens the tree holds of each space."""
        return {space: root.tokens for space, root in self._roots.items()}

    def match(
        self, space: Space, keys: Sequence[int], limit: int, hint: Node | None = None
    ) -> Match:
        """Find the longest cached prefix of `keys[:limit]`. Changes nothing.

        Args:
            space: Selects the root.
            keys: The sequence's.
            limit: Most tokens to match.
            hint: What an earlier match of the same sequence says is `deepest`. If it is still
                there so are its ancestors (only leaves are evicted), so the walk goes on from it.
        """
        node: Node | None = hint
        if node is None or node.block < 0 or node.end > limit:
            node = self._roots.get(space)
            if node is None:
                return Match()
        size = self._block_size
        position = node.end
        while position + size <= limit:
            child = node.children.get(tuple(keys[position : position + size]))
            if child is None:
                break
            node = child
            position += size
        deepest = node if node.block >= 0 else None
        match = Match(deepest, position, deepest=deepest)
        if not self._has_states:
            if node.order and position < limit:
                self._match_part(node, tuple(keys[position : min(position + size, limit)]), match)
            if not self._windows or self._sees_window(match.last, match.total):
                return match
        match = self._cut_back(node, keys, limit)
        match.deepest = deepest
        return match

    def without_part(self, match: Match) -> Match:
        """A match of whole blocks only, for a caller that can't copy one."""
        if match.node is None:
            return Match()
        if not self._has_states and not self._windows:
            return Match(match.node, match.length)
        return self._cut_back(match.node, (), match.length)

    def following(self, space: Space, keys: Sequence[int], most: int) -> Sequence[int]:
        """Keys that came behind `keys` before, the latest where there are several. Changes nothing.

        Args:
            space: Selects the root.
            keys: The sequence's, all of them.
            most: How many keys to return at most.
        """
        node: Node | None = self._roots.get(space)
        size = self._block_size
        position, end = 0, len(keys)
        while node is not None and position + size <= end:
            node = node.children.get(tuple(keys[position : position + size]))
            position += size
        if node is None:
            return ()
        following: list[int] = []
        rest = tuple(keys[position:])
        if rest:
            place = bisect_left(node.order, rest)
            if place == len(node.order) or node.order[place][: len(rest)] != rest:
                return ()
            node = node.children[node.order[place]]
            following += node.keys[len(rest) :]
        return _latest_behind(node, following, most)

    def lines_behind(self, space: Space, node: Node | None, most: int) -> Iterator[list[int]]:
        """The keys behind a node, as those have them that came last: of each child one line.

        Args:
            space: Selects the root, where there is no node.
            node: The node; None for the root.
            most: Tokens of each.
        """
        start = self._roots.get(space) if node is None else node
        for child in reversed(() if start is None else start.children.values()):
            yield _latest_behind(child, list(child.keys), most)

    def path(self, node: Node | None) -> list[Node]:
        """Nodes from the first behind the root to `node`, in order."""
        nodes: list[Node] = []
        while node is not None and node.block >= 0:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    @staticmethod
    def _match_part(node: Node, rest: BlockKeys, match: Match) -> None:
        order = node.order
        place = bisect_left(order, rest)
        for neighbour in order[max(place - 1, 0) : place + 1]:
            shared = common_prefix(neighbour, rest)
            if shared > match.extra:
                match.extra = shared
                match.source = node.children[neighbour]

    def _cut_back(self, node: Node, keys: Sequence[int], limit: int) -> Match:
        """The longest match on the way back from a node from which every kind can go on.

        Args:
            node: Its keys and those before it match.
            keys: The sequence's; empty where only whole blocks may be matched.
            limit: Most tokens to match.
        """
        while True:
            leaf = self._matching_tail(node, keys, limit)
            whole = node if node.block >= 0 else None
            if leaf is not None:
                return Match(whole, node.end, leaf, len(leaf.keys))
            if whole is None:
                return Match()
            lacking = None
            if not self._has_states or node.slot >= 0:
                lacking = self._lacking_node(node, node.end)
                if lacking is None:
                    return Match(node, node.end)
            # Every length down to where a node begins that lacks a window's block needs it.
            before = (lacking or node).parent
            assert before is not None
            node = before

    def _matching_tail(self, node: Node, keys: Sequence[int], limit: int) -> Node | None:
        """The longest leaf behind a node that matches and ends in a snapshot, within a block."""
        if not self._has_states or not node.order:
            return None
        end = min(node.end + self._block_size - 1, limit)
        rest = tuple(keys[node.end : end])
        for count in range(len(rest), 0, -1):
            leaf = node.children.get(rest[:count])
            if leaf is not None and leaf.slot >= 0 and self._sees_window(leaf, leaf.end):
                return leaf
        return None

    def _sees_window(self, node: Node | None, length: int) -> bool:
        return node is None or self._lacking_node(node, length) is None

    def _lacking_node(self, node: Node, length: int) -> Node | None:
        """The last node up to `node` that lacks a block that going on at `length` needs."""
        for place, window in enumerate(self._windows):
            first = oldest_needed(window, length)
            each: Node | None = node
            while each is not None and each.block >= 0 and each.end > first:
                if each.windows[place] < 0:
                    return each
                each = each.parent
        return None


def _latest_behind(node: Node, line: list[int], most: int) -> list[int]:
    """A line with the keys behind a node, as those have them that came last; `most` of them all."""
    while len(line) < most and node.children:
        node = next(reversed(node.children.values()))
        line += node.keys
    return line[:most]


def oldest_needed(window: int, length: int) -> int:
    """The first position of which going on at `length` needs the block: the last one at least.

    That one is copied where only a part of it matches.
    """
    return min(length - window + 1, length - 1)


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
