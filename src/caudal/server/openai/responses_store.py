"""Responses that later ones go on from, kept in memory as long as there is room.

A stored response holds its whole conversation: those before it may be deleted or dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from caudal.server.encoding import encode_json
from caudal.server.json_bounds import memory_of
from caudal.server.openai.unknown import UnknownItemError, UnknownResponseError
from caudal.server.shelf import TenantShelf
from caudal.tenants.rules import ANYONE

MAX_RESPONSES = 1000
MAX_BYTES = 256 * 2**20
"""Of memory, all stored responses and their conversations together."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended.

    Attributes:
        response: As the API gives it.
        input_items: Everything that went into it, what came before it included.
    """

    response: Mapping[str, Any]
    input_items: Sequence[Mapping[str, Any]]

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """What the next response goes on from."""
        return [*self.input_items, *self.response["output"]]


class ResponseStore:
    """Keeps the responses that were used last. For one thread.

    Args:
        max_responses: Most that are kept, of all tenants.
        max_bytes: Most memory that all of them may take: see `memory_of`.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._shelf: TenantShelf[StoredResponse] = TenantShelf(max_responses, max_bytes)
        self._owner = ANYONE.id

    def of(self, owner: str) -> ResponseStore:
        """The same store, as one tenant sees it: with its own responses."""
        store = copy(self)
        store._owner = owner
        return store

    def __len__(self) -> int:
        return len(self._shelf)

    def add(self, stored: StoredResponse) -> None:
        """Keep a response; those that were not used for longest make room for it."""
        size = sum(memory_of(encode_json(part)) for part in (stored.response, stored.input_items))
        self._shelf.put(self._owner, stored.response["id"], stored, size)

    def get(self, identity: str) -> StoredResponse:
        """Find a response; raises `UnknownResponseError`."""
        found = self._shelf.get(self._owner, identity)
        if found is None:
            raise UnknownResponseError(identity)
        return found

    def find_items(self, identities: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """Items of stored conversations, by their ids.

        Raises:
            UnknownItemError: There is no item of such an id.
        """
        found: dict[str, Mapping[str, Any]] = {}
        named = set(identities)
        for stored in self._shelf.values(self._owner):
            if len(found) == len(named):
                break
            for item in stored.conversation:
                if item["id"] in named:
                    found.setdefault(item["id"], item)
        for identity in identities:
            if identity not in found:
                raise UnknownItemError(identity)
        return found

    def delete(self, identity: str) -> None:
        """Forget a response; raises `UnknownResponseError`."""
        if self._shelf.pop(self._owner, identity) is None:
            raise UnknownResponseError(identity)
