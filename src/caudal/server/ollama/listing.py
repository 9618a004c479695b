"""`GET /api/tags`, `GET /api/ps`, `POST /api/show`: which models there are, and what they are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from caudal.errors import CaudalError, ModelNotFoundError, UnknownModelError
from caudal.packaging.description import ModelDetails, describe_package, model_details
from caudal.server.asked import served_models
from caudal.server.body import json_body
from caudal.server.ollama.names import NamedModel, shown_names
from caudal.server.served_store import served_store
from caudal.service.models import ModelStatus
from caudal.store import Store, StoredModel

router = APIRouter()

FOREVER = timedelta(days=365 * 100)
"""After which a model goes that stays, for those who want to know it in figures."""

_NO_DETAILS = ModelDetails()


class ShowRequest(NamedModel):
    """Body of `POST /api/show`."""

    verbose: bool | None = Field(None, description="With lists in full, and all tensors.")
    system: str | None = Field(None, description="Shown instead of the model's.")
    template: str | None = Field(None, description="Has no effect at Ollama either.")
    options: dict[str, Any] | None = Field(None, description="Shown in the Modelfile.")


@router.get("/api/tags")
async def list_models(request: Request) -> dict[str, Any]:
    """All models that requests may name."""
    statuses = [each for each in await served_models(request).statuses() if not each.deleted]
    found = await asyncio.to_thread(_stored, served_store(request), statuses)
    entries = []
    for status in statuses:
        stored, details = found.get(status.source, (None, _NO_DETAILS))
        for name in shown_names(status, stored):
            modified = datetime.fromtimestamp(status.created, UTC)
            entries.append(
                {
                    "name": name,
                    "model": name,
                    "modified_at": (stored.modified if stored else modified).isoformat(),
                    "size": (stored.total_size if stored else 0) or status.size,
                    "digest": stored.digest if stored else "",
                    "details": details.to_json(),
                }
            )
    entries.sort(key=lambda entry: str(entry["modified_at"]), reverse=True)  # the newest first
    return {"models": entries}


@router.get("/api/ps")
async def running_models(request: Request) -> dict[str, Any]:
    """The models that are loaded, those first that stay longest."""
    loaded = [
        each
        for each in await served_models(request).statuses()
        if each.state == "loaded" and not each.leads_to
    ]
    found = await asyncio.to_thread(_stored, served_store(request), loaded)
    loaded.sort(key=_stays, reverse=True)
    now, entries = datetime.now(UTC), []
    for status in loaded:
        stored, details = found.get(status.source, (None, _NO_DETAILS))
        name = shown_names(status, stored)[0]
        seconds = status.expires_in
        ends = now + (FOREVER if seconds is None else timedelta(seconds=seconds))
        entries.append(
            {
                "name": name,
                "model": name,
                "size": status.memory,
                "digest": stored.digest if stored else "",
                "details": details.to_json(),
                "expires_at": ends.isoformat(),
                "size_vram": 0,
                "context_length": status.max_model_len or 0,
            }
        )
    return {"models": entries}


@router.post("/api/show")
async def show_model(
    body: Annotated[ShowRequest, json_body(ShowRequest)], request: Request
) -> dict[str, Any]:
    """What a model is: its Modelfile, template, parameters, the keys of its weights."""
    status = await served_models(request).status(body.wanted)
    if status.leads_to:
        raise UnknownModelError(body.wanted, [])
    return await asyncio.to_thread(_shown, served_store(request), status.source, body)


def _shown(store: Store, name: str, body: ShowRequest) -> dict[str, Any]:
    try:
        stored = store.resolve(name)
    except ModelNotFoundError as error:
        raise UnknownModelError(body.wanted, []) from error
    package = stored.package
    if body.system:
        stored = replace(stored, package=replace(package, system=body.system))
    shown = describe_package(stored, verbose=bool(body.verbose)).to_json()
    if body.options:
        options = {**package.parameters, **body.options}
        changed = replace(stored, package=replace(stored.package, parameters=options))
        shown["modelfile"] = describe_package(changed).modelfile
    return shown


def _stays(status: ModelStatus) -> float:
    return math.inf if status.expires_in is None else status.expires_in


_Found = Mapping[str, tuple[StoredModel, ModelDetails]]


def _stored(store: Store, statuses: Sequence[ModelStatus]) -> _Found:
    """Models in the store, or files beside it, by the names that lead to them; with details."""
    known = {stored.name: stored for stored in store.list(lambda _: None)}
    found = {}
    for source in dict.fromkeys(status.source for status in statuses):
        stored = known.get(source)
        if stored is None and source:
            try:
                stored = store.find(source)
            except CaudalError:
                continue  # it is gone since
        if stored is not None:
            found[source] = (stored, _details(stored))
    return found


def _details(stored: StoredModel) -> ModelDetails:
    try:
        return model_details(stored)
    except CaudalError:
        return _NO_DETAILS  # one damaged model doesn't keep others from being listed
