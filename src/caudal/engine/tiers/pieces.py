"""What tiers hold, and what it is found by.

A *piece* is what a node of the radix tree had of one kind: a block of a pool, or a slot's states.
Tiers take its bytes as they are. It is found by its *link*: a hash of all that the bytes were
computed from, that is the executor's fingerprint, who may share them, and every token up to the
node's end. A link is made of the one before it and the keys of one block, so that links form a
chain as nodes form a path. The hash is a cryptographic one: nobody finds two prefixes of one link,
so that tokens need neither be kept nor compared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

LINK_BYTES = 32

Key = tuple[bytes, int]
"""A piece's link and its kind."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a node had of one kind, without its bytes.

    Attributes:
        link: What it was computed from.
        kind: The kind, as `ExecutorInfo.block_bytes` counts them.
        first: The first link of its chain: that of who may share it.
        tokens: How many tokens its node has.
        end: How many there are up to the node's end.
        parent: The link of the node before it.
    """

    link: bytes
    kind: int
    first: bytes
    tokens: int
    end: int
    parent: bytes

    @property
    def key(self) -> Key:
        """What it is found by."""
        return (self.link, self.kind)


def first_link(fingerprint: bytes, salt: str | None, adapter: bytes | None) -> bytes:
    """Where the chains begin of those who may share prefixes with each other.

    Args:
        fingerprint: The executor's.
        salt: See `Space`.
        adapter: A digest of the adapter's changes; None for the bare model.
    """
    digest = hashlib.blake2b(digest_size=LINK_BYTES)
    for part in (
        fingerprint,
        b"" if salt is None else b"salt " + salt.encode(errors="surrogatepass"),
        adapter or b"",
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def next_link(link: bytes, keys: Sequence[int]) -> bytes:
    """The link of the node behind another, by the keys of its tokens."""
    return hashlib.blake2b(link + array("q", keys).tobytes(), digest_size=LINK_BYTES).digest()
