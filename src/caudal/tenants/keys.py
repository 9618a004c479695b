"""Keys, as they are kept: by their hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

PREFIX = "sk-caudal-"
"""What keys begin with that are made here, so that they are found where they shouldn't be."""

KEY_BYTES = 32

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What keys may be called. Names go into logs, headers and the labels of metrics."""

RESERVED = frozenset(("anyone", "nobody"))


def new_key() -> str:
    """A key that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> bytes:
    """What is kept of a key.

    Keys are random, unlike passwords: who has the hash of one can't find it by trying, so a fast
    hash without salt is enough.
    """
    return hashlib.sha256(key).digest()


def checked_key(key: str) -> str:
    """An API key that clients can send.

    Raises:
        ValueError: There is nothing to it, or a header can't carry it.
    """
    if not key.strip():
        raise ValueError("must not be empty")
    if key != key.strip():
        raise ValueError("must not begin or end with spaces: a header can't carry them")
    if not key.isprintable():
        raise ValueError("must not have control characters: a header can't carry them")
    return key


def checked_name(name: str) -> str:
    """A name that a key can have.

    Raises:
        ValueError: It is none.
    """
    if name in RESERVED:
        raise ValueError(f"must not be {name!r}, which is who asks without a key")
    if not NAME.fullmatch(name):
        raise ValueError(
            "must have 1 to 64 letters, digits, dots, dashes and underscores, and begin with a "
            "letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key, as somebody has given it.

    Attributes:
        name: Whose it is. Every name is given once.
        digest: See `digest_of`.
        rules: What is said of it; fields of `KeyRules`.
        expires: Unix time from which it isn't one any more.
        takes_defaults: Whether what is said of all keys holds of it.
        place: Where it stands, for those who got it wrong.
    """

    name: str
    digest: bytes
    rules: Mapping[str, Any] = field(default_factory=dict)
    expires: float | None = None
    takes_defaults: bool = True
    place: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one source.

    Attributes:
        keys: They.
        defaults: What holds of every key, of any source, that doesn't say otherwise.
    """

    keys: Sequence[Key] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


class KeySource(Protocol):
    """Where keys come from."""

    def changed(self) -> bool:
        """Whether it says something else than it did when it was read last, or may."""

    def read(self) -> Keys:
        """What it says. Raises `ConfigurationError`."""


class GivenKeys(KeySource):
    """Keys that stay as they are as long as the server runs."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = Keys(tuple(keys))

    def changed(self) -> bool:
        """Never."""
        return False

    def read(self) -> Keys:
        """They."""
        return self._keys


ADMIN = "admin"
"""The name of the key that is given by itself."""


def admin_key(key: str, place: str) -> Key:
    """The one key of a server, which may do everything.

    Raises:
        ValueError: See `checked_key`.
    """
    return Key(
        name=ADMIN,
        digest=digest_of_text(key),
        rules={"admin": True},
        takes_defaults=False,
        place=place,
    )


def given_keys(text: str, place: str) -> list[Key]:
    """Several keys, between commas or line ends, each KEY or NAME=KEY.

    Raises:
        ValueError: One of them is none.
    """
    keys: list[Key] = []
    for part in re.split(r"[,\r\n]", text):
        given = part.strip()
        if not given:
            continue
        number = len(keys) + 1
        name, _, key = given.partition("=")
        if not key.strip("=") or not NAME.fullmatch(name):  # base64 ends in them, too
            name, key = f"key-{number}", given
        keys.append(
            Key(name=name, digest=digest_of_text(key.strip()), place=f"{place}, key {number}")
        )
    if not keys:
        raise ValueError("must not be empty")
    return keys


def digest_of_text(key: str) -> bytes:
    """The same of a key that somebody has written.

    Raises:
        ValueError: See `checked_key`.
    """
    return digest_of(checked_key(key).encode(errors="surrogateescape"))
