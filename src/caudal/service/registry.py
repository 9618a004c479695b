"""Models that run already, whoever has started them; what runs stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from caudal.errors import ParameterError, UnknownModelError
from caudal.service.adapted import AdaptedService
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.models import NO_LEASE, Found, Models, ModelStatus
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task


class ModelRegistry(Models):
    """The models that were added, by their names; until the first is, it isn't ready."""

    memory = room = None

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}

    def add(self, service: Service) -> None:
        """Offer a model under all of its names."""
        self._services |= dict.fromkeys(service.names, service)

    @property
    def ready(self) -> bool:
        """See `Models`."""
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
    def serves_one(self) -> bool:
        """See `Models`."""
        return len(self.services) == 1

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

    @property
    def names(self) -> Sequence[str]:
        """See `Models`."""
        return list(self.by_name)

    def loaded(self, name: str | None) -> Service | None:
        """See `Models`."""
        return self.by_name.get(name) if name else self.default

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found:
        """See `Models.resolve`."""
        service = self._services.get(name) if name else self.default
        if service is None:
            assert name is not None
            by_name = self.by_name
            if name not in by_name:
                raise UnknownModelError(name, list(by_name))
            service = by_name[name]
        if task is not None:
            service.check_task(task)
        return Found(name or service.names[0], service, NO_LEASE)

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        """See `Models`."""
        return self.find_now(name, task)

    async def statuses(self) -> Sequence[ModelStatus]:
        """See `Models`."""
        return list(map(_status, self.services))

    async def status(self, name: str) -> ModelStatus:
        """See `Models`."""
        return _status(self.find_now(name).service)

    async def load(self, name: str) -> None:
        """See `Models`."""
        self.find_now(name)

    async def unload(self, name: str) -> None:
        """See `Models`."""
        found = self.find_now(name)
        raise ParameterError("model", f"The model {found.name!r} stays as long as the server does.")

    async def shutdown(self) -> None:
        """See `Models`."""
        for service in self.services:
            await service.shutdown()


def _status(service: Service) -> ModelStatus:
    return ModelStatus(
        names=service.names,
        state="loaded",
        adapters=[adapter.name for adapter in service.adapters],
        service=service,
        created=service.info.created,
        tasks=service.tasks,
        max_model_len=service.max_model_len,
    )
