"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from caudal.chat.conversation import Conversation
from caudal.errors import CaudalError
from caudal.server.anthropic.errors import anthropic_status, error_body
from caudal.server.anthropic.message import MessageWriter
from caudal.server.anthropic.prompts import PromptMaker
from caudal.server.anthropic.schema import CountTokensRequest, MessageRequest
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply
from caudal.server.failures import describe
from caudal.server.openapi import STREAMED
from caudal.server.request_ids import request_id
from caudal.server.streaming import EventStream, encode_typed_event, run_until_disconnect
from caudal.service.service import RunningChat
from caudal.service.work import ChatWork

logger = logging.getLogger("caudal.server")

router = APIRouter()


@router.post("/v1/messages", responses=STREAMED)
async def create_message(
    asked: Annotated[Asked[MessageRequest], asks(MessageRequest, "generate")],
) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    body, model, request = asked.body, asked.model, asked.request
    if body.thread is not None and body.thread.type == "continue":
        return _no_thread(request)
    prompts = PromptMaker(asked)
    prompts.note_fields()
    params = body.sampling_params(asked.model.facts.loaded.sampling)
    edited = await prompts.edit()

    async def start(conversation: Conversation) -> RunningChat:
        work = ChatWork(
            conversation=conversation, params=params, thinking_budget=body.thinking_budget
        )
        return await model.chat(work, asked.context)

    chat = await prompts.run(edited.messages, start)
    asked.note_ignored(chat.ignored)
    remaining = model.max_model_len - chat.usage.prompt_tokens
    writer = MessageWriter(
        asked.name,
        chat,
        omits_thinking=body.omits_thinking,
        ends_with_context=params.max_tokens is None or remaining < params.max_tokens,
        applied_edits=None if body.context_management is None else edited.applied,
    )
    response: Response
    if body.stream:
        response = EventStream(_stream(request.scope, chat, writer), chat.aclose)
    else:
        try:
            message = await run_until_disconnect(request, _collect(chat, writer))
        finally:
            await chat.aclose()
        response = JSONReply(message)
    response.headers["request-id"] = request_id(request.scope)
    return response


@router.post("/v1/messages/count_tokens")
async def count_tokens(
    asked: Annotated[Asked[CountTokensRequest], asks(CountTokensRequest, "generate")],
) -> Response:
    """How many tokens a request's prompt has, without answering it."""
    prompts = PromptMaker(asked)
    prompts.note_fields()
    edited = await prompts.edit()
    counted: dict[str, Any] = {"input_tokens": await prompts.count(edited.messages)}
    if asked.body.context_management is not None:
        original = await prompts.count(asked.body.messages)
        counted["context_management"] = {"original_input_tokens": original}
    return JSONReply(counted, headers={"request-id": request_id(asked.request.scope)})


def _no_thread(request: Request) -> Response:
    """Conversations aren't held, so there is none to go on with; clients send all of it instead."""
    status = 404
    body = error_body(
        request.scope,
        status,
        "This server holds no threads: send the whole conversation.",
        {"error_code": "thread_not_found"},
    )
    return JSONReply(body, status, {"request-id": request_id(request.scope)})


async def _collect(chat: RunningChat, writer: MessageWriter) -> dict[str, Any]:
    async with contextlib.aclosing(chat.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                writer.write(delta)
    return writer.message()


async def _stream(
    scope: Scope, chat: RunningChat, writer: MessageWriter
) -> AsyncGenerator[bytes, None]:
    """A whole stream, encoded. It begins with the first token: only then is the usage known."""
    try:
        begun = False
        async with contextlib.aclosing(chat.deltas()) as stream:
            async for deltas in stream:
                if not begun:
                    begun = True
                    yield encode_typed_event(writer.start())
                for delta in deltas:
                    for event in writer.write(delta):
                        yield encode_typed_event(event)
        for event in writer.finish():
            yield encode_typed_event(event)
    except CaudalError as error:
        status = anthropic_status(describe(error).status)
        yield encode_typed_event(error_body(scope, status, str(error)))
    except Exception:
        logger.exception("A stream failed.")
        yield encode_typed_event(error_body(scope, 500, "Internal server error."))
