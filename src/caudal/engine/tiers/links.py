"""The links of the radix tree's nodes; see `pieces.py`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from caudal.engine.nodes import Node, Root
from caudal.engine.space import Space
from caudal.engine.tiers.pieces import Key, Piece, first_link, next_link

REMEMBERED = 4096
"""First links that are remembered."""


class Links:
    """Makes links, and remembers them with the nodes.

    Args:
        fingerprint: The executor's.
        adapter_digest: The digest of an adapter's changes, by its number.
    """

    def __init__(self, fingerprint: bytes, adapter_digest: Callable[[int], bytes]) -> None:
        self._fingerprint = fingerprint
        self._adapter_digest = adapter_digest
        self._firsts: OrderedDict[Space, bytes] = OrderedDict()

    @property
    def spaces(self) -> list[Space]:
        """Those that were asked for lately."""
        return list(self._firsts)

    def first(self, space: Space) -> bytes:
        """The first link of a space."""
        link = self._firsts.get(space)
        if link is None:
            adapter = None if space.adapter is None else self._adapter_digest(space.adapter)
            link = self._firsts[space] = first_link(self._fingerprint, space.salt, adapter)
            if len(self._firsts) > REMEMBERED:
                self._firsts.popitem(last=False)
        return link

    def of(self, node: Node) -> bytes:
        """A node's link. The node is in the tree."""
        return self._chain(node)[1]

    def key(self, node: Node, kind: int) -> Key:
        """What a piece of a node's is found by."""
        return (self.of(node), kind)

    def piece(self, node: Node, kind: int) -> Piece:
        """What a node has of a kind."""
        first, link = self._chain(node)
        assert node.parent is not None
        return Piece(link, kind, first, len(node.keys), node.end, self.of(node.parent))

    def _chain(self, node: Node) -> tuple[bytes, bytes]:
        """The first link of a node's space, and its own."""
        lacking = []
        each = node
        while each.chain is None:
            lacking.append(each)
            if isinstance(each, Root):
                first = self.first(each.space)
                each.chain = (first, first)
                lacking.pop()
                break
            assert each.parent is not None
            each = each.parent
        assert each.chain is not None
        first, link = each.chain
        for each in reversed(lacking):
            link = next_link(link, each.keys)
            each.chain = (first, link)
        return (first, link)
