"""Requests on their way to the engine: checked, and not in a queue yet."""

from __future__ import annotations

from caudal.engine.request import Request


class Arriving:
    """How many there are, and whose. Whoever changes it holds the lock that guards it.

    Attributes:
        total: How many.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str | None, int] = {}
        self._weights: dict[str | None, float] = {}

    def add(self, request: Request) -> None:
        """One more comes."""
        tenant = request.tenant
        self.total += 1
        self._counts[tenant] = self._counts.get(tenant, 0) + 1
        self._weights[tenant] = request.weight

    def remove(self, request: Request) -> None:
        """One has arrived."""
        tenant = request.tenant
        self.total -= 1
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant], self._weights[tenant]

    def count(self, tenant: str | None) -> int:
        """How many are a tenant's."""
        return self._counts.get(tenant, 0)

    def weights(self) -> dict[str | None, float]:
        """Those of the tenants whose there are any."""
        return self._weights.copy()
