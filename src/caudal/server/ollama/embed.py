"""`POST /api/embed`, and `POST /api/embeddings`, which it took the place of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from caudal.errors import ParameterError
from caudal.server.asked import Asked
from caudal.server.body import ARRIVED
from caudal.server.encoding import JSONReply, encode_json
from caudal.server.ollama.asked import asks_ollama
from caudal.server.ollama.options import FIELD_NAMES
from caudal.server.ollama.schema import OllamaBody
from caudal.server.openai.embeddings import MAX_INPUTS
from caudal.server.request_bodies import WorkRequestBody
from caudal.server.streaming import run_until_disconnect
from caudal.service.answers import Embedding
from caudal.service.naming import FieldNames
from caudal.service.work import EmbedWork

router = APIRouter()


class EmbedBody(OllamaBody, WorkRequestBody):
    """What both bodies have."""

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames(FIELD_NAMES)

    def without_effect(self) -> list[str]:
        """Options of answers, of which there is none."""
        given = self.given_options.model_dump(exclude_none=True, exclude={"num_ctx"})
        return [f"options.{name}" for name in given]


class EmbedRequest(EmbedBody):
    """Body of `POST /api/embed`."""

    input: str | list[str] | None = None
    truncate: bool | None = Field(
        None, description="Read as much of each input as the model can; by default true."
    )
    dimensions: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Cut the vectors to this size, where the model was trained for it."
    )

    def inputs(self) -> Sequence[str]:
        """The inputs, one per vector.

        Raises:
            ParameterError: There are too many.
        """
        inputs = [self.input] if isinstance(self.input, str) and self.input else self.input or []
        if len(inputs) > MAX_INPUTS:
            raise ParameterError(
                "input", f"input may have at most {MAX_INPUTS} items, but has {len(inputs)}."
            )
        return list(inputs)


class EmbeddingsRequest(EmbedBody):
    """Body of `POST /api/embeddings`."""

    prompt: str | None = None

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames({**FIELD_NAMES, "input": "prompt"})


@router.post("/api/embed")
async def embed(
    asked: Annotated[Asked[EmbedRequest], asks_ollama(EmbedRequest, "embed")],
) -> Response:
    """Turn each input into a vector of length 1; without any, load the model."""
    body, loaded = asked.body, time.monotonic()
    inputs = body.inputs()
    asked.note_ignored(body.without_effect())
    length = body.given_options.context_length
    work = EmbedWork(
        inputs=inputs,
        truncate=None if body.truncate is False else -1 if length is None else length,
        dimensions=body.dimensions or None,
        normalize=True,
    )
    vectors: Sequence[Embedding] = ()
    if inputs:
        vectors = await run_until_disconnect(asked.request, asked.model.embed(work, asked.context))
    arrived = asked.request.scope[ARRIVED]

    def write() -> bytes:
        return encode_json(
            {
                "model": asked.name,
                "embeddings": [each.vector.tolist() for each in vectors],
                "total_duration": round((time.monotonic() - arrived) * 1e9),
                "load_duration": round((loaded - arrived) * 1e9),
                "prompt_eval_count": sum(each.tokens for each in vectors),
            }
        )

    reply = await asyncio.to_thread(write) if len(vectors) > 1 else write()
    return Response(reply, media_type="application/json")


@router.post("/api/embeddings")
async def embeddings(
    asked: Annotated[Asked[EmbeddingsRequest], asks_ollama(EmbeddingsRequest, "embed")],
) -> Response:
    """Turn a prompt into a vector; without one, load the model."""
    asked.note_ignored(asked.body.without_effect())
    if not asked.body.prompt:
        return JSONReply({"embedding": []})
    work = EmbedWork(inputs=[asked.body.prompt])
    [found] = await run_until_disconnect(asked.request, asked.model.embed(work, asked.context))
    return JSONReply({"embedding": found.vector.tolist()})
