"""`/v1/messages/batches`: Anthropic's batches, which bring their requests along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from caudal.batches.batch import Batch
from caudal.batches.batch_service import BATCH_PURPOSE, BatchService
from caudal.batches.errors import BatchStateError
from caudal.batches.files import DAY, StoredFile
from caudal.batches.line_forms import checked_body
from caudal.batches.lines import LineError
from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.server.batch_state import batch_service
from caudal.server.body import json_body
from caudal.server.encoding import JSONReply
from caudal.server.openai.paging import check_query
from caudal.server.tenancy import tenant_of

router = APIRouter()

ENDPOINT = "/v1/messages"
MAX_LISTED = 1000


class BatchedMessage(RequestObject):
    """One request of a batch."""

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any] = Field(description="As the body of `POST /v1/messages`.")


class MessageBatchRequest(RequestObject):
    """Body of `POST /v1/messages/batches`."""

    requests: Annotated[list[BatchedMessage], Field(min_length=1)]


class MessageBatchesPage(BaseModel):
    """Which batches a list is to have, the latest first.

    Attributes:
        before_id: The id of the batch that it ends before.
        after_id: The id of the batch that it begins behind.
        limit: Most batches.
    """

    before_id: str | None = None
    after_id: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 20


@router.post("/v1/messages/batches")
async def create_message_batch(
    body: Annotated[MessageBatchRequest, json_body(MessageBatchRequest)], request: Request
) -> Response:
    """Have messages answered when there is room."""
    service = await batch_service(request)
    tenant = tenant_of(request.scope).id
    _check(body.requests)
    kept = await service.threads.run(_write, service, tenant, body.requests)
    try:
        batch = await service.create(
            form="anthropic",
            tenant=tenant,
            endpoint=ENDPOINT,
            input_file_id=kept.id,
            completion_window="24h",
            seconds=DAY,
            total=len(body.requests),
        )
    finally:
        # The batch has it from here on, and nobody else knows of it.
        await service.threads.run(service.files.delete, kept.id, tenant)
    return JSONReply(_described(batch, request))


@router.get("/v1/messages/batches")
async def list_message_batches(
    request: Request, page: Annotated[MessageBatchesPage, Query()]
) -> Response:
    """What batches of messages there are."""
    check_query(request, allowed=MessageBatchesPage.model_fields)
    service = await batch_service(request)
    found = service.all(tenant_of(request.scope).id, "anthropic")[::-1]
    ids = [each.id for each in found]
    for name, identity in (("after_id", page.after_id), ("before_id", page.before_id)):
        if identity is not None and identity not in ids:
            raise ParameterError(name, f"{name}: there is no batch {identity!r:.80}.")
    begin = 0 if page.after_id is None else ids.index(page.after_id) + 1
    end = len(ids) if page.before_id is None else ids.index(page.before_id)
    if page.before_id is not None and page.after_id is None:
        begin = max(0, end - page.limit)
        has_more = begin > 0
    else:
        has_more = end - begin > page.limit
    listed = [_described(each, request) for each in found[begin:end][: page.limit]]
    return JSONReply(
        {
            "data": listed,
            "has_more": has_more,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
        }
    )


@router.get("/v1/messages/batches/{identity}")
async def retrieve_message_batch(identity: str, request: Request) -> Response:
    """How far a batch is."""
    _, batch = await _found(identity, request)
    return JSONReply(_described(batch, request))


@router.get("/v1/messages/batches/{identity}/results", response_class=FileResponse)
async def message_batch_results(identity: str, request: Request) -> Response:
    """What became of a batch's requests, in their order, each a line of JSON."""
    service, batch = await _found(identity, request)
    if not batch.ended or batch.output_file_id is None:
        raise BatchStateError("The batch has no results yet: it has not ended.")
    return FileResponse(
        service.files.path(batch.output_file_id, batch.tenant), media_type="application/x-jsonl"
    )


@router.post("/v1/messages/batches/{identity}/cancel")
async def cancel_message_batch(identity: str, request: Request) -> Response:
    """Answer no more of a batch's requests."""
    service, batch = await _found(identity, request)
    await service.cancel(batch)
    return JSONReply(_described(batch, request))


@router.delete("/v1/messages/batches/{identity}")
async def delete_message_batch(identity: str, request: Request) -> dict[str, Any]:
    """Forget a batch that has ended, and its results."""
    service, batch = await _found(identity, request)
    await service.delete(batch)
    return {"id": identity, "type": "message_batch_deleted"}


async def _found(identity: str, request: Request) -> tuple[BatchService, Batch]:
    service = await batch_service(request)
    return service, service.get(identity, tenant_of(request.scope).id, "anthropic")


def _check(requests: Sequence[BatchedMessage]) -> None:
    """Refuse what can be no batch; raises `ParameterError`."""
    seen: set[str] = set()
    for index, each in enumerate(requests):
        if each.custom_id in seen:
            field = f"requests[{index}].custom_id"
            raise ParameterError(
                field, f"{field} {each.custom_id!r} is that of an earlier request."
            )
        seen.add(each.custom_id)
        try:
            checked_body(each.params)
        except LineError as error:
            field = f"requests[{index}].params"
            raise ParameterError(field, f"{field}: {error.message}") from error


def _write(service: BatchService, tenant: str, requests: Sequence[BatchedMessage]) -> StoredFile:
    """Put requests into a file, as the lines of a batch."""
    with service.files.incoming() as incoming:
        for each in requests:
            line = {
                "custom_id": each.custom_id,
                "method": "POST",
                "url": ENDPOINT,
                "body": each.params,
            }
            incoming.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        return incoming.keep(tenant=tenant, filename="requests.jsonl", purpose=BATCH_PURPOSE)


def _described(batch: Batch, request: Request) -> dict[str, Any]:
    """A batch as Anthropic's API gives it."""
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not batch.ended:
        counts["processing"] = batch.total
    else:
        counts |= {"succeeded": batch.completed, "errored": batch.failed}
        other = {"cancelled": "canceled", "expired": "expired"}.get(batch.status, "errored")
        counts[other] += batch.unanswered
    in_progress = "canceling" if batch.status == "cancelling" else "in_progress"
    has_results = batch.ended and batch.output_file_id is not None
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.ended else in_progress,
        "request_counts": counts,
        "created_at": _moment(batch.created),
        "expires_at": _moment(batch.expires),
        "ended_at": _moment(batch.at[batch.status]) if batch.ended else None,
        "cancel_initiated_at": _moment(batch.at.get("cancelling")),
        "archived_at": None,
        "results_url": (
            f"{request.base_url}v1/messages/batches/{batch.id}/results" if has_results else None
        ),
    }


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
