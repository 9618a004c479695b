"""`POST /v1/rerank` and `POST /v1/score` (vLLM's).

Reranking has the shape of Jina's and Cohere's; a body with `texts` instead of `documents` is one of
text-embeddings-inference (TEI), and gets its answer.

A cross-encoder scores pairs itself; for any other model the score is the cosine of two embeddings.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply
from caudal.server.openai.embeddings import MAX_INPUTS, PoolingFields
from caudal.server.streaming import run_until_disconnect
from caudal.service.answers import PairScore
from caudal.service.naming import FieldNames
from caudal.service.work import ScoreWork, pair_texts

router = APIRouter()


class TextDocument(RequestObject):
    """A document as an object."""

    text: str


class RerankRequest(PoolingFields):
    """Body of `POST /v1/rerank`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "max_tokens_per_doc": (),
        "raw_scores": (False,),
        "truncation_direction": ("right", "Right"),
    }

    query: str
    documents: (
        Annotated[list[str | TextDocument], Field(min_length=1, max_length=MAX_INPUTS)] | None
    ) = None
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)] | None = Field(
        None, description="TEI's name of the documents."
    )
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Return only so many of the documents; default: all."
    )
    return_documents: bool | None = Field(
        None, description="Results have their documents; true by default."
    )
    return_text: bool | None = Field(None, description="TEI's: results have their texts.")

    @model_validator(mode="after")
    def _check(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("documents is required, or texts instead of it")
        return self

    def field_names(self) -> FieldNames:
        """What the texts are called."""
        return FieldNames(
            {"text_1": "query", "text_2": "documents" if self.texts is None else "texts"}
        )

    def contents(self) -> list[str]:
        """The documents' texts."""
        documents = self.documents or self.texts or ()
        return [each if isinstance(each, str) else each.text for each in documents]


Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]


class ScoreRequest(PoolingFields):
    """Body of `POST /v1/score`."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = Field(None, description="The newer name of `text_1`.")
    documents: str | Texts | None = Field(None, description="The newer name of `text_2`.")

    def field_names(self) -> FieldNames:
        """By what names the texts were given."""
        first, second = self.names
        return FieldNames({"text_1": first, "text_2": second})

    @property
    def names(self) -> tuple[str, str]:
        """What the request calls the first texts and the second."""
        return (
            "queries" if self.text_1 is None and self.queries is not None else "text_1",
            "documents" if self.text_2 is None and self.documents is not None else "text_2",
        )

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs: one text with each of many, or two lists side by side.

        Raises:
            ParameterError: There are none, or the lists differ in length.
        """
        first, second = self.names
        for name in self.names:
            if getattr(self, name) is None:
                raise ParameterError(name, f"{name} is required.")
        return pair_texts(getattr(self, first), getattr(self, second))


@router.post("/v1/rerank")
async def rerank(
    asked: Annotated[Asked[RerankRequest], asks(RerankRequest, "score")],
) -> Response:
    """Order documents by how well they answer a query, the best first."""
    body = asked.body
    texts = body.contents()
    prompts = asked.model.facts.loaded.pooling.prompts
    work = ScoreWork(
        pairs=[(body.query, text) for text in texts],
        truncate=body.truncation,
        prompt_names=(prompts.of_type("query"), prompts.of_type("document")),
    )

    async def answer() -> Response:
        scores = await asked.model.score(work, asked.context)
        order = sorted(range(len(texts)), key=lambda index: -scores[index].score)
        order = order[: body.top_n]
        results: list[dict[str, Any]] = []
        if body.texts is not None:
            for index in order:
                text = {"text": texts[index]} if body.return_text else {}
                results.append({"index": index, **text, "score": scores[index].score})
            return JSONReply(results)
        for index in order:
            result: dict[str, Any] = {"index": index}
            if body.return_documents is not False:
                result["document"] = {"text": texts[index]}
            result["relevance_score"] = scores[index].score
            results.append(result)
        return JSONReply(
            {
                "id": f"rerank-{secrets.token_hex(16)}",
                "object": "list",
                "model": asked.name,
                "results": results,
                "usage": _usage(scores),
            }
        )

    return await run_until_disconnect(asked.request, answer())


@router.post("/v1/score")
async def score(
    asked: Annotated[Asked[ScoreRequest], asks(ScoreRequest, "score")],
) -> Response:
    """Say how well texts belong together, pair by pair."""
    body = asked.body
    work = ScoreWork(pairs=body.pairs(), truncate=body.truncation)

    async def answer() -> Response:
        scores = await asked.model.score(work, asked.context)
        return JSONReply(
            {
                "id": f"score-{secrets.token_hex(16)}",
                "object": "list",
                "created": int(time.time()),
                "model": asked.name,
                "data": [
                    {"index": index, "object": "score", "score": each.score}
                    for index, each in enumerate(scores)
                ],
                "usage": _usage(scores),
            }
        )

    return await run_until_disconnect(asked.request, answer())


def _usage(scores: Sequence[PairScore]) -> dict[str, int]:
    tokens = sum(each.tokens for each in scores)
    return {"prompt_tokens": tokens, "total_tokens": tokens}
