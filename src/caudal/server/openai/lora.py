"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them.

They name files of the server's machine, and so have to be allowed when it is started.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Annotated, ClassVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from caudal.errors import AdapterExistsError, ModelLoadError, ParameterError, UnknownAdapterError
from caudal.reading.fields import RequestObject
from caudal.server.asked import Asked, asks, served_models
from caudal.server.body import json_body
from caudal.server.request_bodies import ModelRequestBody
from caudal.server.tenancy import FOR_ADMINS
from caudal.server.waiting_for_models import models_of


def _allowed(request: Request) -> None:
    """Raises 403 where adapters may not come and go while the server runs."""
    if not request.app.state.allow_runtime_lora:
        raise HTTPException(
            403,
            "This server doesn't load or unload adapters while it runs, for that names files of "
            "its machine. Start it with --allow-runtime-lora, or with --lora NAME=PATH.",
        )


router = APIRouter(dependencies=[FOR_ADMINS, Depends(_allowed)])


class LoadAdapterRequest(ModelRequestBody):
    """Body of `POST /v1/load_lora_adapter`; `model` is the one that the adapter is for."""

    hints: ClassVar[AbstractSet[str]] = frozenset(("is_3d_lora_weight",))

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapterRequest(RequestObject):
    """Body of `POST /v1/unload_lora_adapter`."""

    hints: ClassVar[AbstractSet[str]] = frozenset(("lora_int_id",))

    lora_name: str


@router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
async def load_lora_adapter(
    asked: Annotated[Asked[LoadAdapterRequest], asks(LoadAdapterRequest, None)],
) -> PlainTextResponse:
    """Load an adapter: a GGUF file, or a folder of PEFT's. Requests name it as their `model`."""
    body, model = asked.body, asked.model
    name = body.lora_name
    if not name or not body.lora_path:
        raise ParameterError(
            "lora_path" if name else "lora_name",
            "Both 'lora_name' and 'lora_path' must be provided.",
        )
    models = served_models(asked.request)
    if name in models.names and all(adapter.name != name for adapter in model.adapters):
        raise AdapterExistsError(name, is_adapter=False)
    try:
        await model.load_adapter(
            name, body.lora_path, replace=bool(body.load_inplace), room=models.room
        )
    except ModelLoadError as error:  # vLLM says 500, after which clients try again
        raise ParameterError("lora_path", str(error)) from None
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
async def unload_lora_adapter(
    body: Annotated[UnloadAdapterRequest, json_body(UnloadAdapterRequest)], request: Request
) -> PlainTextResponse:
    """Take requests for an adapter no more; those that run are answered, and then it is gone."""
    name = body.lora_name
    if not name:
        raise ParameterError(
            "lora_name", "'lora_name' needs to be provided to unload a LoRA adapter."
        )
    models = served_models(request)
    own_names = {own for status in await models.statuses() for own in status.names}
    if name not in models.names or name in own_names:
        raise UnknownAdapterError(name)
    found = await models.resolve(name)  # an adapter's model may have to be loaded
    models_of(request.scope).keep(found)
    await found.service.unload_adapter(name)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")
