"""Which model answers: whoever asks names one, and the registry finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from caudal.errors import UnknownModelError
from caudal.service.adapted import AdaptedService
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task


class ModelRegistry:
    """The models that there are, by the names that requests may use.

    It is empty while the first one loads; `caudal.server.gates.ReadinessGate` keeps requests out
    so long.
    """

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}

    def add(self, service: Service) -> None:
        """Offer a model under all of its names."""
        self._services |= dict.fromkeys(service.names, service)

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return bool(self._services)

    @property
    def healthy(self) -> bool:
        """Whether the engines of all models run."""
        return all(service.healthy for service in self.services)

    @property
    def services(self) -> list[Service]:
        """The models, each once, the first added first."""
        return list(dict.fromkeys(self._services.values()))

    @property
    def default(self) -> Service:
        """The model that is meant where none is named."""
        assert self._services, "the readiness gate let a request through"
        return self.services[0]

    @property
    def by_name(self) -> Mapping[str, Service]:
        """The models by all names that requests may use; those of adapters follow."""
        found = dict(self._services)
        for service in self.services:
            for adapter in service.adapters:
                found.setdefault(adapter.name, AdaptedService(service, adapter))
        return found

    async def resolve(self, name: str | None, task: Task | None = None) -> tuple[str, Service]:
        """The model of a name, ready to be asked.

        Args:
            name: As the request has it, a model's or an adapter's; None or empty for the default.
            task: What is to be asked of it.

        Returns:
            The name to answer under, and the model; with its adapter, where that is named.

        Raises:
            UnknownModelError: There is no such model.
            UnsupportedTaskError: It can't do that.
        """
        service = self._services.get(name) if name else self.default
        if service is None:
            assert name is not None
            by_name = self.by_name
            if name not in by_name:
                raise UnknownModelError(name, list(by_name))
            service = by_name[name]
        if task is not None:
            service.check_task(task)
        return name or service.names[0], service

    async def shutdown(self) -> None:
        """End everything that runs. Safe to call twice."""
        for service in self.services:
            await service.shutdown()
