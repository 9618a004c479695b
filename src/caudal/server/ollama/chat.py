"""`POST /api/chat`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.server.asked import Asked
from caudal.server.ollama.answer import AnswerWriter
from caudal.server.ollama.asked import asks_ollama
from caudal.server.ollama.fitting import fitted
from caudal.server.ollama.responses import params_of, respond, times_of, without_answer
from caudal.server.ollama.schema import ChatRequest
from caudal.server.openapi import STREAMED_LINES
from caudal.service.work import ChatWork

router = APIRouter()


class MessageWriter(AnswerWriter):
    """Writes an answer as messages, or as one."""

    def _part(
        self, content: str, thinking: str, calls: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


@router.post("/api/chat", responses=STREAMED_LINES)
async def chat(
    asked: Annotated[Asked[ChatRequest] | ChatRequest, asks_ollama(ChatRequest, "generate")],
) -> Response:
    """Answer a conversation, line by line or as a whole; without one, load or unload the model."""
    idle = without_answer(asked, message={"role": "assistant", "content": ""})
    if idle is not None or isinstance(asked, ChatRequest):
        assert idle is not None
        return idle
    body, model, times = asked.body, asked.model, times_of(asked)
    params = params_of(asked)
    conversation = body.conversation(model.info.template)
    if body.truncate:
        conversation = await fitted(model, conversation, body.room(model.max_model_len))
    work = ChatWork(
        conversation=conversation,
        params=params,
        context_length=body.given_options.context_length,
    )
    running = await model.chat(work, asked.context)
    asked.note_ignored(running.ignored)
    return await respond(asked, running, times, MessageWriter)
