"""`POST /api/create`, `/api/copy`, `/api/pull` and `/api/push`, and `DELETE /api/delete`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from caudal.errors import ForeignModelError, KeyRevokedError, ModelNotFoundError
from caudal.reading.fields import RequestObject
from caudal.server.body import json_body
from caudal.server.encoding import JSONReply
from caudal.server.ollama.create_schema import CreateRequest
from caudal.server.ollama.names import NamedModel, checked_name
from caudal.server.ollama.streams import encoded_lines
from caudal.server.openapi import STREAMED_LINES
from caudal.server.records import record_of
from caudal.server.served_store import changeable_store, take_note
from caudal.server.streaming import JSONLines, run_until_disconnect
from caudal.server.tenancy import FOR_ADMINS
from caudal.service.observed import WorkRecord
from caudal.store.names import parse_kept_name
from caudal.workers.store_jobs import run_store_job
from caudal.workers.store_messages import StoreJob

router = APIRouter(dependencies=[FOR_ADMINS])

_SUCCESS = {"status": "success"}


class CopyRequest(RequestObject):
    """Body of `POST /api/copy`."""

    source: str
    destination: str


class TransferRequest(NamedModel):
    """Body of `POST /api/pull` and `POST /api/push`."""

    # Of which Ollama takes no notice either.
    hints: ClassVar[AbstractSet[str]] = frozenset(("username", "password"))

    insecure: bool | None = Field(
        None, description="A registry elsewhere may be asked without encryption."
    )
    stream: bool | None = Field(None, description="Line by line, unless it is false.")


@router.delete("/api/delete")
async def delete_model(
    body: Annotated[NamedModel, json_body(NamedModel)], request: Request
) -> Response:
    """Delete a model. What runs on it ends first, and nothing more is begun."""
    store = changeable_store(request)
    name = checked_name(body.wanted, f'name "{body.wanted}" is invalid')
    try:
        await asyncio.to_thread(store.remove, name)
    except ForeignModelError as error:
        why = f"{error.model} is Ollama's, which Caudal leaves alone. Remove it with: "
        raise HTTPException(403, why + error.remedy) from error
    except ModelNotFoundError as error:
        raise HTTPException(404, f"model '{body.wanted}' not found") from error
    await take_note(request)
    return Response(status_code=200)


@router.post("/api/copy")
async def copy_model(
    body: Annotated[CopyRequest, json_body(CopyRequest)], request: Request
) -> Response:
    """Give a model another name, too."""
    store = changeable_store(request)
    source = checked_name(body.source, f'source "{body.source}" is invalid')
    destination = checked_name(body.destination, f'destination "{body.destination}" is invalid')
    try:
        await asyncio.to_thread(store.copy, source, destination)
    except ModelNotFoundError as error:
        raise HTTPException(404, f'model "{body.source}" not found') from error
    await take_note(request)
    return Response(status_code=200)


@router.post("/api/create", responses=STREAMED_LINES)
async def create_model(
    body: Annotated[CreateRequest, json_body(CreateRequest)], request: Request
) -> Response:
    """Make a model of another, or of files that have been sent to `/api/blobs/`."""
    store = changeable_store(request)
    recipe = body.recipe()
    for digest in body.digests():
        if await asyncio.to_thread(store.blob, digest) is None:
            raise HTTPException(400, f'blob "{digest}" not found')
    name = checked_name(body.wanted)
    job = StoreJob(kind="create", home=str(store.home), name=name, recipe=recipe)
    return await _answer(request, job, body.stream)


@router.post("/api/pull", responses=STREAMED_LINES)
async def pull_model(
    body: Annotated[TransferRequest, json_body(TransferRequest)], request: Request
) -> Response:
    """Fetch a model. Who goes away before it is there gives it up; the next goes on from there."""
    store = changeable_store(request)
    return await _answer(
        request,
        StoreJob(
            kind="pull",
            home=str(store.home),
            name=checked_name(body.wanted),
            insecure=bool(body.insecure),
        ),
        body.stream,
    )


@router.post("/api/push", responses=STREAMED_LINES)
async def push_model(
    body: Annotated[TransferRequest, json_body(TransferRequest)], request: Request
) -> Response:
    """Send a model to the registry that is in its name."""
    store = changeable_store(request)
    name = parse_kept_name(checked_name(body.wanted)).full
    try:
        await asyncio.to_thread(store.manifest, name)
    except ModelNotFoundError as error:
        raise HTTPException(404, f"model '{body.wanted}' not found") from error
    insecure = bool(body.insecure)
    job = StoreJob(kind="push", home=str(store.home), name=name, insecure=insecure)
    return await _answer(request, job, body.stream)


async def _answer(request: Request, job: StoreJob, stream: bool | None) -> Response:
    """Do it, and tell how far it is; what fails before there is anything to tell has a status."""
    record = record_of(request.scope)
    reports = record.interruptible(_reports(request, job))
    try:
        if stream is False:
            return JSONReply(await run_until_disconnect(request, _last(reports)))
        first = await run_until_disconnect(request, anext(reports))
    except BaseException:
        await reports.aclose()
        raise
    lines = encoded_lines(request.scope, _behind(first, reports, record))
    return JSONLines(lines, reports.aclose)


async def _reports(request: Request, job: StoreJob) -> AsyncGenerator[dict[str, Any], None]:
    async with contextlib.aclosing(run_store_job(job)) as said:
        async for report in said:
            if report != _SUCCESS:
                yield report
    if job.kind != "push":
        await take_note(request)
    yield _SUCCESS


async def _behind(
    first: dict[str, Any], reports: AsyncGenerator[dict[str, Any], None], record: WorkRecord
) -> AsyncGenerator[bytes | dict[str, Any], None]:
    """All reports; how they end is noted here, for the status has said that all is well."""
    try:
        yield first
        async with contextlib.aclosing(reports):
            async for report in reports:
                yield report
    except (GeneratorExit, asyncio.CancelledError, KeyRevokedError):
        record.note_outcome("cancelled")
        raise
    except Exception as error:
        record.note_failure(error)
        raise


async def _last(reports: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    async with contextlib.aclosing(reports):
        async for report in reports:
            last = report
    return last
