"""`GET /ps`: which models are loaded, what they take and do; what `caudal ps` shows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from caudal.server.asked import served_models
from caudal.service.models import ModelStatus

router = APIRouter()


@router.get("/ps")
async def running_models(request: Request) -> dict[str, Any]:
    """All models that are loaded, on their way, waited for or in trouble; and the memory of all."""
    models = served_models(request)
    shown = [status for status in await models.statuses() if _is_of_interest(status)]
    return {
        "memory": models.memory,
        "memory_used": sum(status.memory for status in shown),
        "models": [{"name": status.names[0], **status_fields(status)} for status in shown],
    }


def _is_of_interest(status: ModelStatus) -> bool:
    if status.leads_to:
        return False  # a route: what it leads to is shown
    return status.state != "unloaded" or status.waiting > 0 or status.trouble is not None


def status_fields(status: ModelStatus) -> dict[str, Any]:
    """What is known of a model's state."""
    fields: dict[str, Any] = {
        "state": status.state,
        "memory": status.memory,
        "memory_for_sequences": status.sequences,
        "running": status.running,
        "waiting": status.waiting,
        "expires_in": status.expires_in,
        "process_id": status.process_id,
    }
    if status.state == "loading":
        fields |= {"stage": status.stage, "progress": status.progress}
    if status.trouble is not None:
        fields["trouble"] = status.trouble
    return fields
