"""`POST /api/generate`: a prompt answered in the model's chat format, or continued as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.errors import ParameterError
from caudal.server.asked import Asked
from caudal.server.ollama.answer import AnswerWriter
from caudal.server.ollama.asked import asks_ollama
from caudal.server.ollama.fitting import fitted
from caudal.server.ollama.responses import params_of, respond, times_of, without_answer
from caudal.server.ollama.schema import GenerateRequest
from caudal.server.openapi import STREAMED_LINES
from caudal.service.service import RunningChat, RunningText
from caudal.service.work import ChatWork, CompletionWork, Truncation

router = APIRouter()


class ResponseWriter(AnswerWriter):
    """Writes an answer as text.

    Args:
        prompt: The prompt's tokens, which with the answer's are the context of the next request;
            empty where that isn't told.
    """

    def __init__(self, model: str, *more: Any, prompt: Sequence[int], **options: Any) -> None:
        super().__init__(model, *more, **options)
        self._prompt = prompt

    def _part(
        self, content: str, thinking: str, calls: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        part: dict[str, Any] = {"response": content}
        if thinking:
            part["thinking"] = thinking
        if calls:
            part["tool_calls"] = calls
        return part

    def _more(self) -> dict[str, Any]:
        return {"context": [*self._prompt, *self.token_ids]} if self._prompt else {}


@router.post("/api/generate", responses=STREAMED_LINES)
async def generate(
    asked: Annotated[
        Asked[GenerateRequest] | GenerateRequest, asks_ollama(GenerateRequest, "generate")
    ],
) -> Response:
    """Answer a prompt, line by line or as a whole; without one, load or unload the model."""
    idle = without_answer(asked, response="")
    if idle is not None or isinstance(asked, GenerateRequest):
        assert idle is not None
        return idle
    times = times_of(asked)
    body = asked.body
    running: RunningText | RunningChat
    if body.raw:
        running = await _continued(asked)
    else:
        running = await (_filled(asked) if body.suffix else _answered(asked))
    writer = partial(ResponseWriter, prompt=running.prompt.token_ids)
    return await respond(asked, running, times, writer)


async def _answered(asked: Asked[GenerateRequest]) -> RunningChat:
    """The answer to the prompt as a conversation's, or as what one goes on with."""
    body, model = asked.body, asked.model
    params = params_of(asked)
    preceding = body.preceding or ()
    conversation = body.conversation(model.info.template)
    if body.truncate:
        room = body.room(model.max_model_len) - len(preceding)
        conversation = await fitted(model, conversation, max(1, room))
    work = ChatWork(
        conversation=conversation,
        params=params,
        preceding=preceding,
        show_prompt_ids=True,
        context_length=body.given_options.context_length,
    )
    running = await model.chat(work, asked.context)
    asked.note_ignored(running.ignored)
    return running


async def _continued(asked: Asked[GenerateRequest]) -> RunningText:
    """What follows the prompt as it stands; control tokens written in it are control tokens."""
    body, model = asked.body, asked.model
    if body.template or body.system or body.preceding:
        raise ParameterError("raw", "raw mode does not support template, system, or context")
    params = params_of(asked)
    asked.note_ignored(name for name in ("think", "suffix") if getattr(body, name))
    cut = Truncation(max_tokens=body.room(model.max_model_len)) if body.truncate else None
    work = CompletionWork(
        prompts=[body.prompt or ""],
        params=params,
        parse_special=True,
        truncation=cut,
        context_length=body.given_options.context_length,
    )
    [running] = await model.complete(work, asked.context)
    return running


async def _filled(asked: Asked[GenerateRequest]) -> RunningText:
    """What is missing between the prompt and what is to follow, where the model knows how."""
    body, model = asked.body, asked.model
    if not model.info.template.fills_gaps:
        raise ParameterError("suffix", f'"{body.model}" does not support insert')
    params = params_of(asked)
    unread = {"system": body.system, "template": body.template, "context": body.preceding}
    asked.note_ignored([name for name, given in unread.items() if given])
    asked.note_ignored(["think"] if body.think else [])
    work = CompletionWork(
        prompts=[body.prompt or ""],
        suffix=body.suffix,
        params=params,
        show_prompt_ids=True,
        context_length=body.given_options.context_length,
    )
    [running] = await model.complete(work, asked.context)
    return running
