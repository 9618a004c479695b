"""The prefix cache: a radix tree over keys whose nodes are blocks of tokens.

Follows RadixAttention (SGLang, arXiv 2312.07104) on paged memory. The tree sees a *key* for each
token: an integer that, with those before it, says what the token's KV was computed from. That is
the token id wherever nothing else stands in its place. A node is one block, found under the tuple
of the keys that the block holds, so that a path from the root spells a sequence; there is a root
for each *space*. Nodes with fewer keys than a block has room for are leaves. Siblings are kept in
sorted order as well as in a dictionary: whole blocks are found by hash, and the sibling that shares
the longest *part* of a block is a neighbour in that order, which makes the match exact to the token
without a scan.

A node has a block of the main pool, always; besides, as long as they are there, one of each pool
for windows, and a *snapshot*: the slot with the recurrent layers' state at its end. A match ends
where all kinds can go on: with blocks of all its window's tokens, and at a snapshot. Those are
given up by themselves, each kind for its own; with a node all that it has goes.

A block's reference count is the node's lock. Every table that references a node's block references
the blocks of all its ancestors too (`insert` keeps it so), hence a block nobody references has no
locked descendants: everything cached can be evicted, leaf by leaf. And whoever references one of
a node's other things references its block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from caudal.engine.kv import BlockPool
from caudal.engine.nodes import BlockKeys, Match, Node, Root
from caudal.engine.retained import Retained
from caudal.engine.space import Space
from caudal.engine.tables import SequenceMemory

MAIN = 0
"""The kind of the main pool's blocks; those of pools for windows follow, and slots are last."""

_UNNEEDED = -1
"""The stamp of a window's block that no checkpoint needs: given up before all others."""


class RadixCache:
    """Cached prefixes on the blocks of pools, one root for each space.

    Args:
        pools: Those whose blocks the tree retains, by kind.
        windows: The windows, in tokens, of those behind the first.
        has_states: Whether the last one is that of slots.
    """

    def __init__(
        self, pools: Sequence[BlockPool], windows: Sequence[int] = (), *, has_states: bool = False
    ) -> None:
        self._pool = pools[MAIN]
        self._kinds = [Retained(pool) for pool in pools]
        self._main = self._kinds[MAIN]
        self._windows = [*zip(windows, self._kinds[1:], strict=not has_states)]
        self._states = self._kinds[-1] if has_states else None
        self._roots: dict[Space, Root] = {}
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

    @property
    def tokens(self) -> dict[Space, int]:
        """How many tokens the tree holds of each space."""
        return {space: root.tokens for space, root in self._roots.items()}

    def clear(self, covers: Callable[[Space], bool] = lambda space: True) -> None:
        """Give up all that nobody uses right now, of some spaces, for good."""
        gives_up, self.gives_up = self.gives_up, None
        for root in list(self._roots.values()):
            if covers(root.space):
                for node in reversed(_below(root)):
                    if not node.children and self._is_idle(self._main, node.block):
                        self._remove(node)
        self.gives_up = gives_up

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
        size = self._pool.block_size
        position = node.end
        while position + size <= limit:
            child = node.children.get(tuple(keys[position : position + size]))
            if child is None:
                break
            node = child
            position += size
        deepest = node if node.block >= 0 else None
        match = Match(deepest, position, deepest=deepest)
        if self._states is None:
            if node.order and position < limit:
                self._match_part(node, tuple(keys[position : min(position + size, limit)]), match)
            if not self._windows or self._sees_window(match.last, match.total):
                return match
        match = self._cut_back(node, keys, limit)
        match.deepest = deepest
        return match

    def following(self, space: Space, keys: Sequence[int], most: int) -> Sequence[int]:
        """Keys that came behind `keys` before, the latest where there are several. Changes nothing.

        Args:
            space: Selects the root.
            keys: The sequence's, all of them.
            most: How many keys to return at most.
        """
        node: Node | None = self._roots.get(space)
        size = self._pool.block_size
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

    @staticmethod
    def _match_part(node: Node, rest: BlockKeys, match: Match) -> None:
        order = node.order
        place = bisect_left(order, rest)
        for neighbour in order[max(place - 1, 0) : place + 1]:
            shared = common_prefix(neighbour, rest)
            if shared > match.extra:
                match.extra = shared
                match.source = node.children[neighbour]

    def without_part(self, match: Match) -> Match:
        """A match of whole blocks only, for a caller that can't copy one."""
        if match.node is None:
            return Match()
        if self._states is None and not self._windows:
            return Match(match.node, match.length)
        return self._cut_back(match.node, (), match.length)

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
            if self._states is None or node.slot >= 0:
                lacking = self._lacking_node(node, node.end)
                if lacking is None:
                    return Match(node, node.end)
            # Every length down to where a node begins that lacks a window's block needs it.
            before = (lacking or node).parent
            assert before is not None
            node = before

    def _matching_tail(self, node: Node, keys: Sequence[int], limit: int) -> Node | None:
        """The longest leaf behind a node that matches and ends in a snapshot, within a block."""
        if self._states is None or not node.order:
            return None
        end = min(node.end + self._pool.block_size - 1, limit)
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
        for place, (window, _) in enumerate(self._windows):
            first = oldest_needed(window, length)
            each: Node | None = node
            while each is not None and each.block >= 0 and each.end > first:
                if each.windows[place] < 0:
                    return each
                each = each.parent
        return None

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
        size = self._pool.block_size
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
        size = self._pool.block_size
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
        for place, (window, retained) in enumerate(self._windows):
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
        index = parent.end // self._pool.block_size
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
            for (_, retained), block in zip(self._windows, node.windows, strict=True):
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
        for place, (_, retained) in enumerate(self._windows):
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
        for place, (_, retained) in enumerate(self._windows):
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
            and (self._is_idle(self._main, each.block) or len(each.keys) < self._pool.block_size)
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
        for place, (_, retained) in enumerate(self._windows):
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
