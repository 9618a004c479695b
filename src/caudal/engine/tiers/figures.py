"""What the prefix cache holds and has done, by tier: plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from caudal.engine.space import Space


class SpaceTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens are kept of those who share prefixes with each other.

    Attributes:
        salt: Their cache salt; None: they have none.
        adapter: The name of their adapter; None: the bare model.
        known: Whether that much is known: of what an earlier process has left on a disk it is once
            somebody asks with the same salt.
        tokens: How many.
    """

    salt: str | None
    adapter: str | None
    known: bool
    tokens: int


class TierFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier holds and has done.

    Attributes:
        tier: `pool` for that which the model computes with, `memory` beyond it, or `disk`.
        bytes: What it takes.
        tokens: Tokens that it holds.
        hits: Requests that took something from it; from the pool, too, what came from others.
        misses: Requests that took nothing from it, and were looked for there.
        hit_tokens: Tokens taken from it.
        spaces: Whose tokens they are, most first.
    """

    tier: str
    bytes: int
    tokens: int
    hits: int
    misses: int
    hit_tokens: int
    spaces: tuple[SpaceTokens, ...]


class PrefixCacheFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix cache holds and has done.

    Attributes:
        tiers: The tiers that there are, the fastest first; none where nothing is kept.
        prompt_tokens: Tokens of prompts of all requests that have started.
        cached_tokens: Those of them that weren't computed, whichever tier they were in.
    """

    tiers: tuple[TierFigures, ...]
    prompt_tokens: int
    cached_tokens: int


class SpaceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whose cached prefixes are meant.

    Attributes:
        salt: Those of this cache salt; None: all.
        and_below: Those of salts that go on behind it in a new line, too.
    """

    salt: str | None = None
    and_below: bool = False

    def covers(self, space: Space) -> bool:
        """Whether a space is meant, whatever its adapter."""
        return self.covers_salt(space.salt)

    def covers_salt(self, salt: str | None) -> bool:
        """Whether spaces of a salt, as they have it, are meant."""
        if self.salt is None:
            return True
        if salt is None:
            return False
        below = self.and_below and salt.startswith(f"{self.salt}\n")
        return below or salt == Space.of(self.salt).salt


class PrefixCacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """What became of cached prefixes that were to be given up.

    Attributes:
        tokens: Tokens that were given up, by tier.
        kept_tokens: Those of the pools that stay, as running requests use them.
    """

    tokens: Mapping[str, int]
    kept_tokens: int
