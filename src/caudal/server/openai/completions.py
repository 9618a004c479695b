"""`POST /v1/completions`: text continued as it stands, without a chat template."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from caudal.output import Delta, Generation
from caudal.server.encoding import JSONReply, json_text
from caudal.server.openai.answer import Envelope, close_all, merge, stream_events, usage
from caudal.server.openai.logprobs import CompletionLogprobs
from caudal.server.openai.schema import CompletionRequest
from caudal.server.openapi import STREAMED
from caudal.server.served_model import ServedModel
from caudal.server.state import served_model
from caudal.server.streaming import EventStream, run_until_disconnect

router = APIRouter()


@router.post("/v1/completions", responses=STREAMED)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several, whole or as a stream of chunks."""
    model = served_model(request)
    model.check_name(body.model)
    params = body.sampling_params()
    prompts = body.prompts()
    model.check_count(len(prompts))
    encoded = [
        await model.encode_text(prompt) if isinstance(prompt, str) else prompt for prompt in prompts
    ]
    generations = await model.submit_all(
        encoded,
        params,
        field_names={"structured_outputs": body.form_field},
        priority=body.priority,
        cache_salt=body.cache_salt,
        user=body.user,
    )
    choices = _Choices(model, body, prompts)
    if body.stream:
        events = stream_events(
            choices.stream(generations),
            Envelope("cmpl", "text_completion", body.model, model.fingerprint),
            partial(usage, generations) if body.include_usage else None,
            obfuscate=body.obfuscate,
        )
        return EventStream(events, partial(close_all, generations))
    try:
        return JSONReply(
            await run_until_disconnect(request, _collect(model, body, generations, choices))
        )
    finally:
        await close_all(generations)


class _Choices:
    """Makes chunks' choices: numbers them over all prompts and echoes each prompt once."""

    def __init__(
        self, model: ServedModel, body: CompletionRequest, prompts: Sequence[str | list[int]]
    ) -> None:
        self._tokenizer = model.tokenizer
        self._top = body.logprobs
        self._echo = [self._text_of(prompt) if body.echo else None for prompt in prompts]
        self._begun: set[int] = set()

    async def stream(self, generations: Sequence[Generation]) -> AsyncGenerator[str, None]:
        """The choices of all chunks as JSON, as they come."""
        async with contextlib.aclosing(merge(generations)) as merged:
            async for place, generation, deltas in merged:
                plain = self._top is None and self._echo[place] is None
                for delta in deltas:
                    if plain and delta.finish_reason is None:  # what nearly all chunks are
                        index = place * generation.request.params.n + delta.index
                        yield (
                            f'{{"index":{index},"text":{json_text(delta.text)},'
                            '"logprobs":null,"finish_reason":null}'
                        )
                    else:
                        yield json_text(self.chunk(place, generation, delta))

    def chunk(self, place: int, generation: Generation, delta: Delta) -> dict[str, Any]:
        """The choice of one delta of the prompt at `place`."""
        index = place * generation.request.params.n + delta.index
        echo = self._echo[place]
        echo_now = echo is not None and index not in self._begun
        self._begun.add(index)
        choice: dict[str, Any] = {
            "index": index,
            "text": f"{echo}{delta.text}" if echo_now else delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if self._top is not None:
            logprobs = CompletionLogprobs(self._tokenizer, self._top)
            if echo_now:
                logprobs.add_prompt(generation.request.prompt, generation.prompt_logprobs)
            logprobs.add(delta.tokens, len(echo or ""))
            choice["logprobs"] = logprobs.lists
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice

    def _text_of(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)


async def _collect(
    model: ServedModel,
    body: CompletionRequest,
    generations: Sequence[Generation],
    choices: _Choices,
) -> dict[str, Any]:
    collected: dict[int, dict[str, Any]] = {}
    async for place, generation, deltas in merge(generations):
        for delta in deltas:
            chunk = choices.chunk(place, generation, delta)
            whole = collected.setdefault(chunk["index"], chunk)
            if whole is not chunk:
                _append(whole, chunk)
    envelope = Envelope("cmpl", "text_completion", body.model, model.fingerprint)
    ordered = [collected[index] for index in sorted(collected)]
    return envelope.wrap(ordered, usage=usage(generations))


def _append(whole: dict[str, Any], chunk: dict[str, Any]) -> None:
    whole["text"] += chunk["text"]
    whole["finish_reason"] = chunk["finish_reason"]
    if "stop_reason" in chunk:
        whole["stop_reason"] = chunk["stop_reason"]
    if chunk["logprobs"] is not None:
        for name, values in chunk["logprobs"].items():
            whole["logprobs"][name] += values
