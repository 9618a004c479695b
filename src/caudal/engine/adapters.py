"""The adapters that an executor has: which of them requests may ask for, and how many use each.

An adapter that is *withdrawn* takes no more requests. Those that it has go on to their ends, and
then its memory is given back. Numbers are never given twice, so that what was cached with an
adapter that is gone is never taken for another's.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caudal.backends.executor import Executor, LoadedAdapter
from caudal.errors import UnknownAdapterError
from caudal.formats.lora.adapter import Adapter


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """An adapter that requests may ask for.

    Attributes:
        number: What requests call it, from 0 on.
        name: What people call it; once it is withdrawn another may have it.
        source: The file or folder that it is from.
        loaded: What the executor says of it.
    """

    number: int
    name: str
    source: str
    loaded: LoadedAdapter


class Adapters:
    """An executor's adapters. Any thread may `check`; all else is for the engine's.

    Args:
        executor: Has them.
        hashes: Whether `digest` is going to be asked for.
    """

    def __init__(self, executor: Executor, *, hashes: bool = False) -> None:
        self._executor = executor
        self._hashes = hashes
        self._numbers = itertools.count()
        self._offered: dict[int, EngineAdapter] = {}
        self._held: dict[int, EngineAdapter] = {}  # those that are withdrawn and in use, too
        self._users: Counter[int] = Counter()
        self._digests: dict[int, bytes] = {}

    @property
    def offered(self) -> Sequence[EngineAdapter]:
        """Those that requests may ask for, in the order of loading."""
        return tuple(self._offered.values())

    @property
    def users(self) -> Mapping[str, int]:
        """How many requests live, by the name of their adapter; of all that are held."""
        users = dict.fromkeys([adapter.name for adapter in self._held.values()], 0)
        for number, adapter in self._held.items():
            users[adapter.name] += self._users[number]
        return users

    def name(self, number: int) -> str:
        """What people call an adapter that is or was there; of one that is gone its number."""
        held = self._held.get(number)
        return f"#{number}" if held is None else held.name

    def check(self, number: int | None) -> None:
        """Raises `UnknownAdapterError` where a request can't have the adapter that it asks for."""
        if number is not None and number not in self._offered:
            held = self._held.get(number)
            raise UnknownAdapterError(str(number) if held is None else held.name)

    def load(self, name: str, adapter: Adapter) -> EngineAdapter:
        """Take an adapter; raises what `Executor.load_adapter` raises."""
        loaded = self._executor.load_adapter(adapter)
        made = EngineAdapter(next(self._numbers), name, adapter.source, loaded)
        self._held[made.number] = self._offered[made.number] = made
        if self._hashes:
            self._digests[made.number] = _digest(adapter)
        return made

    def digest(self, number: int) -> bytes:
        """What an adapter that is or was loaded changes, hashed."""
        return self._digests[number]

    def withdraw(self, number: int) -> None:
        """Let no more requests have an adapter; `settle` follows. Any thread may do this much."""
        self._offered.pop(number, None)

    def settle(self, number: int) -> None:
        """Unload an adapter that is withdrawn, if no request uses it any more."""
        if number in self._held and number not in self._offered and not self._users[number]:
            self._executor.unload_adapter(self._held.pop(number).loaded.index)
            del self._users[number]

    def unload(self, number: int) -> None:
        """Let no more requests have an adapter; it is gone once those that it has have ended."""
        self.withdraw(number)
        self.settle(number)

    def enter(self, number: int | None) -> int | None:
        """A request begins to live; returns the executor's number of its adapter."""
        if number is None:
            return None
        self._users[number] += 1
        return self._held[number].loaded.index

    def leave(self, number: int | None) -> None:
        """A request has ended."""
        if number is not None:
            self._users[number] -= 1
            self.settle(number)


def _digest(adapter: Adapter) -> bytes:
    """A hash of what an adapter changes: those of the same one compute the same."""
    digest = hashlib.sha256()
    for name, change in sorted(adapter.matrices.items()):
        digest.update(f"{name} {change.scale!r} {change.a.shape} {change.b.shape}\n".encode())
        digest.update(change.a.tobytes())
        digest.update(change.b.tobytes())
    return digest.digest()
