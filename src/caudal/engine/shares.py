"""How much of a queue a tenant may take, where it is full."""

from __future__ import annotations

from collections.abc import Mapping


def share_of_queue(
    most: int, tenant: str | None, weight: float, weights: Mapping[str | None, float]
) -> float:
    """How many requests of a tenant may wait in a full queue: its share by weight, and one at least
    where any may wait.

    So a queue is never full of one tenant's alone, and nobody's request that was taken has to go
    for another's. Full beyond its limit it has room for all tenants' shares, no more.

    Args:
        most: How many may wait before the queue counts as full.
        tenant: Whose share it is.
        weight: The tenant's.
        weights: Those of all tenants that have something waiting.
    """
    others = sum(each for name, each in weights.items() if name != tenant)
    return max(min(1, most), most * weight / (others + weight))
