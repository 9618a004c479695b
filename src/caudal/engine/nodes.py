"""The nodes of the radix tree, and what is found in it."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.engine.space import Space

BlockKeys = tuple[int, ...]
"""The keys of the tokens that a block holds, one for each."""


class Node:
    """A block's worth of tokens at one place in the tree, and what is still there of each kind.

    Attributes:
        keys: Those of the tokens the block holds.
        end: Tokens from the root up to and including this node.
        block: Physical block of the main pool, or -1 for a root and for a node no longer in the
            tree.
        parent: The node before it; None for a root.
        children: Nodes that continue this one, by their keys. Only full nodes have any.
        order: What the children are found under, sorted.
        windows: Physical blocks of the pools for windows; -1 for one that is gone.
        needed: The kinds (bit k for kind k) of those of them that going on from a checkpoint
            takes: they are given up last.
        root: The start of its space; a root's is itself.
        slot: The snapshot: the slot with the recurrent layers' state after `end` tokens; -1 where
            there is none.
        chain: What further tiers know it by, once that has been asked: the first link of its space,
            and its own; see `tiers/pieces.py`.
    """

    __slots__ = (
        "block",
        "chain",
        "children",
        "end",
        "keys",
        "needed",
        "order",
        "parent",
        "root",
        "slot",
        "windows",
    )

    root: Root

    def __init__(self, keys: BlockKeys, end: int, block: int, parent: Node | None) -> None:
        self.keys = keys
        self.end = end
        self.block = block
        self.parent = parent
        self.children: dict[BlockKeys, Node] = {}
        self.order: list[BlockKeys] = []
        self.windows: list[int] = []
        self.needed = 0
        self.slot = -1
        self.chain: tuple[bytes, bytes] | None = None
        if parent is not None:
            self.root = parent.root


class Root(Node):
    """The start of all sequences of a space.

    Attributes:
        space: Whose they are.
        tokens: How many are behind it.
    """

    __slots__ = ("space", "tokens")

    def __init__(self, space: Space) -> None:
        super().__init__((), 0, -1, None)
        self.root = self
        self.space = space
        self.tokens = 0


@dataclass(slots=True)
class Match:
    """The longest cached prefix of a sequence from which every kind of memory can go on.

    Attributes:
        node: The last whole block that matches; None where not even the first does.
        length: Tokens matched by whole blocks.
        source: The node whose block's first `extra` tokens match beyond that.
        extra: Tokens of `source` that match; the caller copies its blocks to use them.
        deepest: The last whole block whose keys match, whether one can go on from there or not:
            the hint for matching again.
    """

    node: Node | None = None
    length: int = 0
    source: Node | None = None
    extra: int = 0
    deepest: Node | None = None

    @property
    def total(self) -> int:
        """Tokens that need not be computed."""
        return self.length + self.extra

    @property
    def last(self) -> Node | None:
        """The node that the last of them is in."""
        return self.source or self.node
