"""The models that a tenant may use: to it, there are no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, ParameterError, UnknownModelError
from caudal.service.asking import Asking
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.forwarding_models import ForwardingModels
from caudal.service.info import AdapterInfo
from caudal.service.models import Found, Models, ModelStatus
from caudal.service.service import Service
from caudal.tenants.rules import KeyRules

if TYPE_CHECKING:
    from caudal.models.program import Task


class TenantModels(ForwardingModels):
    """Models, without those that are kept from a tenant.

    A model is there if one of its own names is allowed, and then under all of its names. An alias,
    a route or an adapter of a model that isn't is there if its own name is allowed.

    Args:
        models: All models.
        rules: What the tenant may.
    """

    def __init__(self, models: Models, rules: KeyRules) -> None:
        super().__init__(models)
        self._rules = rules

    def of_request(self, asking: Asking) -> Models:
        """See `Models`."""
        return TenantModels(self._models.of_request(asking), self._rules)

    @property
    def services(self) -> Sequence[Service]:
        """See `Models`."""
        return [each for each in self._models.services if self._rules.allows_any(each.names)]

    @property
    def names(self) -> Sequence[str]:
        """See `Models`; those that are known to be allowed without looking further."""
        return [name for name in self._models.names if self._rules.allows_model(name)]

    def loaded(self, name: str | None) -> Service | None:
        """See `Models`."""
        found = self._models.loaded(name)
        if found is None or not (
            self._rules.allows_any(found.names) or (name and self._rules.allows_model(name))
        ):
            return None
        return self._limited(found)

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found | None:
        """See `Models`."""
        if not name or not self._rules.allows_model(name):
            return None
        found = self._models.find_now(name, task, keep_alive=keep_alive)
        if found is not None:
            found.service = self._limited(found.service)
        return found

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        """See `Models`; where no model is named and one is there to the tenant, it is meant."""
        if not name:
            name = await self._default()
        await self._check(name)
        found = await self._models.resolve(name, task, context=context, keep_alive=keep_alive)
        found.service = self._limited(found.service)
        return found

    def _limited(self, service: Service) -> Service:
        """A model, without adapters that aren't there to the tenant."""
        return _LimitedService(service, self._rules) if service.adapters else service

    async def _default(self) -> str:
        names = [status.names[0] for status in await self.statuses() if not status.deleted]
        if len(names) == 1:
            return names[0]
        if not names:
            raise UnknownModelError("", [])
        raise ParameterError(
            "model", f"model: there are several models; name one of {', '.join(names)}."
        )

    async def statuses(self) -> Sequence[ModelStatus]:
        """See `Models`."""
        return allowed_statuses(await self._models.statuses(), self._rules)

    async def status(self, name: str) -> ModelStatus:
        """See `Models`."""
        await self._check(name)
        status = await self._models.status(name)
        if name not in status.adapters and not self._rules.allows_any(_own_names(status)):
            status = replace(status, names=(name,))
        return _without_targets(status)

    async def _check(self, name: str) -> None:
        """Raises `UnknownModelError` where there is no such model to the tenant."""
        if self._rules.allows_model(name):
            return
        try:
            status = await self._models.status(name)
        except CaudalError:
            raise UnknownModelError(name, self.names) from None
        is_adapter = name in status.adapters and name not in status.names
        if status.leads_to or is_adapter or not self._rules.allows_any(status.names):
            raise UnknownModelError(name, self.names)

    async def load(self, name: str) -> None:
        """See `Models`."""
        await self._check(name)
        await self._models.load(name)

    async def unload(self, name: str) -> None:
        """See `Models`."""
        await self._check(name)
        await self._models.unload(name)


class _LimitedService(ForwardingService):
    """A model, with those of its adapters that a tenant may use."""

    def __init__(self, service: Service, rules: KeyRules) -> None:
        self._service = service
        self._rules = rules

    @property
    def target(self) -> Service:
        """The model."""
        return self._service

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return [each for each in self._service.adapters if self._rules.allows_model(each.name)]


def allowed_statuses(statuses: Iterable[ModelStatus], rules: KeyRules) -> list[ModelStatus]:
    """The models that there are to a tenant, by the names that it may use."""
    if not rules.models:
        return list(statuses)
    there = []
    for status in statuses:
        names: Sequence[str] = status.names
        if not rules.allows_any(_own_names(status)):
            names = [name for name in names if rules.allows_model(name)]
        if names:
            there.append(_without_targets(replace(status, names=names)))
    return there


def _own_names(status: ModelStatus) -> list[str]:
    return [name for name in status.names if name not in status.aliases]


def _without_targets(status: ModelStatus) -> ModelStatus:
    """What a route leads to isn't told: these may be models that there aren't."""
    return replace(status, leads_to=status.names[:1]) if status.leads_to else status
