"""`/v1/responses`: answers to items, which later ones can go on from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request, Response

from caudal.chat.generation import ChatGeneration
from caudal.errors import CaudalError, ParameterError
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply
from caudal.server.errors import UnknownResponseError
from caudal.server.openai.answer import obfuscated
from caudal.server.openai.conversation_store import Conversation, ConversationStore
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_background import BackgroundRun, BackgroundRuns
from caudal.server.openai.responses_items import (
    AnyItem,
    ItemReference,
    read_stored,
    stored_form,
)
from caudal.server.openai.responses_output import Event, ResponseWriter
from caudal.server.openai.responses_schema import InputFields, ResponseRequest
from caudal.server.openai.responses_store import ResponseStore, StoredResponse
from caudal.server.openapi import STREAMED
from caudal.server.streaming import EventStream, encode_typed_event, run_until_disconnect
from caudal.service.work import ChatWork

logger = logging.getLogger("caudal.server")

router = APIRouter()

MAX_LISTED = 100


def response_store(request: Request) -> ResponseStore:
    """Where this application keeps responses."""
    store: ResponseStore = request.app.state.response_store
    return store


def background_runs(request: Request) -> BackgroundRuns:
    """What runs in the background of this application."""
    runs: BackgroundRuns = request.app.state.background_runs
    return runs


def conversations(request: Request) -> ConversationStore:
    """Where this application keeps conversations."""
    store: ConversationStore = request.app.state.conversations
    return store


def reasoning_seal(request: Request) -> ReasoningSeal:
    """What seals and opens this application's reasoning."""
    seal: ReasoningSeal = request.app.state.reasoning_seal
    return seal


@router.post("/v1/responses", responses=STREAMED)
async def create_response(
    asked: Annotated[Asked[ResponseRequest], asks(ResponseRequest, "generate")],
) -> Response:
    """Answer, whole or as a stream of events."""
    body, model, request = asked.body, asked.model, asked.request
    if body.background:
        background_runs(request).check_room()
    talk = _conversation_of(body, request)
    before = _items_before(body, request) if talk is None else list(talk.items)
    items = resolved_items(body.items, request)
    seal = reasoning_seal(request)
    read = body.read([*read_stored(before), *items], seal)
    asked.note_ignored([*read.ignored, *body.ignored_includes])
    asked.name_fields(body.field_names_with(read.tools.values()))
    work = ChatWork(conversation=read.conversation, params=body.sampling_params())
    chat = await model.chat(work, asked.context)
    asked.note_ignored(chat.ignored)
    writer = ResponseWriter(
        _repeated(body, asked.name),
        chat,
        model.parts.tokenizer,
        read.tools,
        with_logprobs=body.includes_logprobs,
        seal=seal if body.includes_sealed_reasoning else None,
        queued=bool(body.background),
    )

    given = list(map(stored_form, items))

    def keep() -> None:
        response = writer.response()
        if body.store is not False:
            response_store(request).add(StoredResponse(response, [*before, *given]))
        if talk is not None:
            conversations(request).extend(talk.id, [*given, *response["output"]])

    if body.background:
        run = BackgroundRun(writer, _events(chat, writer), chat.aclose, keep)
        background_runs(request).add(run)
        if not body.stream:
            return JSONReply(writer.response())
        return _follow(run, -1, obfuscate=body.obfuscate)
    if body.stream:
        return EventStream(_stream(chat, writer, keep, obfuscate=body.obfuscate), chat.aclose)
    try:
        await run_until_disconnect(request, _collect(chat, writer))
    finally:
        await chat.aclose()
    keep()
    return JSONReply(writer.response())


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    asked: Annotated[Asked[InputFields], asks(InputFields, "generate")],
) -> dict[str, Any]:
    """How many tokens a request's prompt has, without answering it."""
    body, request = asked.body, asked.request
    talk = _conversation_of(body, request)
    before = _items_before(body, request) if talk is None else list(talk.items)
    items = resolved_items(body.items, request)
    read = body.read([*read_stored(before), *items], reasoning_seal(request))
    asked.note_ignored(read.ignored)
    asked.name_fields(body.field_names_with(read.tools.values()))
    prompt = await asked.model.prepare(read.conversation, body.form())
    asked.note_ignored(prompt.ignored)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.tokens)}


@router.post("/v1/responses/compact", include_in_schema=False)
async def compact_response() -> Response:
    """There is no such route; without this one, it would look like a response's id."""
    raise HTTPException(404)


@router.get("/v1/responses/{identity}")
async def retrieve_response(
    identity: str,
    request: Request,
    stream: bool = False,
    starting_after: int = -1,
    include_obfuscation: bool = False,
) -> Response:
    """A response that was stored, or that runs in the background; or its events."""
    _refuse_query(request, allowed=("stream", "starting_after", "include_obfuscation"))
    run = background_runs(request).get(identity)
    if stream:
        if run is None:
            response_store(request).get(identity)
            raise ParameterError(
                "stream",
                f"stream: the response {identity!r:.80} was not made in the background, or its "
                "events have had to make room.",
            )
        return _follow(run, starting_after, obfuscate=include_obfuscation)
    if run is not None and not run.ended:
        return JSONReply(run.writer.response())
    return JSONReply(response_store(request).get(identity).response)


@router.post("/v1/responses/{identity}/cancel")
async def cancel_response(identity: str, request: Request) -> Response:
    """End a response that runs in the background; one that has ended stays as it is."""
    run = background_runs(request).get(identity)
    if run is not None and not run.ended:
        await run.cancel()
        return JSONReply(run.writer.response())
    response = response_store(request).get(identity).response
    if not response["background"]:
        raise ParameterError(
            "response_id", "Only responses that were made with background true can be cancelled."
        )
    return JSONReply(response)


@router.delete("/v1/responses/{identity}")
async def delete_response(identity: str, request: Request) -> dict[str, Any]:
    """Forget a response."""
    _refuse_query(request, allowed=())
    await background_runs(request).forget(identity)
    response_store(request).delete(identity)
    return {"id": identity, "object": "response", "deleted": True}


@router.get("/v1/responses/{identity}/input_items")
async def list_input_items(
    identity: str,
    request: Request,
    after: str | None = None,
    limit: int = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """What went into a response, what came before it included."""
    _refuse_query(request, allowed=("after", "limit", "order"))
    return JSONReply(
        page_of(response_store(request).get(identity).input_items, after, limit, order)
    )


def page_of(
    items: Sequence[Mapping[str, Any]],
    after: str | None,
    limit: int,
    order: Literal["asc", "desc"],
) -> dict[str, Any]:
    """A page of items, as the API lists them; raises `ParameterError` for what it can't be."""
    if not 1 <= limit <= MAX_LISTED:
        raise ParameterError("limit", f"limit must be between 1 and {MAX_LISTED}, but is {limit}.")
    items = [*items]
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ParameterError("after", f"after: there is no item {after!r:.80}.")
        items = items[places[0] + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _items_before(body: InputFields, request: Request) -> Sequence[Mapping[str, Any]]:
    """The conversation that this input goes on from; of an unknown one, the request is at fault."""
    identity = body.previous_response_id
    if identity is None:
        return ()
    try:
        return response_store(request).get(identity).conversation
    except UnknownResponseError as error:
        raise ParameterError("previous_response_id", f"previous_response_id: {error}") from error


def resolved_items(items: Sequence[AnyItem], request: Request) -> Sequence[AnyItem]:
    """A request's items, with those that it refers to in place of the references.

    Raises:
        UnknownItemError: There is no such item.
    """
    wanted = [item.id for item in items if isinstance(item, ItemReference)]
    if not wanted:
        return items
    found = response_store(request).find_items(wanted)
    kept = iter(read_stored([found[identity] for identity in wanted]))
    return [next(kept) if isinstance(item, ItemReference) else item for item in items]


def _refuse_query(request: Request, allowed: Sequence[str]) -> None:
    for name in request.query_params:
        if name not in allowed:
            field = name.removesuffix("[]")
            raise ParameterError(field, f"{field} is not supported by this server.")


def _repeated(body: ResponseRequest, model: str) -> dict[str, Any]:
    """What a response repeats of its request."""
    given = body.model_dump(exclude_none=True, by_alias=True)
    tools = [
        {"description": None, "parameters": None, "strict": False, **tool}
        if tool["type"] == "function"
        else tool
        for tool in given.get("tools", ())
    ]
    return {
        "background": bool(body.background),
        "conversation": None if body.conversation is None else {"id": body.conversation_id},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": None if body.reasoning is None else body.reasoning.effort,
            "summary": None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": given.get("text", {}).get("format", {"type": "text"}),
            "verbosity": "medium",
        },
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _conversation_of(body: InputFields, request: Request) -> Conversation | None:
    """The conversation that a request belongs to."""
    if body.conversation_id is None:
        return None
    if body.previous_response_id is not None:
        raise ParameterError(
            "conversation", "conversation and previous_response_id exclude each other."
        )
    return conversations(request).get(body.conversation_id)


def _follow(run: BackgroundRun, number: int, *, obfuscate: bool) -> EventStream:
    """The events of a run behind the one of this number. The run goes on when the client goes."""

    async def encoded() -> AsyncGenerator[bytes, None]:
        async for event in run.events_after(number):
            yield _encode(event, obfuscate=obfuscate)

    async def leave() -> None:
        pass

    return EventStream(encoded(), leave)


async def _collect(chat: ChatGeneration, writer: ResponseWriter) -> None:
    async with contextlib.aclosing(_events(chat, writer)) as events:
        async for _ in events:
            pass


async def _events(chat: ChatGeneration, writer: ResponseWriter) -> AsyncGenerator[Event, None]:
    async with contextlib.aclosing(chat.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                for event in writer.write(delta):
                    yield event


def _encode(event: Event, *, obfuscate: bool) -> bytes:
    return encode_typed_event(obfuscated(event) if obfuscate and "delta" in event else event)


async def _stream(
    chat: ChatGeneration, writer: ResponseWriter, keep: Callable[[], None], *, obfuscate: bool
) -> AsyncGenerator[bytes, None]:
    """A whole stream, encoded. The response is stored before the client learns that it is done."""
    encode = partial(_encode, obfuscate=obfuscate)
    try:
        for event in writer.start():
            yield encode(event)
        async with contextlib.aclosing(chat.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    for event in writer.write(delta):
                        yield encode(event)
        keep()
        yield encode(writer.finish())
    except CaudalError as error:
        yield encode(writer.fail(str(error)))
    except Exception:
        logger.exception("A stream failed.")
        yield encode(writer.fail("Internal server error."))
