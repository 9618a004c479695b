"""llama.cpp's own `POST /completion`: text continued, with tokens, probabilities and timings.

Control tokens written in a prompt are control tokens here, as its docs have it: its clients write
the chat template themselves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.errors import CaudalError
from caudal.sampling_params import SamplingParams
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply
from caudal.server.errors import error_event
from caudal.server.llama_cpp.completion_schema import NativeCompletionRequest
from caudal.server.llama_cpp.settings import settings
from caudal.server.openai.answer import close_all, logger, merge
from caudal.server.openai.logprobs import LEAST_LOGPROB
from caudal.server.openapi import STREAMED
from caudal.server.streaming import EventStream, encode_event, run_until_disconnect
from caudal.service.answers import Delta, OutputToken
from caudal.service.service import RunningText
from caudal.service.work import CompletionWork

router = APIRouter()


@router.post("/completion", responses=STREAMED)
async def create_completion(
    asked: Annotated[Asked[NativeCompletionRequest], asks(NativeCompletionRequest, "generate")],
) -> Response:
    """Continue one prompt or several, whole or as a stream, in llama.cpp's own form."""
    body, model, request = asked.body, asked.model, asked.request
    params = await body.params_for(model)
    prompts, several = body.prompts()
    began = time.monotonic()
    work = CompletionWork(
        prompts=prompts, params=params, parse_special=True, show_prompt_text="whole"
    )
    generations = await model.complete(work, asked.context)
    answers = [
        _Answer(
            asked.name,
            body,
            params,
            settings(params, model.info.limits.speculative, stream=bool(body.stream)),
            index,
            generations[index // params.n],
            began,
        )
        for index in range(len(prompts) * params.n)
    ]
    if body.stream:
        return EventStream(_stream(generations, params.n, answers), partial(close_all, generations))
    try:
        await run_until_disconnect(request, _collect(generations, params.n, answers))
    finally:
        await close_all(generations)
    whole = [answer.whole() for answer in answers]
    return JSONReply(whole if several or len(whole) > 1 else whole[0])


class _Answer:
    """One sequence's answer as it grows.

    Args:
        model: The name to answer under.
        body: The request.
        params: Its sampling parameters.
        settings: The same as they are said.
        index: Of the sequence, over all prompts.
        generation: Its prompt's.
        began: When it was submitted, on the monotonic clock.
    """

    def __init__(
        self,
        model: str,
        body: NativeCompletionRequest,
        params: SamplingParams,
        settings: dict[str, Any],
        index: int,
        generation: RunningText,
        began: float,
    ) -> None:
        self._model = model
        self._body = body
        self._params = params
        self._settings = settings
        self._index = index
        self._generation = generation
        self._began = self._first = self._last = began
        self._text = ""
        self._tokens: list[OutputToken] = []
        self._end: Delta | None = None

    def add(self, delta: Delta) -> None:
        """Take what is new."""
        self._last = time.monotonic()
        if not self._tokens:
            self._first = self._last
        self._text += delta.text
        self._tokens += delta.tokens
        if delta.finish_reason is not None:
            self._end = delta

    def part(self, delta: Delta) -> dict[str, Any]:
        """What a stream says of a delta that has been added."""
        part = {
            **self._place(),
            "content": delta.text,
            "tokens": _ids(delta.tokens),
            "stop": False,
        }
        if self._body.n_probs:
            part["completion_probabilities"] = self._probabilities(delta.tokens)
        return part

    def whole(self) -> dict[str, Any]:
        """The whole answer."""
        whole = {
            **self._final(),
            "content": self._text,
            "tokens": _ids(self._tokens) if self._body.return_tokens else [],
        }
        if self._body.n_probs:
            whole["completion_probabilities"] = self._probabilities(self._tokens)
        wanted = self._body.response_fields
        return whole if not wanted else _selected(whole, wanted)

    def last(self) -> dict[str, Any]:
        """What ends a stream: the text has been sent."""
        return {**self._final(), "content": "", "tokens": []}

    def _place(self) -> dict[str, Any]:
        return {
            "index": self._index,
            "id_slot": -1,  # there are none
            "tokens_predicted": len(self._tokens),
            "tokens_evaluated": self._generation.prompt.num_tokens,
        }

    def _final(self) -> dict[str, Any]:
        assert self._end is not None
        params = self._params
        word = self._end.stop_reason
        stopped_by = "limit" if self._end.finish_reason == "length" else "eos"
        cut = self._end.finish_reason == "length" and (
            params.max_tokens is None or len(self._tokens) < params.max_tokens
        )
        return {
            **self._place(),
            "stop": True,
            "model": self._model,
            "generation_settings": self._settings,
            "prompt": self._generation.prompt.text,
            "has_new_line": "\n" in self._text,
            "truncated": cut,  # by the context's end
            "stop_type": "word" if isinstance(word, str) else stopped_by,
            "stopping_word": word if isinstance(word, str) else "",
            "tokens_cached": self._generation.usage.cached_tokens,
            "timings": self._timings(),
        }

    def _timings(self) -> dict[str, Any]:
        """From submission to the first token, and from there to the last, as the server saw it."""
        usage = self._generation.usage
        cached = usage.cached_tokens
        prompt = usage.prompt_tokens - cached
        predicted = len(self._tokens)
        return {
            "cache_n": cached,
            **_rate("prompt", prompt, self._first - self._began),
            **_rate("predicted", predicted, self._last - self._first),
        }

    def _probabilities(self, tokens: Sequence[OutputToken]) -> list[dict[str, Any]]:
        def entry(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
            return {
                "id": token,
                "token": piece.decode(errors="replace"),
                "bytes": list(piece),
                "logprob": max(logprob, LEAST_LOGPROB),
            }

        return [
            entry(token.id, token.piece, score.logprob)
            | {"top_logprobs": [entry(each.id, each.piece, each.logprob) for each in score.top]}
            for token in tokens
            if (score := token.score) is not None
        ]


async def _collect(generations: Sequence[RunningText], n: int, answers: Sequence[_Answer]) -> None:
    async with contextlib.aclosing(merge(generations, n)) as stream:
        async for deltas in stream:
            for delta in deltas:
                answers[delta.index].add(delta)


async def _stream(
    generations: Sequence[RunningText], n: int, answers: Sequence[_Answer]
) -> AsyncGenerator[bytes, None]:
    """A whole stream, encoded: parts, then for each sequence what ends it, or an error."""
    try:
        async with contextlib.aclosing(merge(generations, n)) as stream:
            async for deltas in stream:
                for delta in deltas:
                    answer = answers[delta.index]
                    answer.add(delta)
                    if delta.text:
                        yield encode_event(answer.part(delta))
                    if delta.finish_reason is not None:
                        yield encode_event(answer.last())
    except CaudalError as error:
        yield encode_event(error_event(error))
    except Exception as error:
        logger.exception("A stream failed.")
        yield encode_event(error_event(error))


def _ids(tokens: Sequence[OutputToken]) -> list[int]:
    return [token.id for token in tokens]


def _rate(what: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{what}_n": count,
        f"{what}_ms": seconds * 1000,
        f"{what}_per_token_ms": seconds * 1000 / count if count else 0.0,
        f"{what}_per_second": count / seconds if seconds > 0 else 0.0,
    }


def _selected(whole: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Only some fields, by their paths; what isn't there is left out."""
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = whole
        for part in path.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
