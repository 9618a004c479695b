"""Conversations that responses belong to, kept in memory as long as there is room."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from caudal.server.encoding import encode_json
from caudal.server.json_bounds import memory_of
from caudal.server.openai.unknown import UnknownConversationError, UnknownItemError
from caudal.server.shelf import TenantShelf
from caudal.tenants.rules import ANYONE

MAX_CONVERSATIONS = 1000
MAX_BYTES = 256 * 2**20
"""Of memory, all conversations together."""


@dataclass(slots=True)
class Conversation:
    """One conversation.

    Attributes:
        id: `conv_…`.
        metadata: The client's.
        items: What was said, oldest first.
        created_at: Unix time, in seconds.
        size: Bytes of memory that it all takes, about.
    """

    id: str
    metadata: Mapping[str, str]
    items: list[Mapping[str, Any]] = field(default_factory=list)
    created_at: int = field(default_factory=lambda: int(time.time()))
    size: int = 0

    def described(self) -> dict[str, Any]:
        """The conversation as the API gives it."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": dict(self.metadata),
        }

    def item(self, identity: str) -> Mapping[str, Any]:
        """One of its items; raises `UnknownItemError`."""
        for item in self.items:
            if item["id"] == identity:
                return item
        raise UnknownItemError(identity)


class ConversationStore:
    """Keeps the conversations that were used last. For one thread.

    Args:
        max_conversations: Most that are kept, of all tenants.
        max_bytes: Most memory that all of them may take: see `memory_of`.
    """

    def __init__(
        self, max_conversations: int = MAX_CONVERSATIONS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._shelf: TenantShelf[Conversation] = TenantShelf(max_conversations, max_bytes)
        self._owner = ANYONE.id

    def of(self, owner: str) -> ConversationStore:
        """The same store, as one tenant sees it: with its own conversations."""
        store = copy(self)
        store._owner = owner
        return store

    def __len__(self) -> int:
        return len(self._shelf)

    def create(
        self, metadata: Mapping[str, str], items: Iterable[Mapping[str, Any]]
    ) -> Conversation:
        """Begin a conversation; those that were not used for longest make room for it."""
        made = Conversation(f"conv_{secrets.token_hex(16)}", metadata, list(items))
        made.size = _size(metadata) + sum(map(_size, made.items))
        self._shelf.put(self._owner, made.id, made, made.size)
        return made

    def get(self, identity: str) -> Conversation:
        """Find a conversation; raises `UnknownConversationError`."""
        found = self._shelf.get(self._owner, identity)
        if found is None:
            raise UnknownConversationError(identity)
        return found

    def describe(self, identity: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata; nothing where the conversation is gone."""
        found = self._shelf.get(self._owner, identity)
        if found is not None:
            found.size += _size(metadata) - _size(found.metadata)
            found.metadata = metadata
            self._shelf.resize(self._owner, identity, found.size)

    def extend(self, identity: str, items: Iterable[Mapping[str, Any]]) -> None:
        """Append items; nothing where the conversation is gone meanwhile."""
        found = self._shelf.get(self._owner, identity)
        if found is not None:
            for item in items:
                found.items.append(item)
                found.size += _size(item)
            self._shelf.resize(self._owner, identity, found.size)

    def delete(self, identity: str) -> None:
        """Forget a conversation; raises `UnknownConversationError`."""
        if self._shelf.pop(self._owner, identity) is None:
            raise UnknownConversationError(identity)

    def delete_item(self, identity: str, item: str) -> Conversation:
        """Take an item out; raises `UnknownConversationError` or `UnknownItemError`."""
        found = self.get(identity)
        gone = found.item(item)
        found.items = [each for each in found.items if each is not gone]
        found.size -= _size(gone)
        self._shelf.resize(self._owner, identity, found.size)
        return found


def _size(value: Any) -> int:
    return memory_of(encode_json(value))
