"""`/v1/files`: what clients send for batches, and what these have written."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse

from caudal.batches.batch_service import BATCH_PURPOSE, OUTPUT_PURPOSE
from caudal.batches.files import DAY, KEPT_SECONDS
from caudal.errors import ParameterError
from caudal.server.batch_state import batch_service
from caudal.server.cors import is_of_foreign_page
from caudal.server.encoding import JSONReply
from caudal.server.openai.paging import Page, check_query
from caudal.server.tenancy import tenant_of
from caudal.server.uploads import FORM, read_form

router = APIRouter()

ANCHOR = "created_at"
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * DAY
"""How long files may last (OpenAI's limits)."""

_NAME = "upload.jsonl"
_MAX_NAME = 255

_PURPOSES = (BATCH_PURPOSE, OUTPUT_PURPOSE)

_FORM_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [BATCH_PURPOSE]},
                        "expires_after[anchor]": {"type": "string", "enum": [ANCHOR]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LEAST_SECONDS,
                            "maximum": MOST_SECONDS,
                        },
                    },
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                }
            }
        },
    }
}


class FilesPage(Page):
    """Which files a list is to have.

    Attributes:
        purpose: Only those for it.
    """

    most: ClassVar[int] = 10_000

    limit: int = 10_000
    purpose: str | None = None


@router.post("/v1/files", openapi_extra=_FORM_SCHEMA)
async def create_file(request: Request) -> Response:
    """Send a file."""
    if is_of_foreign_page(request.headers, request.app.state.origins):
        # Forms are what a page may send anywhere without having asked.
        raise HTTPException(403, "Pages of other origins may not send files to this server.")
    service = await batch_service(request)
    with service.files.incoming() as incoming:
        form = await read_form(request, service, incoming)
        seconds = _checked(form.fields)
        name = form.filename or _NAME
        kept = await service.threads.run(
            incoming.keep,
            tenant=tenant_of(request.scope).id,
            filename=name[-_MAX_NAME:],
            purpose=BATCH_PURPOSE,
            seconds=seconds,
        )
    return JSONReply(kept.described())


@router.get("/v1/files")
async def list_files(request: Request, page: Annotated[FilesPage, Query()]) -> Response:
    """What files there are."""
    check_query(request, allowed=FilesPage.model_fields)
    service = await batch_service(request)
    found = service.files.all(tenant_of(request.scope).id, page.purpose)
    return JSONReply(page.of([each.described() for each in found]))


@router.get("/v1/files/{identity}")
async def retrieve_file(identity: str, request: Request) -> Response:
    """What a file is."""
    service = await batch_service(request)
    return JSONReply(service.files.get(identity, tenant_of(request.scope).id).described())


@router.get("/v1/files/{identity}/content", response_class=FileResponse)
async def retrieve_content(identity: str, request: Request) -> Response:
    """What is in a file."""
    service = await batch_service(request)
    return FileResponse(
        service.files.path(identity, tenant_of(request.scope).id),
        media_type="application/octet-stream",
    )


@router.delete("/v1/files/{identity}")
async def delete_file(identity: str, request: Request) -> dict[str, Any]:
    """Delete a file; batches that were made of it go on."""
    service = await batch_service(request)
    await service.threads.run(service.files.delete, identity, tenant_of(request.scope).id)
    return {"id": identity, "object": "file", "deleted": True}


def _checked(fields: dict[str, str]) -> float:
    """How long the file is to last; raises `ParameterError` where the form asks for the wrong."""
    purpose = fields.pop("purpose", None)
    if purpose is None:
        raise ParameterError("purpose", "Missing required parameter: 'purpose'.")
    if purpose != BATCH_PURPOSE:
        raise ParameterError(
            "purpose",
            f"purpose must be {BATCH_PURPOSE!r}: this server has no use for files for "
            f"{purpose!r:.80}.",
        )
    anchor = fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    if fields:
        name = min(fields)
        raise ParameterError(name, f"{name:.80} is not supported by this server.")
    if anchor is None and seconds is None:
        return KEPT_SECONDS
    if anchor != ANCHOR:
        raise ParameterError("expires_after.anchor", f"expires_after.anchor must be {ANCHOR!r}.")
    if (
        seconds is None
        or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 20)
        or not LEAST_SECONDS <= int(seconds) <= MOST_SECONDS
    ):
        raise ParameterError(
            "expires_after.seconds",
            f"expires_after.seconds must be an integer from {LEAST_SECONDS} to {MOST_SECONDS}.",
        )
    return float(seconds)
