"""`/v1/conversations`: what responses that name one belong to, and add to."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, WithJsonSchema

from caudal.reading.fields import RequestObject
from caudal.server.body import json_body
from caudal.server.encoding import JSONReply
from caudal.server.openai.paging import Page, PageQuery, check_query
from caudal.server.openai.responses_items import InputItem, stored_form
from caudal.server.openai.responses_state import responses_state
from caudal.server.openai.shared_fields import Metadata

router = APIRouter()

MAX_ADDED = 20
"""Most items that are added at once (OpenAI's limit)."""

Items = Annotated[
    list[InputItem],
    Field(max_length=MAX_ADDED),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MAX_ADDED,
            "items": {"type": "object"},
            "description": "As in the input of a response.",
        }
    ),
]


class ConversationRequest(RequestObject):
    """Body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(RequestObject):
    """Body of `POST /v1/conversations/ID`."""

    metadata: Metadata | None


class ItemsRequest(RequestObject):
    """Body of `POST /v1/conversations/ID/items`."""

    items: Items


@router.post("/v1/conversations")
async def create_conversation(
    body: Annotated[ConversationRequest, json_body(ConversationRequest)], request: Request
) -> Response:
    """Begin a conversation."""
    kept = responses_state(request)
    items = map(stored_form, kept.resolved(body.items or ()))
    return JSONReply(kept.conversations.create(body.metadata or {}, items).described())


@router.get("/v1/conversations/{identity}")
async def retrieve_conversation(identity: str, request: Request) -> Response:
    """What a conversation is."""
    return JSONReply(responses_state(request).conversations.get(identity).described())


@router.post("/v1/conversations/{identity}")
async def update_conversation(
    identity: str,
    body: Annotated[ConversationUpdate, json_body(ConversationUpdate)],
    request: Request,
) -> Response:
    """Replace a conversation's metadata."""
    conversations = responses_state(request).conversations
    found = conversations.get(identity)
    conversations.describe(identity, body.metadata or {})
    return JSONReply(found.described())


@router.delete("/v1/conversations/{identity}")
async def delete_conversation(identity: str, request: Request) -> dict[str, Any]:
    """Forget a conversation; the responses that belonged to it stay."""
    responses_state(request).conversations.delete(identity)
    return {"id": identity, "object": "conversation.deleted", "deleted": True}


@router.get("/v1/conversations/{identity}/items")
async def list_items(identity: str, request: Request, page: PageQuery) -> Response:
    """What was said in a conversation."""
    check_query(request, allowed=Page.model_fields)
    return JSONReply(page.of(responses_state(request).conversations.get(identity).items))


@router.post("/v1/conversations/{identity}/items")
async def create_items(
    identity: str, body: Annotated[ItemsRequest, json_body(ItemsRequest)], request: Request
) -> Response:
    """Add to a conversation."""
    check_query(request, allowed=())
    kept = responses_state(request)
    kept.conversations.get(identity)
    added = [stored_form(item) for item in kept.resolved(body.items)]
    kept.conversations.extend(identity, added)
    return JSONReply(Page(limit=MAX_ADDED, order="asc").of(added))


@router.get("/v1/conversations/{identity}/items/{item}")
async def retrieve_item(identity: str, item: str, request: Request) -> Response:
    """One item of a conversation."""
    check_query(request, allowed=())
    return JSONReply(dict(responses_state(request).conversations.get(identity).item(item)))


@router.delete("/v1/conversations/{identity}/items/{item}")
async def delete_item(identity: str, item: str, request: Request) -> Response:
    """Take an item out of a conversation."""
    return JSONReply(responses_state(request).conversations.delete_item(identity, item).described())
