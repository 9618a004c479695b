"""All tiers of the prefix cache together: what they hold, and the end of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from operator import mul
from typing import TypeVar

from caudal.backends.executor import ExecutorInfo
from caudal.engine.adapters import Adapters
from caudal.engine.counters import CacheCounts
from caudal.engine.radix import RadixCache
from caudal.engine.space import Space
from caudal.engine.tiers.figures import (
    PrefixCacheFigures,
    PrefixCacheReset,
    SpaceChoice,
    SpaceTokens,
    TierFigures,
)
from caudal.engine.tiers.listing import space_name
from caudal.engine.tiers.second_tier import SecondTier

K = TypeVar("K")

POOL, MEMORY, DISK = "pool", "memory", "disk"


def figures_of(
    cache: RadixCache | None,
    info: ExecutorInfo,
    counts: CacheCounts,
    adapters: Adapters,
    tier: SecondTier | None,
) -> PrefixCacheFigures:
    """What the prefix cache holds and has done."""
    tiers = []
    if cache is not None:
        further = 0 if tier is None else sum(tier.hit_tokens.values())
        tiers.append(
            _figures(
                POOL,
                sum(map(mul, cache.sizes, info.block_bytes)),
                counts.hits,
                counts.misses,
                max(0, counts.hit_tokens - further),
                _of_spaces(cache.tokens.items(), adapters),
            )
        )
    if cache is not None and tier is not None:
        by_link = {tier.links.first(space): space for space in (*tier.links.spaces, *cache.tokens)}
        held = tier.store.memory_tokens.items()
        found = _of_spaces(((by_link.get(link), tokens) for link, tokens in held), adapters)
        if tier.store.keeps or found:
            tiers.append(_of_tier(tier, MEMORY, tier.store.memory_bytes, found))
        if (disk := tier.store.disk) is not None:
            by_name = {space_name(link): space for link, space in by_link.items()}
            kept = disk.tokens.items()
            found = _of_spaces(((by_name.get(name), tokens) for name, tokens in kept), adapters)
            tiers.append(_of_tier(tier, DISK, disk.size, found))
    return PrefixCacheFigures(
        tiers=tuple(tiers), prompt_tokens=counts.prompt_tokens, cached_tokens=counts.hit_tokens
    )


def reset(
    cache: RadixCache | None, choice: SpaceChoice, adapters: Adapters, tier: SecondTier | None
) -> tuple[PrefixCacheReset, threading.Event | None]:
    """Give up what is cached, but for what sequences that run use.

    Returns:
        What became of it, and what is set once it is gone from the disk, where there is one.
    """
    if cache is None:
        return PrefixCacheReset(tokens={}, kept_tokens=0), None

    def held() -> int:
        return sum(count for space, count in cache.tokens.items() if choice.covers(space))

    if tier is None:
        before = held()
        cache.clear(choice.covers)
        return PrefixCacheReset(tokens={POOL: before - held()}, kept_tokens=held()), None
    tier.give_up_recalls()
    links, store = tier.links, tier.store
    firsts = None
    if choice.salt is not None:
        numbers = [None, *(adapter.number for adapter in adapters.offered)]
        named = [Space.of(choice.salt, number) for number in numbers]
        known = filter(choice.covers, (*cache.tokens, *links.spaces))
        firsts = list(dict.fromkeys(map(links.first, (*named, *known))))
    tokens = {POOL: held(), MEMORY: _sum(store.memory_tokens, firsts)}
    if store.disk is not None:
        names = None if firsts is None else list(map(space_name, firsts))
        tokens[DISK] = _sum(store.disk.tokens, names)
    cache.clear(choice.covers)
    done = store.wipe(firsts)
    tokens[POOL] -= held()
    return PrefixCacheReset(tokens=tokens, kept_tokens=held()), done


def _sum(tokens: Mapping[K, int], of: Iterable[K] | None) -> int:
    return sum(tokens.values() if of is None else (tokens.get(each, 0) for each in of))


def _of_tier(
    tier: SecondTier, name: str, size: int, spaces: tuple[SpaceTokens, ...]
) -> TierFigures:
    hits = tier.hits[name]
    misses = sum(tier.num_requests) - hits
    return _figures(name, size, hits, misses, tier.hit_tokens[name], spaces)


def _figures(
    name: str, size: int, hits: int, misses: int, hit_tokens: int, spaces: tuple[SpaceTokens, ...]
) -> TierFigures:
    return TierFigures(
        tier=name,
        bytes=size,
        tokens=sum(space.tokens for space in spaces),
        hits=hits,
        misses=misses,
        hit_tokens=hit_tokens,
        spaces=spaces,
    )


def _of_spaces(
    tokens: Iterable[tuple[Space | None, int]], adapters: Adapters
) -> tuple[SpaceTokens, ...]:
    """Tokens of spaces, most first; None is one of which nobody knows whose it is."""
    found = [
        SpaceTokens(
            salt=None if space is None else space.salt,
            adapter=None
            if space is None or space.adapter is None
            else adapters.name(space.adapter),
            known=space is not None,
            tokens=count,
        )
        for space, count in tokens
    ]
    return tuple(sorted(found, key=lambda each: -each.tokens))
