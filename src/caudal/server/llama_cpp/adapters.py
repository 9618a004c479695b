"""Adapters as llama.cpp's clients know them: `GET` and `POST /lora-adapters`.

A scale that holds for all requests, which llama.cpp has, is not offered: what a request is answered
depends on the request alone, so it says for itself which adapter it wants.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request

from caudal.errors import ParameterError
from caudal.server.adapter_field import AdapterScales
from caudal.server.asked import queried_model
from caudal.server.body import json_body

router = APIRouter()


@router.get("/lora-adapters")
async def list_adapters(request: Request) -> list[dict[str, Any]]:
    """The adapters that a request's `lora` may name, by `id`; they have no effect on others."""
    model = await queried_model(request)
    return [
        {
            "id": adapter.number,
            "path": adapter.path,
            "scale": 0.0,
            "task_name": adapter.name,
            "prompt_prefix": "",
        }
        for adapter in model.adapters
    ]


@router.post("/lora-adapters")
async def apply_adapters(
    scales: Annotated[AdapterScales, json_body(AdapterScales)],
) -> dict[str, Any]:
    """Takes what holds anyway: that no adapter has an effect on requests that don't name it."""
    if any(each.scale != 0 for each in scales):
        raise ParameterError(
            "scale",
            "Scales for all requests are not supported by this server: what a request is answered "
            "depends on that request alone. Send lora, or the adapter's name as model, with each.",
        )
    return {"success": True}
