"""What a route of Ollama's is given: a model, or that it has been unloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends, Request

from caudal.errors import ParameterError
from caudal.server.asked import AskReader, served_models
from caudal.server.streaming import run_until_disconnect
from caudal.server.tenancy import check_admin

if TYPE_CHECKING:
    from caudal.models.program import Task


class OllamaReader(AskReader[Any]):
    """Reads a route's `OllamaBody`, and finds its model unless that is only to be unloaded."""

    async def ask(self, request: Request, body: Any) -> Any:
        """See `AskReader`; the body alone, where the model has been unloaded.

        Raises:
            ParameterError: No model is named.
        """
        if not body.model:
            raise ParameterError("model", "model is required")
        if not body.only_unloads:
            return await super().ask(request, body)
        check_admin(request)
        await run_until_disconnect(request, served_models(request).unload(body.model))
        return body


def asks_ollama(kind: Any, task: Task) -> Any:
    """What a route's parameter is annotated with whose argument is an `Asked`, or a body."""
    return Depends(OllamaReader(kind, task))
