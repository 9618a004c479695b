"""What is kept in memory for clients, each tenant's apart, as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class _Thing(Generic[V]):
    value: V
    size: int


@dataclass(slots=True)
class _Owned(Generic[V]):
    things: OrderedDict[str, _Thing[V]] = field(default_factory=OrderedDict)
    size: int = 0


class TenantShelf(Generic[V]):
    """Keeps what was used last. Whoever has most on it makes room, so nobody for others.

    Args:
        max_things: Most that are kept.
        max_bytes: Most memory that all may take.
    """

    def __init__(self, max_things: int, max_bytes: int) -> None:
        self._max_things = max_things
        self._max_bytes = max_bytes
        self._owned: dict[str, _Owned[V]] = {}
        self._count = 0
        self._size = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: str, identity: str, value: V, size: int) -> None:
        """Keep something new, of so many bytes; it may have to make room itself."""
        owned = self._owned.setdefault(owner, _Owned())
        owned.things[identity] = _Thing(value, size)
        owned.size += size
        self._count += 1
        self._size += size
        self._make_room()

    def get(self, owner: str, identity: str) -> V | None:
        """Find something of a tenant's, and have it stay for longest."""
        owned = self._owned.get(owner)
        thing = None if owned is None else owned.things.get(identity)
        if owned is None or thing is None:
            return None
        owned.things.move_to_end(identity)
        return thing.value

    def resize(self, owner: str, identity: str, size: int) -> None:
        """Something that is there takes so many bytes now."""
        owned = self._owned[owner]
        thing = owned.things[identity]
        owned.size += size - thing.size
        self._size += size - thing.size
        thing.size = size
        self._make_room()

    def pop(self, owner: str, identity: str) -> V | None:
        """Forget something; returns what it was."""
        owned = self._owned.get(owner)
        thing = None if owned is None else owned.things.pop(identity, None)
        if owned is None or thing is None:
            return None
        owned.size -= thing.size
        self._size -= thing.size
        self._count -= 1
        if not owned.things:
            del self._owned[owner]
        return thing.value

    def values(self, owner: str) -> Iterator[V]:
        """All of a tenant's, what was used last first."""
        owned = self._owned.get(owner)
        if owned is not None:
            for thing in reversed(owned.things.values()):
                yield thing.value

    def _make_room(self) -> None:
        while self._count > self._max_things:
            self._drop_of(max(self._owned, key=lambda owner: len(self._owned[owner].things)))
        while self._size > self._max_bytes:
            self._drop_of(max(self._owned, key=lambda owner: self._owned[owner].size))

    def _drop_of(self, owner: str) -> None:
        self.pop(owner, next(iter(self._owned[owner].things)))
