"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from caudal.chat.generation import ChatGeneration
from caudal.errors import CaudalError, ParameterError
from caudal.server.anthropic.errors import anthropic_status, error_body
from caudal.server.anthropic.message import MessageWriter
from caudal.server.anthropic.schema import FIELD_NAMES, CountTokensRequest, MessageRequest
from caudal.server.body import json_body
from caudal.server.encoding import JSONReply
from caudal.server.errors import describe
from caudal.server.field_names import renamed_fields
from caudal.server.ignored import note_ignored
from caudal.server.openapi import STREAMED
from caudal.server.request_ids import request_id
from caudal.server.served_model import ServedModel
from caudal.server.state import served_model
from caudal.server.streaming import EventStream, encode_typed_event, run_until_disconnect

logger = logging.getLogger("caudal.server")

router = APIRouter()


@router.post("/v1/messages", responses=STREAMED)
async def create_message(
    body: Annotated[MessageRequest, json_body(MessageRequest)], request: Request
) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    model = served_model(request)
    model.name_for(body.model)
    _check_thinking(model, body)
    with renamed_fields(FIELD_NAMES, "input_schema"):
        chat = await model.start_chat(
            body.conversation(model.chat.template.reads),
            body.sampling_params(),
            report_ignored=partial(_note_ignored, request),
            thinking_budget=body.thinking_budget,
            user=body.user_id,
        )
    room = model.max_model_len - len(chat.generation.request.prompt)
    writer = MessageWriter(
        body.model,
        chat,
        omits_thinking=body.omits_thinking,
        ends_with_context=room < body.max_tokens,
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
    body: Annotated[CountTokensRequest, json_body(CountTokensRequest)], request: Request
) -> Response:
    """How many tokens a request's prompt has, without answering it."""
    model = served_model(request)
    model.name_for(body.model)
    _check_thinking(model, body)
    with renamed_fields(FIELD_NAMES, "input_schema"):
        conversation = body.conversation(model.chat.template.reads)
        prompt = await model.prepare_chat(conversation, body.form)
    _note_ignored(request, prompt.ignored)
    return JSONReply(
        {"input_tokens": len(prompt.tokens)}, headers={"request-id": request_id(request.scope)}
    )


def _note_ignored(request: Request, fields: Sequence[str]) -> None:
    note_ignored(request, [FIELD_NAMES.get(field, field) for field in fields])


def _check_thinking(model: ServedModel, body: CountTokensRequest) -> None:
    """Raises `ParameterError` where thinking is demanded of a model that can't."""
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled":
        return
    if model.chat.dialect.reasoning_parser == "none":
        raise ParameterError(
            "thinking",
            "thinking can't be enabled: this model answers without. Leave it out, or let its type "
            'be "disabled" or "adaptive".',
        )


async def _collect(chat: ChatGeneration, writer: MessageWriter) -> dict[str, Any]:
    async with contextlib.aclosing(chat.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                writer.write(delta)
    return writer.message()


async def _stream(
    scope: Scope, chat: ChatGeneration, writer: MessageWriter
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
        status = anthropic_status(describe(error)[0])
        yield encode_typed_event(error_body(scope, status, str(error)))
    except Exception:
        logger.exception("A stream failed.")
        yield encode_typed_event(error_body(scope, 500, "Internal server error."))
