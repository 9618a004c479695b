"""`POST /v1/completions`: text continued as it stands, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply, json_text
from caudal.server.openai.answer import Envelope, close_all, merge, stream_events, usage_of
from caudal.server.openai.logprobs import CompletionLogprobs, prompt_logprobs
from caudal.server.openai.schema import CompletionRequest
from caudal.server.openapi import STREAMED
from caudal.server.streaming import EventStream, run_until_disconnect
from caudal.service.answers import Delta
from caudal.service.service import RunningText
from caudal.service.work import CompletionWork

router = APIRouter()


@router.post("/v1/completions", responses=STREAMED)
async def create_completion(
    asked: Annotated[Asked[CompletionRequest], asks(CompletionRequest, "generate")],
) -> Response:
    """Continue one prompt or several, whole or as a stream of chunks."""
    body, model = asked.body, asked.model
    prompts, params = body.prompts(), body.sampling_params(asked.model.facts.loaded.sampling)
    work = CompletionWork(
        prompts=prompts,
        params=params,
        add_special=body.add_special_tokens is not False,
        truncation=body.truncation(),
        show_prompt_ids=bool(body.return_token_ids),
        # What was sent as text is echoed as it was sent.
        show_prompt_text="plain" if body.echo and not _all_texts(prompts) else None,
    )
    generations = await model.complete(work, asked.context)
    choices = _Choices(body, params.n, prompts, generations)
    envelope = Envelope("cmpl", "text_completion", asked.name, model.info.fingerprint)
    if body.stream:
        events = stream_events(
            merge(generations, params.n),
            choices.write,
            envelope,
            partial(usage_of, generations) if body.include_usage else None,
            continuous_usage=body.continuous_usage,
            obfuscate=body.obfuscate,
        )
        return EventStream(events, partial(close_all, generations))
    try:
        return JSONReply(
            await run_until_disconnect(
                asked.request, _collect(envelope, generations, params.n, choices)
            )
        )
    finally:
        await close_all(generations)


class _Choices:
    """Makes chunks' choices, numbered as `merge` does, and echoes each prompt once."""

    def __init__(
        self,
        body: CompletionRequest,
        n: int,
        prompts: Sequence[str | list[int]],
        generations: Sequence[RunningText],
    ) -> None:
        self._n = n
        self._top = body.logprobs
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)
        self._prompt_top = body.prompt_logprobs
        self._plain = body.logprobs is None and not body.echo and not self._with_ids
        self._echo = [
            None if not body.echo else prompt if isinstance(prompt, str) else shown.prompt.text
            for prompt, shown in zip(prompts, generations, strict=True)
        ]
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
        place = index // self._n
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
            logprobs = CompletionLogprobs(self._top, as_ids=self._as_ids)
            if echo_now:
                logprobs.add(generation.prompt_tokens)
            logprobs.add(delta.tokens, len(echo or ""))
            choice["logprobs"] = logprobs.lists
        if self._with_ids:
            choice["token_ids"] = [token.id for token in delta.tokens]
            if begins:
                choice["prompt_token_ids"] = generation.prompt.token_ids
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice

    def complete(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A whole choice, with what belongs to its prompt; vLLM's clients read even the nulls."""
        generation = self._generations[choice["index"] // self._n]
        scores = None
        if self._prompt_top is not None:
            scores = prompt_logprobs(generation.prompt_tokens, self._prompt_top)
        nothing = {"token_ids": None, "prompt_token_ids": None}
        return {**nothing, **choice, "prompt_logprobs": scores}


def _all_texts(prompts: Sequence[str | list[int]]) -> bool:
    return all(isinstance(prompt, str) for prompt in prompts)


async def _collect(
    envelope: Envelope,
    generations: Sequence[RunningText],
    n: int,
    choices: _Choices,
) -> dict[str, Any]:
    collected: dict[int, dict[str, Any]] = {}
    async for deltas in merge(generations, n):
        for delta in deltas:
            chunk = choices.chunk(delta)
            whole = collected.setdefault(chunk["index"], chunk)
            if whole is not chunk:
                _append(whole, chunk)
    ordered = [choices.complete(collected[index]) for index in sorted(collected)]
    return envelope.wrap(ordered, usage=usage_of(generations))


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
