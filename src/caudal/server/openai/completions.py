"""`POST /v1/completions`: text continued as it stands, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply, json_text
from caudal.server.openai.answer import Envelope, close_all, merge, stream_events, usage
from caudal.server.openai.logprobs import CompletionLogprobs, prompt_logprobs
from caudal.server.openai.schema import CompletionRequest
from caudal.server.openapi import STREAMED
from caudal.server.streaming import EventStream, run_until_disconnect
from caudal.service.generation import Delta, Generation
from caudal.service.model_service import ModelService
from caudal.service.work import CompletionWork

router = APIRouter()


@router.post("/v1/completions", responses=STREAMED)
async def create_completion(
    asked: Annotated[Asked[CompletionRequest], asks(CompletionRequest, "generate")],
) -> Response:
    """Continue one prompt or several, whole or as a stream of chunks."""
    body, model = asked.body, asked.model
    prompts = body.prompts()
    work = CompletionWork(
        prompts=prompts,
        params=body.sampling_params(),
        add_special=body.add_special_tokens is not False,
        truncation=body.truncation(),
    )
    generations = await model.complete(work, asked.context)
    choices = _Choices(model, body, prompts, generations)
    envelope = Envelope("cmpl", "text_completion", asked.name, model.fingerprint)
    if body.stream:
        events = stream_events(
            merge(generations),
            choices.write,
            envelope,
            partial(usage, generations) if body.include_usage else None,
            continuous_usage=body.continuous_usage,
            obfuscate=body.obfuscate,
        )
        return EventStream(events, partial(close_all, generations))
    try:
        return JSONReply(
            await run_until_disconnect(asked.request, _collect(envelope, generations, choices))
        )
    finally:
        await close_all(generations)


class _Choices:
    """Makes chunks' choices, numbered as `merge` does, and echoes each prompt once."""

    def __init__(
        self,
        model: ModelService,
        body: CompletionRequest,
        prompts: Sequence[str | list[int]],
        generations: Sequence[Generation],
    ) -> None:
        self._tokenizer = model.parts.tokenizer
        self._top = body.logprobs
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)
        self._prompt_top = body.prompt_logprobs
        self._plain = body.logprobs is None and not body.echo and not self._with_ids
        self._echo = [self._text_of(prompt) if body.echo else None for prompt in prompts]
        self._generations = generations
        self._begun: set[int] = set()

    def write(self, deltas: Sequence[Delta]) -> list[str]:
        """The choice of each delta, as JSON."""
        plain = self._plain
        return [
            f'{{"index":{delta.index},"text":{json_text(delta.text)},'
            '"logprobs":null,"finish_reason":null}'
            if plain and delta.finish_reason is None  # what nearly all chunks are
            else json_text(self.chunk(delta))
            for delta in deltas
        ]

    def chunk(self, delta: Delta) -> dict[str, Any]:
        """The choice of a delta."""
        index = delta.index
        place = index // self._generations[0].params.n
        generation = self._generations[place]
        echo = self._echo[place]
        begins = index not in self._begun
        echo_now = echo is not None and begins
        self._begun.add(index)
        choice: dict[str, Any] = {
            "index": index,
            "text": f"{echo}{delta.text}" if echo_now else delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if self._top is not None:
            logprobs = CompletionLogprobs(self._tokenizer, self._top, as_ids=self._as_ids)
            if echo_now:
                logprobs.add_prompt(generation.request.prompt, generation.prompt_logprobs)
            logprobs.add(delta.tokens, len(echo or ""))
            choice["logprobs"] = logprobs.lists
        if self._with_ids:
            choice["token_ids"] = [token.sampled.token for token in delta.tokens]
            if begins:
                choice["prompt_token_ids"] = list(generation.request.prompt)
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice

    def complete(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A whole choice, with what belongs to its prompt; vLLM's clients read even the nulls."""
        generation = self._generations[choice["index"] // self._generations[0].params.n]
        scores = None
        if self._prompt_top is not None:
            scores = prompt_logprobs(self._tokenizer, generation.prompt_logprobs, self._prompt_top)
        nothing = {"token_ids": None, "prompt_token_ids": None}
        return {**nothing, **choice, "prompt_logprobs": scores}

    def _text_of(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)


async def _collect(
    envelope: Envelope,
    generations: Sequence[Generation],
    choices: _Choices,
) -> dict[str, Any]:
    collected: dict[int, dict[str, Any]] = {}
    async for deltas in merge(generations):
        for delta in deltas:
            chunk = choices.chunk(delta)
            whole = collected.setdefault(chunk["index"], chunk)
            if whole is not chunk:
                _append(whole, chunk)
    ordered = [choices.complete(collected[index]) for index in sorted(collected)]
    return envelope.wrap(ordered, usage=usage(generations))


def _append(whole: dict[str, Any], chunk: dict[str, Any]) -> None:
    whole["text"] += chunk["text"]
    whole["finish_reason"] = chunk["finish_reason"]
    if "stop_reason" in chunk:
        whole["stop_reason"] = chunk["stop_reason"]
    if "token_ids" in chunk:
        whole["token_ids"] += chunk["token_ids"]
    if chunk["logprobs"] is not None:
        for name, values in chunk["logprobs"].items():
            whole["logprobs"][name] += values
