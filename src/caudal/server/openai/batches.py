"""`/v1/batches`: many requests in one file, answered when there is room."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from caudal.batches.batch_service import BATCH_PURPOSE
from caudal.batches.files import KEPT_SECONDS
from caudal.batches.line_forms import ENDPOINTS
from caudal.errors import ParameterError
from caudal.fleet.durations import FOREVER, keep_alive_seconds
from caudal.reading.fields import RequestObject
from caudal.server.batch_state import batch_service
from caudal.server.body import json_body
from caudal.server.encoding import JSONReply
from caudal.server.openai.files import LEAST_SECONDS, MOST_SECONDS
from caudal.server.openai.paging import Page, PageQuery, check_query
from caudal.server.openai.shared_fields import Metadata
from caudal.server.tenancy import tenant_of

router = APIRouter()

MOST_WINDOW = 30 * 24 * 3600.0
"""Longest completion window, in seconds."""


class OutputExpiry(RequestObject):
    """How long output is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_SECONDS, le=MOST_SECONDS)]


class BatchRequest(RequestObject):
    """Body of `POST /v1/batches`."""

    completion_window: str = Field(
        description="`24h`, as at OpenAI; or another duration of up to 30 days, such as `90m`."
    )
    endpoint: Literal[ENDPOINTS]  # type: ignore[valid-type]
    input_file_id: str
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


@router.post("/v1/batches")
async def create_batch(
    body: Annotated[BatchRequest, json_body(BatchRequest)], request: Request
) -> Response:
    """Make a batch of a file that was sent for it."""
    service = await batch_service(request)
    tenant = tenant_of(request.scope).id
    seconds = _window(body.completion_window)
    found = service.files.get(body.input_file_id, tenant)
    if found.purpose != BATCH_PURPOSE:
        raise ParameterError(
            "input_file_id", f"{found.id} has the purpose {found.purpose}, not {BATCH_PURPOSE}."
        )
    kept = body.output_expires_after
    batch = await service.create(
        form="openai",
        tenant=tenant,
        endpoint=body.endpoint,
        input_file_id=found.id,
        completion_window=body.completion_window,
        seconds=seconds,
        metadata=body.metadata,
        output_seconds=KEPT_SECONDS if kept is None else kept.seconds,
    )
    return JSONReply(batch.described())


@router.get("/v1/batches")
async def list_batches(request: Request, page: PageQuery) -> Response:
    """What batches there are."""
    check_query(request, allowed=Page.model_fields)
    service = await batch_service(request)
    found = service.all(tenant_of(request.scope).id, "openai")
    return JSONReply(page.of([each.described() for each in found]))


@router.get("/v1/batches/{identity}")
async def retrieve_batch(identity: str, request: Request) -> Response:
    """How far a batch is."""
    service = await batch_service(request)
    return JSONReply(service.get(identity, tenant_of(request.scope).id, "openai").described())


@router.post("/v1/batches/{identity}/cancel")
async def cancel_batch(identity: str, request: Request) -> Response:
    """Answer no more of a batch's lines; what was answered becomes its output."""
    service = await batch_service(request)
    batch = service.get(identity, tenant_of(request.scope).id, "openai")
    await service.cancel(batch)
    return JSONReply(batch.described())


def _window(text: str) -> float:
    """The seconds of a completion window; raises `ParameterError`."""
    try:
        seconds = keep_alive_seconds(text)
    except ValueError:
        seconds = 0.0
    if seconds == FOREVER or not 1 <= seconds <= MOST_WINDOW:
        raise ParameterError(
            "completion_window",
            "completion_window must be a duration from 1s to 720h, such as 24h, but is "
            f"{text!r:.80}.",
        )
    return seconds
