"""What keeps the cached prefixes of tenants apart: salts that name whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_KEY, _WORD, _ALL = "key ", "word ", "all"

_MAX_OWN = 24
"""Characters of a request's own salt that are kept as they are; fewer than a digest's."""


def salt_within(identity: str, share: str | None, own: str | None) -> str:
    """A salt that no request of those has with whom a tenant shares no prefixes.

    Args:
        identity: The tenant's.
        share: See `KeyRules.share_prefixes`.
        own: What the request sets its prefixes apart by. A long one is kept as its digest, so that
            whose they are stays legible (`Space.of`).
    """
    match share:
        case None:
            space = f"{_KEY}{identity}"
        case "":
            space = _ALL
        case word:
            space = f"{_WORD}{word}"
    if own is None:
        return space
    return f"{space}\n{own if len(own) <= _MAX_OWN else _digest(own)}"


@dataclass(frozen=True, slots=True)
class SaltName:
    """Whose a salt is, in words that give nothing away.

    Attributes:
        key: The id of the one key whose requests have it.
        word: The word that keys share it by; empty: all that share with all.
        salt: A hash of what requests said themselves, or of all where nothing is known of it.
    """

    key: str | None = None
    word: str | None = None
    salt: str | None = None


def name_of(salt: str | None, *, keyed: bool) -> SaltName:
    """Whose a salt is.

    Args:
        salt: As spaces have it.
        keyed: Whether there are keys, so that salts are those of `salt_within`.
    """
    if salt is None:
        return SaltName()
    if not keyed:
        return SaltName(salt=_hash(salt))
    space, line, own = salt.partition("\n")
    hashed = _hash(own) if line else None
    if space == _ALL:
        return SaltName(word="", salt=hashed)
    if space.startswith(_KEY):
        return SaltName(key=space.removeprefix(_KEY), salt=hashed)
    if space.startswith(_WORD):
        return SaltName(word=space.removeprefix(_WORD), salt=hashed)
    return SaltName(salt=_hash(salt))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _hash(text: str) -> str:
    """Half a digest names a salt, and can't be used for one."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
