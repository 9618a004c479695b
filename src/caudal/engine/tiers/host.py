"""Pieces in memory beyond the pools: some for good, others on their way to the disk."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from caudal.backends.executor import Bytes
from caudal.engine.tiers.pieces import Key, Piece
from caudal.engine.tiers.slabs import Slabs


class HostTier:
    """Pieces in memory, the least recently used first. Whoever calls holds the store's guard.

    Args:
        limit: Most bytes of what is to stay.
        staging: Most bytes with what is to be written to the disk, too; 0: there is none.
    """

    def __init__(self, limit: int, staging: int) -> None:
        self._limit = limit
        self._slabs = Slabs(max(limit, staging))
        self._data: dict[Key, tuple[Piece, Bytes]] = {}
        self._clean: OrderedDict[Key, None] = OrderedDict()
        self._dirty: OrderedDict[Key, None] = OrderedDict()
        self.bytes = 0
        self.tokens: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Key) -> bool:
        return key in self._data

    @property
    def has_dirty(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._dirty)

    def take(self, size: int) -> Bytes | None:
        """Memory for a piece; None where there is none: what isn't written yet stays."""
        while (data := self._slabs.take(size)) is None and self._clean:
            self._give_up_oldest()
        return data

    def put(self, piece: Piece, data: Bytes, *, dirty: bool) -> None:
        """Keep a piece.

        Args:
            piece: What it is; nothing happens where it is here.
            data: Its bytes, in memory from `take`.
            dirty: It is to be written to the disk.
        """
        if piece.key in self._data:
            return
        self._data[piece.key] = (piece, data)
        (self._dirty if dirty else self._clean)[piece.key] = None
        self.bytes += len(data)
        if piece.kind == 0:
            self.tokens[piece.first] += piece.tokens
        if not dirty:
            self._shrink()

    def get(self, key: Key) -> Bytes | None:
        """A piece's bytes, where it is here; it counts as used now."""
        found = self._data.get(key)
        if found is None:
            return None
        if key in self._clean:
            self._clean.move_to_end(key)
        return found[1]

    def next_dirty(self) -> tuple[Piece, Bytes] | None:
        """What has waited longest to be written."""
        for key in self._dirty:
            return self._data[key]
        return None

    def clean(self, key: Key) -> None:
        """A piece needn't be written any more; it stays as long as there is room."""
        if key in self._dirty:
            del self._dirty[key]
            self._clean[key] = None
            self._shrink()

    def wipe(self, firsts: Sequence[bytes] | None) -> None:
        """Forget all, or what is of some spaces, by their first links."""
        gone = [
            key for key, (piece, _) in self._data.items() if firsts is None or piece.first in firsts
        ]
        for key in gone:
            if key in self._dirty:
                del self._dirty[key]
            else:
                del self._clean[key]
            self._forget(key)

    def _shrink(self) -> None:
        """Give up what needn't be written until there is no more than is to stay."""
        while self.bytes > self._limit and self._clean:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        key, _ = self._clean.popitem(last=False)
        self._forget(key)

    def _forget(self, key: Key) -> None:
        piece, data = self._data.pop(key)
        self.bytes -= len(data)
        if piece.kind == 0:
            self.tokens[piece.first] -= piece.tokens
            if not self.tokens[piece.first]:
                del self.tokens[piece.first]
