"""`POST /models/load` and `/models/unload`, as llama.cpp's router has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request

from caudal.reading.fields import RequestObject
from caudal.server.asked import served_models
from caudal.server.body import json_body
from caudal.server.streaming import run_until_disconnect
from caudal.server.tenancy import FOR_ADMINS

router = APIRouter()


class NamedModel(RequestObject):
    """Body of both: a model's name."""

    model: str


@router.post("/v1/models/load")
async def load_model(
    body: Annotated[NamedModel, json_body(NamedModel)], request: Request
) -> dict[str, bool]:
    """Load a model, and answer when it is; llama.cpp's answers when it has begun.

    Whoever may ask something of a model may, for that loads it too.
    """
    await run_until_disconnect(request, served_models(request).load(body.model))
    return {"success": True}


@router.post("/v1/models/unload", dependencies=[FOR_ADMINS])
async def unload_model(
    body: Annotated[NamedModel, json_body(NamedModel)], request: Request
) -> dict[str, bool]:
    """Unload a model once what runs on it has ended, and answer when it is gone."""
    await run_until_disconnect(request, served_models(request).unload(body.model))
    return {"success": True}
