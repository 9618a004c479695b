"""Who may share what is cached: the cache space of a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MAX_SALT = 128
"""Characters of a cache salt that is kept as it is; shorter than a digest. Those that name a tenant
are, so that they can be told (`tenants/salts.py`)."""


@dataclass(frozen=True, slots=True)
class Space:
    """What must be equal for two requests to share cached prefixes. Made once for each request.

    The prefix cache keeps a space as long as anything that was cached in it, so everything here
    is small.

    Attributes:
        salt: What the client set apart its prefixes by, or None.
        adapter: The number of the adapter that they are computed with, or None.
    """

    salt: str | None = None
    adapter: int | None = None

    @classmethod
    def of(cls, cache_salt: str | None, adapter: int | None = None) -> Space:
        """The space of a request with this salt, of any length, and this adapter.

        A long salt is kept as its digest, which is longer than what is short and so never equal
        to it.
        """
        if cache_salt is not None and len(cache_salt) > MAX_SALT:
            digest = hashlib.sha512(cache_salt.encode(errors="surrogatepass")).hexdigest()
            cache_salt = f"sha512:{digest}"
        return cls(cache_salt, adapter)
