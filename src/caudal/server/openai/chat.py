"""`POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from caudal.output import Delta, Generation, OutputToken
from caudal.server.encoding import JSONReply
from caudal.server.openai.answer import Envelope, close_all, merge, stream_events, usage
from caudal.server.openai.logprobs import chat_logprobs
from caudal.server.openai.schema import ChatCompletionRequest
from caudal.server.served_model import ServedModel
from caudal.server.state import served_model
from caudal.server.streaming import EventStream, run_until_disconnect

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of chunks."""
    model = served_model(request)
    model.check_name(body.model)
    params = body.sampling_params()
    prompt = await model.encode_chat(body)
    generation = await model.submit(
        prompt,
        params,
        field_names={
            "prompt": "messages",
            "max_tokens": body.max_tokens_field,
            "structured_outputs": body.form_field,
        },
        priority=body.priority,
        cache_salt=body.cache_salt,
        user=body.user,
    )
    if body.stream:
        chunks = _Chunks(model, with_logprobs=params.logprobs is not None)
        events = stream_events(
            [generation],
            Envelope("chatcmpl", "chat.completion.chunk", body.model, model.fingerprint),
            chunks.choice,
            include_usage=body.include_usage,
        )
        return EventStream(events, partial(close_all, [generation]))
    try:
        return JSONReply(await run_until_disconnect(request, _collect(model, body, generation)))
    finally:
        await close_all([generation])


class _Chunks:
    """Makes chunks' choices; only a choice's first delta carries the role."""

    def __init__(self, model: ServedModel, *, with_logprobs: bool) -> None:
        self._model = model
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()

    def choice(self, _place: int, _generation: Generation, delta: Delta) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            content = {"role": "assistant", "content": delta.text}
        elif delta.text:
            content = {"content": delta.text}
        choice = {
            "index": delta.index,
            "delta": content,
            "logprobs": chat_logprobs(self._model.tokenizer, delta.tokens)
            if self._with_logprobs
            else None,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice


async def _collect(
    model: ServedModel, body: ChatCompletionRequest, generation: Generation
) -> dict[str, Any]:
    params = generation.request.params
    texts = [""] * params.n
    tokens: list[list[OutputToken]] = [[] for _ in range(params.n)]
    endings: list[Delta | None] = [None] * params.n
    async for _, _, deltas in merge([generation]):
        for delta in deltas:
            texts[delta.index] += delta.text
            if params.logprobs is not None:
                tokens[delta.index] += delta.tokens
            if delta.finish_reason is not None:
                endings[delta.index] = delta
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": texts[index], "refusal": None},
            "logprobs": None
            if params.logprobs is None
            else chat_logprobs(model.tokenizer, tokens[index]),
            "finish_reason": ending.finish_reason,
            "stop_reason": ending.stop_reason,
        }
        for index, ending in enumerate(endings)
        if ending is not None
    ]
    envelope = Envelope("chatcmpl", "chat.completion", body.model, model.fingerprint)
    more: dict[str, Any] = {"usage": usage([generation])}
    if body.metadata is not None:
        more["metadata"] = body.metadata
    return envelope.wrap(choices, **more)
