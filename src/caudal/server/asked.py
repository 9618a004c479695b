"""What a route is given: the body, read, and the model that it names, found.

Both happen here and nowhere else, so that no route knows how many models there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import Depends, Request
from msgspec.structs import replace

from caudal.errors import ModelUnavailableError, UnknownModelError
from caudal.server.asking import RequestAsking
from caudal.server.batch_lines import BATCH_LINE, context_of_line
from caudal.server.body import ARRIVED, BodyReader
from caudal.server.cors import is_of_foreign_page
from caudal.server.field_names import field_names, set_field_names
from caudal.server.ignored import note_ignored
from caudal.server.limits import ServerLimits
from caudal.server.quotas import take
from caudal.server.records import record_of
from caudal.server.said import Said
from caudal.server.streaming import run_until_disconnect
from caudal.server.tenancy import tenant_of
from caudal.server.tenant_models import TenantModels
from caudal.server.waiting_for_models import models_of
from caudal.service.adapted import AdaptedService
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.models import Found, Lease, Models
from caudal.service.naming import FieldNames
from caudal.service.normalising import NormalisingService
from caudal.service.observed import ObservedService
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Asked(Generic[B]):
    """A request for a model.

    Attributes:
        request: The request.
        body: What it says.
        found: The model that answers.
        context: What travels with the work.
    """

    request: Request
    body: B
    found: Found
    context: RequestContext

    @property
    def name(self) -> str:
        """The name that it is answered under. It may change until the answer begins."""
        name = self.found.name
        if tenant_of(self.request.scope).rules.allows_model(name):
            return name
        asked: str | None = getattr(self.body, "model", None)
        return asked or name

    @property
    def model(self) -> Service:
        """The one that answers."""
        return self.found.service

    @property
    def lease(self) -> Lease:
        """Keeps the model loaded until the request is answered."""
        return self.found.lease

    @property
    def is_strict(self) -> bool:
        """Whether the server refuses what would have no effect."""
        strict: bool = self.request.app.state.strict_fields
        return strict

    def note_ignored(self, fields: Iterable[str]) -> None:
        """Say of fields, by our names or the API's, that they have no effect.

        Raises:
            BodyError: The server was told to be strict.
        """
        names = field_names(self.request.scope)
        note_ignored(self.request, map(names.of, fields))

    def name_fields(self, names: FieldNames) -> None:
        """Name fields otherwise from here on, as only now is known what they are called."""
        set_field_names(self.request.scope, names)


class AskReader(BodyReader[B]):
    """Reads a route's body and finds its model; a FastAPI dependency.

    Args:
        kind: See `BodyReader`.
        task: What the route asks of the model; None where any model will do.
    """

    def __init__(self, kind: Any, task: Task | None) -> None:
        super().__init__(kind)
        self._task = task

    async def __call__(self, request: Request) -> Any:
        """Read the body and find the model.

        Raises:
            BodyError: See `BodyReader`.
            UnknownModelError, UnsupportedTaskError, ParameterError: See `ask`.
        """
        body: Any = await super().__call__(request)
        set_field_names(request.scope, body.field_names())
        return await self.ask(request, body)

    async def ask(self, request: Request, body: Any) -> Any:
        """What the route is given: an `Asked`, unless a subclass says otherwise.

        Raises:
            LimitError: The key has asked enough.
            UnknownModelError, UnsupportedTaskError: See `Models.resolve`.
            ParameterError: It asks for an adapter that isn't there.
        """
        record = record_of(request.scope)
        record.asked_model = body.model
        own = replace(body.context(), arrived=request.scope[ARRIVED], request_id=record.id)
        limits: ServerLimits = request.app.state.limits
        tenant = tenant_of(request.scope)
        if own.priority < 0 and not tenant.rules.admin:
            note_ignored(request, ["priority"])
        context = limits.applied(tenant.applied(own))
        record.user = context.user
        asking = RequestAsking(request, body)
        if BATCH_LINE in request.scope:
            context = context_of_line(own, context)
        else:
            take(request, body, asking)
        try:
            found = await self._find(request, asking, body.model, context)
        except UnknownModelError:
            if request.app.state.strict_fields or not body.takes_any_model():
                raise
            note_ignored(request, ["model"])
            found = await self._find(request, asking, None, context)
        models_of(request.scope).keep(found)
        adapter = body.adapter(found.service)
        if adapter is not None:
            found.name, found.service = adapter.name, AdaptedService(found.service, adapter)
        found.service = ObservedService(found, record, log_prompts=request.app.state.log_prompts)
        if presets := request.app.state.normalise_prompts:
            said: Said = request.app.state.normalised_prompts
            note = partial(said.say, request)
            found.service = NormalisingService(found.service, presets, note)
        return Asked(request, body, found, context)

    async def _find(
        self, request: Request, asking: RequestAsking, name: str | None, context: RequestContext
    ) -> Found:
        """Find a model; wait for it where it has to be loaded, as long as the client does."""
        keep_alive: Any = asking.body.keep_alive
        if keep_alive is not None and not tenant_of(request.scope).rules.admin:
            note_ignored(request, ["keep_alive"])  # how long models stay is for others to say
            keep_alive = None
        models = served_models(request).of_request(asking)
        found = models.find_now(name, self._task, keep_alive=keep_alive)
        if found is not None:
            return found
        return await asking.wait(
            models.resolve(name, self._task, context=context, keep_alive=keep_alive)
        )


def asks(kind: Any, task: Task | None) -> Any:
    """What a route's parameter is annotated with whose argument is an `Asked`."""
    return Depends(AskReader(kind, task))


def served_models(request: Request) -> Models:
    """The models that there are to who asks."""
    models: Models = request.app.state.models
    rules = tenant_of(request.scope).rules
    return TenantModels(models, rules) if rules.models else models


async def queried_model(request: Request) -> Service:
    """The model that `?model=` names, of routes that ask about one; by default the only one.

    It is loaded where it isn't, unless `autoload=false` says otherwise. To be asked about doesn't
    keep it loaded, so that those who look in from time to time don't.

    Raises:
        ModelUnavailableError: It isn't loaded, and isn't to be.
        UnknownModelError, ParameterError, …: See `Models.resolve`.
    """
    models, name = served_models(request), request.query_params.get("model")
    autoload = request.query_params.get("autoload", "true").lower() not in ("false", "0")
    if is_of_foreign_page(request.headers, request.app.state.origins):
        autoload = False  # an image on any page would do to have models loaded here
    loaded = models.loaded(name)
    if loaded is not None:
        return loaded
    if not autoload:
        raise ModelUnavailableError(name or "", "isn't loaded")
    context = tenant_of(request.scope).applied(NO_CONTEXT)  # it waits among the tenant's own
    found = await run_until_disconnect(request, models.resolve(name, context=context))
    models_of(request.scope).keep(found)
    return found.service
