"""Models that stand around others, and are these but for how they are found."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.service.models import Models
from caudal.service.service import Service


class ForwardingModels(Models):
    """Passes on what doesn't depend on names; all else, others say.

    Args:
        models: Those that it stands around.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    @property
    def ready(self) -> bool:
        """See `Models`."""
        return self._models.ready

    @property
    def healthy(self) -> bool:
        """See `Models`."""
        return self._models.healthy

    @property
    def services(self) -> Sequence[Service]:
        """See `Models`."""
        return self._models.services

    @property
    def memory(self) -> int | None:
        """See `Models`."""
        return self._models.memory

    @property
    def room(self) -> int | None:
        """See `Models`."""
        return self._models.room

    @property
    def serves_one(self) -> bool:
        """See `Models`."""
        return self._models.serves_one

    async def shutdown(self) -> None:
        """See `Models`."""
        await self._models.shutdown()
