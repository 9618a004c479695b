"""`POST /v1/embeddings`: texts or token ids to vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray
from pydantic import Field

from caudal.errors import ParameterError
from caudal.server.asked import Asked, asks
from caudal.server.encoding import json_text
from caudal.server.openai.shared_fields import RequesterFields, SaltedFields
from caudal.server.openai.texts import read_texts_or_tokens
from caudal.server.openapi import TEXTS_OR_TOKENS
from caudal.server.streaming import run_until_disconnect
from caudal.service.work import EmbedWork

router = APIRouter()

MAX_INPUTS = 2048
"""Most inputs of a request (OpenAI's limit)."""


class PoolingFields(RequesterFields):
    """Fields that embeddings, reranking and scoring share."""

    hints: ClassVar[frozenset[str]] = frozenset(("input_type",))

    truncate_prompt_tokens: int | None = Field(
        None,
        description="Read only the first so many tokens of each input; -1: as many as the model "
        "reads. Without it, an input that is too long is an error.",
    )
    truncate: bool | Literal["NONE", "END"] | None = Field(
        None,
        description="As in Hugging Face's and Nvidia's servers: true or END is the same as "
        "truncate_prompt_tokens -1.",
    )

    @property
    def truncation(self) -> int | None:
        """Most tokens of each input that are read; -1: as many as the model reads."""
        cuts = self.truncate in (True, "END")
        return -1 if cuts and self.truncate_prompt_tokens is None else self.truncate_prompt_tokens


class EmbeddingRequest(PoolingFields, SaltedFields):
    """Body of `POST /v1/embeddings`."""

    input_type: str | None = Field(
        None,
        description="What the texts are: query or document (also passage, search_query, "
        "search_document), or a name of the model's own. Words that it was trained to read before "
        "such texts come before them.",
    )
    prompt_name: str | None = Field(
        None, description="TEI's: the name of one of the model's prompts, before input_type."
    )

    input: Any = Field(
        description="A string, a list of strings, token ids, or a list of token id lists.",
        json_schema_extra=TEXTS_OR_TOKENS,
    )
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    normalize: bool | None = Field(
        None, description="Whether vectors have length 1; default: as the model's should."
    )

    def inputs(self) -> Sequence[str | list[int]]:
        """The inputs, one per vector.

        Raises:
            ParameterError: `input` is of another shape, empty or too long a list.
        """
        inputs = [] if self.input == [] else read_texts_or_tokens("input", self.input)
        if not 0 < len(inputs) <= MAX_INPUTS:
            raise ParameterError(
                "input", f"input must have 1 to {MAX_INPUTS} items, but has {len(inputs)}."
            )
        return inputs


@router.post("/v1/embeddings")
async def create_embeddings(
    asked: Annotated[Asked[EmbeddingRequest], asks(EmbeddingRequest, "embed")],
) -> Response:
    """Turn each input into a vector, whose direction says what it is about."""
    body = asked.body
    prompt_name = body.prompt_name
    if prompt_name is None and body.input_type is not None:
        prompt_name = asked.model.facts.loaded.pooling.prompts.of_type(body.input_type)
        if prompt_name is None:
            asked.note_ignored(["input_type"])
    work = EmbedWork(
        inputs=body.inputs(),
        truncate=body.truncation,
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt_name=prompt_name,
    )

    async def answer() -> Response:
        results = await asked.model.embed(work, asked.context)
        encode = _as_base64 if body.encoding_format == "base64" else _as_floats
        tokens = sum(result.tokens for result in results)

        def write() -> bytes:
            # One by one, for the encoder lets nobody else go on while it works.
            data = [
                json_text({"object": "embedding", "index": index, "embedding": encode(each.vector)})
                for index, each in enumerate(results)
            ]
            usage = json_text({"prompt_tokens": tokens, "total_tokens": tokens})
            return (
                f'{{"object":"list","data":[{",".join(data)}],"model":{json_text(asked.name)},'
                f'"usage":{usage}}}'
            ).encode()

        reply = await asyncio.to_thread(write) if len(results) > 1 else write()
        return Response(reply, media_type="application/json")

    return await run_until_disconnect(asked.request, answer())


def _as_floats(vector: NDArray[np.float32]) -> list[float]:
    values: list[float] = vector.tolist()
    return values


def _as_base64(vector: NDArray[np.float32]) -> str:
    """The floats' bytes, little-endian, four each: what OpenAI's own client asks for."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
