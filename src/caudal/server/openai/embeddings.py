"""`POST /v1/embeddings`: texts or token ids to vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import Field

from caudal.errors import ParameterError
from caudal.server.body import json_body
from caudal.server.encoding import json_text
from caudal.server.fields import RequestModel
from caudal.server.openai.texts import read_texts_or_tokens
from caudal.server.openapi import TEXTS_OR_TOKENS
from caudal.server.pooling_log import logged
from caudal.server.state import served_model
from caudal.server.streaming import run_until_disconnect
from caudal.service.embedding import EmbeddingModel, PoolInput

router = APIRouter()

MAX_INPUTS = 2048
"""Most inputs of a request (OpenAI's limit)."""


class PoolingFields(RequestModel):
    """Fields that embeddings, reranking and scoring share; the last two are vLLM's."""

    hints: ClassVar[frozenset[str]] = frozenset(("input_type",))

    model: str | None = Field(None, description="Default: the model that is served.")
    user: str | None = Field(None, description="Named in the server's log line of the request.")
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
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None

    @property
    def truncation(self) -> int | None:
        """Most tokens of each input that are read; -1: as many as the model reads."""
        cuts = self.truncate in (True, "END")
        return -1 if cuts and self.truncate_prompt_tokens is None else self.truncate_prompt_tokens


class EmbeddingRequest(PoolingFields):
    """Body of `POST /v1/embeddings`."""

    input: Any = Field(
        description="A string, a list of strings, token ids, or a list of token id lists.",
        json_schema_extra=TEXTS_OR_TOKENS,
    )
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    normalize: bool | None = Field(
        None, description="Whether vectors have length 1; default: as the model's should."
    )
    cache_salt: str | None = None

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
    body: Annotated[EmbeddingRequest, json_body(EmbeddingRequest)], request: Request
) -> Response:
    """Turn each input into a vector, whose direction says what it is about."""
    model = served_model(request)
    name = model.name_for(body.model)
    texts = body.inputs()
    embeddings = model.embeddings
    embeddings.pooling.check_dimensions(body.dimensions, embeddings.width)

    async def work() -> Response:
        inputs = await asyncio.to_thread(_encode_all, embeddings, texts, body)
        results = await embeddings.embed(
            inputs,
            dimensions=body.dimensions,
            normalize=body.normalize,
            priority=body.priority or 0,
        )
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
                f'{{"object":"list","data":[{",".join(data)}],"model":{json_text(name)},'
                f'"usage":{usage}}}'
            ).encode()

        reply = await asyncio.to_thread(write) if len(results) > 1 else write()
        return Response(reply, media_type="application/json")

    with logged(model.metrics, f"embeddings of {len(texts)} inputs", body.user):
        return await run_until_disconnect(request, work())


def _encode_all(
    embeddings: EmbeddingModel, texts: Sequence[str | list[int]], body: EmbeddingRequest
) -> list[PoolInput]:
    truncate = body.truncation
    inputs = []
    for index, text in enumerate(texts):
        field = f"input[{index}]" if len(texts) > 1 else "input"
        if isinstance(text, str):
            tokens: Sequence[int] = embeddings.encode(text, truncate=truncate, field=field)
        else:
            tokens = embeddings.check_tokens(text, truncate=truncate, field=field)
        inputs.append(PoolInput(tokens, cache_salt=body.cache_salt))
    return inputs


def _as_floats(vector: NDArray[np.float32]) -> list[float]:
    values: list[float] = vector.tolist()
    return values


def _as_base64(vector: NDArray[np.float32]) -> str:
    """The floats' bytes, little-endian, four each: what OpenAI's own client asks for."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
