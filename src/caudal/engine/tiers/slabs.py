"""Memory for pieces, in arrays of many.

The system gives an array of its own to each piece page by page, which takes ten times as long as
copying the piece, and an iteration waits for it. Large arrays it gives in huge pages, and what a
piece has had, the next one of its size has without asking.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from caudal.backends.executor import Bytes

SLAB_BYTES = 32 << 20
"""An array's bytes, at most."""

_LEAST_SLABS = 8
"""So many there may be at least, so that pieces of each size find room."""


class _Slab:
    """An array for pieces of one size.

    Args:
        size: Theirs.
        count: How many there is room for.
    """

    def __init__(self, size: int, count: int) -> None:
        self.memory = np.empty(size * count, np.uint8).data
        self.size = size
        self.free = [size * number for number in range(count)]
        self.count = count

    @property
    def bytes(self) -> int:
        return self.size * self.count

    @property
    def is_unused(self) -> bool:
        return len(self.free) == self.count


class Slabs:
    """Gives memory to pieces. All is for one thread; what was given may be dropped in any.

    Args:
        limit: Most bytes of all arrays.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slabs: dict[int, list[_Slab]] = {}
        self._bytes = 0
        self._dropped: deque[tuple[_Slab, int]] = deque()

    def take(self, size: int) -> Bytes | None:
        """Memory for a piece, until nobody holds it any more; None where there is none."""
        while self._dropped:
            slab, place = self._dropped.popleft()
            slab.free.append(place)
        of_size = self._slabs.setdefault(size, [])
        found = next((each for each in of_size if each.free), None) or self._grow(size)
        if found is None:
            return None
        slab, place = found, found.free.pop()
        # A part of an array of an array would hold the latter, not the former.
        data: Bytes = np.frombuffer(slab.memory[place : place + size], np.uint8)
        weakref.finalize(data, self._dropped.append, (slab, place)).atexit = False
        return data

    def _grow(self, size: int) -> _Slab | None:
        room = self._limit - self._bytes
        if room < size:
            room += self._give_back(size)
        usual = min(SLAB_BYTES, self._limit // _LEAST_SLABS)
        count = min(max(1, usual // size), room // size)
        if count < 1:
            return None
        slab = _Slab(size, count)
        self._slabs[size].append(slab)
        self._bytes += slab.bytes
        return slab

    def _give_back(self, size: int) -> int:
        """Let pieces of a size have what those of others don't use; returns how much that is.

        But not a little: the next of another size would find that its place has gone to those that
        come more often, and so on until none of the rare ones has any.
        """
        unused = [
            slab
            for each, slabs in self._slabs.items()
            for slab in slabs
            if each != size and slab.is_unused
        ]
        given = sum(slab.bytes for slab in unused)
        if self._slabs[size] and given <= self._limit // _LEAST_SLABS:
            return 0
        for slab in unused:
            self._slabs[slab.size].remove(slab)
        self._bytes -= given
        return given
