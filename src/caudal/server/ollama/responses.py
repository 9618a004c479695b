"""Running answers become responses: line by line, or as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from fastapi import Response

from caudal.sampling_params import SamplingParams
from caudal.server.asked import Asked
from caudal.server.body import ARRIVED
from caudal.server.encoding import JSONReply
from caudal.server.ollama.answer import AnswerWriter, Times, created_at
from caudal.server.ollama.schema import AnswerBody
from caudal.server.ollama.streams import encoded_lines
from caudal.server.streaming import JSONLines, run_until_disconnect
from caudal.service.service import RunningChat, RunningText

B = TypeVar("B", bound=AnswerBody)


def params_of(asked: Asked[B]) -> SamplingParams:
    """The request's sampling parameters; says which options have no effect.

    Raises:
        ParameterError: See `AnswerBody.sampling_params`.
    """
    body, model = asked.body, asked.model
    params = body.sampling_params(model.facts.loaded.sampling)
    asked.note_ignored(body.given_options.without_effect(params, model.max_model_len))
    return params


def without_answer(asked: Asked[B] | B, **nothing: Any) -> Response | None:
    """What is said where nothing was asked but that a model be loaded or unloaded; else None.

    Args:
        asked: The request; its body, where the model has been unloaded.
        nothing: An answer that says nothing.
    """
    if isinstance(asked, Asked) and not asked.body.only_loads:
        return None
    loaded = isinstance(asked, Asked)
    return JSONReply(
        {
            "model": asked.name if isinstance(asked, Asked) else asked.model,
            "created_at": created_at(),
            **nothing,
            "done": True,
            "done_reason": "load" if loaded else "unload",
        }
    )


def times_of(asked: Asked[B]) -> Times:
    """When the request arrived, and that its model is loaded by now."""
    return Times(asked.request.scope[ARRIVED])


async def respond(
    asked: Asked[B],
    running: RunningText | RunningChat,
    times: Times,
    writer_kind: Callable[..., AnswerWriter],
) -> Response:
    """Send an answer; it is closed in any case.

    Args:
        asked: Whose it is.
        running: The answer.
        times: When what happened, so far.
        writer_kind: Makes what writes it.
    """
    body, request = asked.body, asked.request
    writer = writer_kind(
        asked.name, times, with_logprobs=bool(body.logprobs), with_top=bool(body.top_logprobs)
    )
    if body.is_streamed:
        return JSONLines(encoded_lines(request.scope, _lines(running, writer)), running.aclose)
    try:
        await run_until_disconnect(request, _collect(running, writer))
    finally:
        await running.aclose()
    return Response(writer.whole(running.usage), media_type="application/json")


async def _lines(
    running: RunningText | RunningChat, writer: AnswerWriter
) -> AsyncGenerator[bytes | dict[str, Any], None]:
    async with contextlib.aclosing(running.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                for line in writer.write(delta):
                    yield line
    yield writer.last(running.usage)


async def _collect(running: RunningText | RunningChat, writer: AnswerWriter) -> None:
    async with contextlib.aclosing(running.deltas()) as stream:
        async for deltas in stream:
            for delta in deltas:
                writer.add(delta)
