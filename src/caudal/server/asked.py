"""What a route is given: the body, read, and the model that it names, found.

Both happen here and nowhere else, so that no route knows how many models there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import Depends, Request
from starlette.types import Scope

from caudal.errors import UnknownModelError
from caudal.server.body import ARRIVED, BodyReader
from caudal.server.ignored import note_ignored
from caudal.service.adapted import AdaptedService
from caudal.service.context import RequestContext
from caudal.service.naming import OUR_NAMES, FieldNames
from caudal.service.registry import ModelRegistry
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task

B = TypeVar("B")

_NAMES = "caudal.field_names"


@dataclass(frozen=True, slots=True)
class Asked(Generic[B]):
    """A request for a model.

    Attributes:
        request: The request.
        body: What it says.
        name: The name that it is answered under.
        model: The one that answers.
        context: What travels with the work.
    """

    request: Request
    body: B
    name: str
    model: Service
    context: RequestContext

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
        self.request.scope[_NAMES] = names


class AskReader(BodyReader[B]):
    """Reads a route's body and finds its model; a FastAPI dependency.

    Args:
        kind: See `BodyReader`.
        task: What the route asks of the model; None where any model will do.
    """

    def __init__(self, kind: Any, task: Task | None) -> None:
        super().__init__(kind)
        self._task = task

    async def __call__(self, request: Request) -> Asked[B]:  # type: ignore[override]
        """Read the body and find the model.

        Raises:
            BodyError: See `BodyReader`.
            UnknownModelError, UnsupportedTaskError: See `ModelRegistry.resolve`.
            ParameterError: It asks for an adapter that isn't there.
        """
        body: Any = await super().__call__(request)
        request.scope[_NAMES] = body.field_names()
        registry = model_registry(request)
        try:
            name, model = await registry.resolve(body.model, self._task)
        except UnknownModelError:
            if request.app.state.strict_fields or not body.takes_any_model():
                raise
            note_ignored(request, ["model"])
            name, model = await registry.resolve(None, self._task)
        adapter = body.adapter(model)
        if adapter is not None:
            name, model = adapter.name, AdaptedService(model, adapter)
        context = replace(body.context(), arrived=request.scope[ARRIVED])
        return Asked(request, body, name, model, context)


def asks(kind: Any, task: Task | None) -> Any:
    """What a route's parameter is annotated with whose argument is an `Asked`."""
    return Depends(AskReader(kind, task))


def model_registry(request: Request) -> ModelRegistry:
    """The models of this application."""
    registry: ModelRegistry = request.app.state.models
    return registry


def default_model(request: Request) -> Service:
    """The model that routes speak of which ask about the server as if it had but one."""
    return model_registry(request).default


def field_names(scope: Scope) -> FieldNames:
    """What a request's API calls the fields that errors blame."""
    names: FieldNames = scope.get(_NAMES, OUR_NAMES)
    return names
