"""Where the routes find the model: a slot that the server fills once loading has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends, Request

from caudal.service.served_model import ServedModel

if TYPE_CHECKING:
    from caudal.models.program import Task


class ModelSlot:
    """Empty while the model loads; `ReadinessGate` keeps requests out until it is filled."""

    def __init__(self) -> None:
        self._model: ServedModel | None = None

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return self._model is not None

    @property
    def model(self) -> ServedModel:
        """The loaded model."""
        assert self._model is not None, "the readiness gate let a request through"
        return self._model

    def fill(self, model: ServedModel) -> None:
        """Open the gate."""
        self._model = model


def needs(task: Task) -> Any:
    """A dependency of routes that ask something of the model which not every model can do."""

    async def check(request: Request) -> None:  # FastAPI gives what isn't async a thread
        served_model(request).check_task(task)

    return Depends(check)


def served_model(request: Request) -> ServedModel:
    """The model that answers this request."""
    slot: ModelSlot = request.app.state.model_slot
    return slot.model
