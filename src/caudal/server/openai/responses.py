"""`/v1/responses`: answers to items, which later ones can go on from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request, Response

from caudal.errors import CaudalError, ParameterError
from caudal.sampling_params import SamplingParams
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply
from caudal.server.openai.answer import obfuscated
from caudal.server.openai.conversation_store import Conversation
from caudal.server.openai.paging import Page, PageQuery, check_query
from caudal.server.openai.responses_background import BackgroundRun
from caudal.server.openai.responses_items import (
    AnyItem,
    read_stored,
    stored_form,
)
from caudal.server.openai.responses_output import Event, ResponseWriter
from caudal.server.openai.responses_schema import InputFields, ReadInput, ResponseRequest
from caudal.server.openai.responses_state import ResponsesState, responses_state
from caudal.server.openai.responses_store import StoredResponse
from caudal.server.openapi import STREAMED
from caudal.server.records import record_of
from caudal.server.streaming import EventStream, encode_typed_event, run_until_disconnect
from caudal.service.service import RunningChat
from caudal.service.work import ChatWork

logger = logging.getLogger("caudal.server")

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Input:
    """What a request gives, and what it goes on from.

    Attributes:
        conversation: The one that it belongs to.
        before: What was said before; of the conversation, or of the response that it names.
        items: What it adds.
        read: All of it, as a model is asked.
    """

    conversation: Conversation | None
    before: Sequence[Mapping[str, Any]]
    items: Sequence[AnyItem]
    read: ReadInput


@router.post("/v1/responses", responses=STREAMED)
async def create_response(
    asked: Annotated[Asked[ResponseRequest], asks(ResponseRequest, "generate")],
) -> Response:
    """Answer, whole or as a stream of events."""
    body, model, kept = asked.body, asked.model, responses_state(asked.request)
    if body.background:
        kept.runs.check_room()
    given = _read_input(body, kept)
    read = given.read
    asked.note_ignored([*read.ignored, *body.ignored_includes])
    asked.name_fields(body.field_names_with(read.tools.values()))
    params = body.sampling_params(model.facts.loaded.sampling)
    work = ChatWork(conversation=read.conversation, params=params)
    chat = await model.chat(work, asked.context)
    asked.note_ignored(chat.ignored)
    writer = ResponseWriter(
        _repeated(body, asked.name, params),
        chat,
        read.tools,
        with_logprobs=body.includes_logprobs,
        seal=kept.seal if body.includes_sealed_reasoning else None,
        queued=bool(body.background),
    )

    added = list(map(stored_form, given.items))

    def keep() -> None:
        response = writer.response()
        if body.store is not False:
            kept.responses.add(StoredResponse(response, [*given.before, *added]))
        if given.conversation is not None:
            kept.conversations.extend(given.conversation.id, [*added, *response["output"]])

    if body.background:
        lease = asked.lease.again()  # it goes on when this request has been answered
        record = record_of(asked.request.scope)
        record.hold()

        async def close() -> None:
            try:
                await chat.aclose()
            finally:
                lease.release()
                record.release()

        run = BackgroundRun(writer, _events(chat, writer), close, keep)
        kept.runs.add(run)
        if not body.stream:
            return JSONReply(writer.response())
        return _follow(run, -1, obfuscate=body.obfuscate)
    if body.stream:
        return EventStream(_stream(chat, writer, keep, obfuscate=body.obfuscate), chat.aclose)
    try:
        await run_until_disconnect(asked.request, _collect(chat, writer))
    finally:
        await chat.aclose()
    keep()
    return JSONReply(writer.response())


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    asked: Annotated[Asked[InputFields], asks(InputFields, "generate")],
) -> dict[str, Any]:
    """How many tokens a request's prompt has, without answering it."""
    body = asked.body
    read = _read_input(body, responses_state(asked.request)).read
    asked.note_ignored(read.ignored)
    asked.name_fields(body.field_names_with(read.tools.values()))
    size = await asked.model.measure(read.conversation, body.form())
    asked.note_ignored(size.ignored)
    return {"object": "response.input_tokens", "input_tokens": size.tokens}


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
    check_query(request, allowed=("stream", "starting_after", "include_obfuscation"))
    kept = responses_state(request)
    run = kept.runs.get(identity)
    if stream:
        if run is None:
            kept.responses.get(identity)
            raise ParameterError(
                "stream",
                f"stream: the response {identity!r:.80} was not made in the background, or its "
                "events have had to make room.",
            )
        return _follow(run, starting_after, obfuscate=include_obfuscation)
    if run is not None and not run.ended:
        return JSONReply(run.writer.response())
    return JSONReply(kept.responses.get(identity).response)


@router.post("/v1/responses/{identity}/cancel")
async def cancel_response(identity: str, request: Request) -> Response:
    """End a response that runs in the background; one that has ended stays as it is."""
    kept = responses_state(request)
    run = kept.runs.get(identity)
    if run is not None and not run.ended:
        await run.cancel()
        return JSONReply(run.writer.response())
    response = kept.responses.get(identity).response
    if not response["background"]:
        raise ParameterError(
            "response_id", "Only responses that were made with background true can be cancelled."
        )
    return JSONReply(response)


@router.delete("/v1/responses/{identity}")
async def delete_response(identity: str, request: Request) -> dict[str, Any]:
    """Forget a response."""
    check_query(request, allowed=())
    kept = responses_state(request)
    await kept.runs.forget(identity)
    kept.responses.delete(identity)
    return {"id": identity, "object": "response", "deleted": True}


@router.get("/v1/responses/{identity}/input_items")
async def list_input_items(identity: str, request: Request, page: PageQuery) -> Response:
    """What went into a response, what came before it included."""
    check_query(request, allowed=Page.model_fields)
    return JSONReply(page.of(responses_state(request).responses.get(identity).input_items))


def _read_input(body: InputFields, kept: ResponsesState) -> _Input:
    conversation = kept.conversation_of(body)
    before = kept.items_before(body) if conversation is None else [*conversation.items]
    items = kept.resolved(body.items)
    read = body.read([*read_stored(before), *items], kept.seal)
    return _Input(conversation, before, items, read)


def _repeated(body: ResponseRequest, model: str, params: SamplingParams) -> dict[str, Any]:
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
        "temperature": params.temperature,
        "text": {
            "format": given.get("text", {}).get("format", {"type": "text"}),
            "verbosity": "medium",
        },
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _follow(run: BackgroundRun, number: int, *, obfuscate: bool) -> EventStream:
    """The events of a run behind the one of this number. The run goes on when the client goes."""

    async def encoded() -> AsyncGenerator[bytes, None]:
        async for event in run.events_after(number):
            yield _encode(event, obfuscate=obfuscate)

    async def leave() -> None:
        pass

    return EventStream(encoded(), leave)


async def _collect(chat: RunningChat, writer: ResponseWriter) -> None:
    async with contextlib.aclosing(_events(chat, writer)) as events:
        async for _ in events:
            pass


async def _events(chat: RunningChat, writer: ResponseWriter) -> AsyncGenerator[Event, None]:
    async with contextlib.aclosing(chat.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                for event in writer.write(delta):
                    yield event


def _encode(event: Event, *, obfuscate: bool) -> bytes:
    return encode_typed_event(obfuscated(event) if obfuscate and "delta" in event else event)


async def _stream(
    chat: RunningChat, writer: ResponseWriter, keep: Callable[[], None], *, obfuscate: bool
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
