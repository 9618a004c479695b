"""Embeddings and scores, for HTTP and the library alike: text in, vectors and figures out.

Each input is a request of its own to the engine, which batches them; nothing here computes states.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from caudal.engine.config import EngineConfig
from caudal.engine.request import Pool, Request, SequenceUpdate
from caudal.errors import (
    EngineDeadError,
    ParameterError,
)
from caudal.formats.tokenizer import Tokenizer
from caudal.models.pooling import Pooling, cosine_similarity
from caudal.service.allowance import check_prompts
from caudal.service.answers import AnswerTimes, Embedding, PairScore
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.generation import UpdateStream, check_end
from caudal.service.pool_inputs import InputReader, PoolInput
from caudal.service.timeouts import in_time
from caudal.service.work import EmbedWork, ScoreWork

if TYPE_CHECKING:
    from caudal.loading.load import LoadedModel

T = TypeVar("T")


def _fields(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What errors call the texts of each pair: by their place, unless all pairs have the same."""
    alone = [len({pair[side] for pair in pairs}) == 1 for side in range(2)]
    for index in range(len(pairs)):
        first, second = (
            f"text_{side + 1}" if alone[side] else f"text_{side + 1}[{index}]" for side in range(2)
        )
        yield first, second


class PoolingEngine(Protocol):
    """What embedding needs of an engine."""

    @property
    def config(self) -> EngineConfig:
        """The engine's limits."""

    async def submit(self, request: Request) -> UpdateStream:
        """Queue a request; raises `ParameterError` or `QueueFullError` before anything runs."""


class _Clock:
    """When inputs got how far, all together."""

    def __init__(self) -> None:
        self._begun = self._submitted = time.monotonic()
        self._scheduled: float | None = None
        self._last: float | None = None

    def submit(self) -> None:
        """They are tokens now."""
        self._submitted = time.monotonic()

    def note(self, update: SequenceUpdate) -> None:
        """One of them has been computed."""
        begun = update.first_scheduled
        if begun is not None:
            self._scheduled = begun if self._scheduled is None else min(self._scheduled, begun)
        self._last = update.time if self._last is None else max(self._last, update.time)

    @property
    def times(self) -> AnswerTimes:
        """See `Embedding.times`."""
        return AnswerTimes(self._begun, self._submitted, self._scheduled, self._last, self._last)


class Embedder:
    """Turns texts into embeddings and pairs of texts into scores. Safe to use from any event loop.

    Args:
        engine: Runs the model.
        tokenizer: The model's.
        pooling: How it makes embeddings.
        width: Components of an embedding.
        on_end: Told of the end of each input that was computed, for metrics.

    Attributes:
        pooling: How it makes embeddings.
        width: Components of an embedding.
        reader: Makes tokens of texts.
    """

    def __init__(
        self,
        engine: PoolingEngine,
        tokenizer: Tokenizer,
        pooling: Pooling,
        width: int,
        on_end: Callable[[SequenceUpdate], None] = lambda update: None,
    ) -> None:
        self.pooling = pooling
        self.width = width
        self._engine = engine
        self.reader = InputReader(tokenizer, engine.config.max_model_len)
        self._on_end = on_end

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        engine: PoolingEngine,
        on_end: Callable[[SequenceUpdate], None] = lambda update: None,
    ) -> Embedder:
        """What makes embeddings with a loaded model, on its engine."""
        program = loaded.program
        return cls(engine, loaded.tokenizer, program.pooling, program.state.width, on_end)

    async def embed(
        self,
        work: EmbedWork,
        context: RequestContext = NO_CONTEXT,
        *,
        adapter: int | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Embedding]:
        """Embeddings of inputs, in order; if one fails, all do.

        Args:
            work: What to embed.
            context: Who asks.
            adapter: The engine's number of the adapter that the context names.
            on_done: Called after each input.

        Raises:
            ParameterError: An input or `dimensions` is refused; blames `input`, or `input[3]`.
            QueueFullError: Too many requests are waiting.
            RequestFailedError, RequestTimeoutError, EngineDeadError: It could not be computed.
        """
        if self.pooling.scores_pairs:
            raise ParameterError(
                "model", "This model scores pairs of texts; it makes no embeddings."
            )
        self.pooling.check_dimensions(work.dimensions, self.width)
        context, clock = context.begun(), _Clock()
        inputs = await self._encoded(lambda: self._encode_all(work), context)
        clock.submit()
        return await self._embed(inputs, work, context, adapter, clock, on_done)

    async def _embed(
        self,
        inputs: Sequence[PoolInput],
        work: EmbedWork | ScoreWork,
        context: RequestContext,
        adapter: int | None,
        clock: _Clock,
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Embedding]:
        pooling, dimensions, shows_ids = self.pooling, None, False
        if isinstance(work, EmbedWork):
            dimensions, shows_ids = work.dimensions, work.show_token_ids
            if work.normalize is not None:
                pooling = replace(pooling, normalize=work.normalize)
        check_prompts(context, (len(each.tokens) for each in inputs), "input")
        totals = await self._pool_all(inputs, context, adapter, clock, on_done)
        return [
            Embedding(
                pooling.finish(total, len(each.tokens), dimensions),
                len(each.tokens),
                each.tokens if shows_ids else (),
                clock.times if place == 0 else None,
            )
            for place, (each, total) in enumerate(zip(inputs, totals, strict=True))
        ]

    def _encode_all(self, work: EmbedWork) -> list[PoolInput]:
        inputs = []
        for index, each in enumerate(work.inputs):
            field = f"input[{index}]" if len(work.inputs) > 1 else "input"
            if isinstance(each, str):
                text = self.pooling.prompts.with_prompt(each, work.prompt_name)
                tokens: Sequence[int] = self.reader.encode(
                    text, truncate=work.truncate, field=field
                )
            else:
                tokens = self.reader.check_tokens(each, truncate=work.truncate, field=field)
            inputs.append(PoolInput(tokens))
        return inputs

    async def score(
        self,
        work: ScoreWork,
        context: RequestContext = NO_CONTEXT,
        *,
        adapter: int | None = None,
    ) -> list[PairScore]:
        """Scores of pairs, in order. A text that is in several is embedded once.

        Args:
            work: What to score.
            context: Who asks.
            adapter: See `embed`.

        Raises:
            ParameterError, QueueFullError, RequestFailedError, RequestTimeoutError,
            EngineDeadError: See `embed`; blames `text_1` or `text_2`, or `text_2[3]`.
        """
        truncate = work.truncate
        context, clock = context.begun(), _Clock()
        if self.pooling.scores_pairs:
            return await self._cross_scores(work, context, adapter, clock)
        with_prompt, (first, second) = self.pooling.prompts.with_prompt, work.prompt_names
        pairs = [(with_prompt(a, first), with_prompt(b, second)) for a, b in work.pairs]

        def encode() -> dict[str, PoolInput]:
            inputs: dict[str, PoolInput] = {}
            for pair, fields in zip(pairs, _fields(pairs), strict=True):
                for text, field in zip(pair, fields, strict=True):
                    if text not in inputs:
                        tokens = self.reader.encode(text, truncate=truncate, field=field)
                        inputs[text] = PoolInput(tokens)
            return inputs

        inputs = await self._encoded(encode, context)
        clock.submit()
        made = await self._embed(list(inputs.values()), work, context, adapter, clock)
        embeddings = dict(zip(inputs, made, strict=True))
        counted: set[str] = set()

        def tokens_of(text: str) -> int:
            if text in counted:
                return 0
            counted.add(text)
            return embeddings[text].tokens

        return [
            PairScore(
                cosine_similarity(embeddings[a].vector, embeddings[b].vector),
                tokens_of(a) + tokens_of(b),
                clock.times if place == 0 else None,
            )
            for place, (a, b) in enumerate(pairs)
        ]

    async def _cross_scores(
        self, work: ScoreWork, context: RequestContext, adapter: int | None, clock: _Clock
    ) -> list[PairScore]:
        def encode() -> list[PoolInput]:
            return [
                self.reader.encode_pair(a, b, truncate=work.truncate, fields=fields)
                for (a, b), fields in zip(work.pairs, _fields(work.pairs), strict=True)
            ]

        inputs = await self._encoded(encode, context)
        check_prompts(context, (len(each.tokens) for each in inputs), "text_2")
        clock.submit()
        totals = await self._pool_all(inputs, context, adapter, clock, lambda: None)
        scores: list[PairScore] = []
        for each, total in zip(inputs, totals, strict=True):
            score = float(self.pooling.finish(total, len(each.tokens))[0])
            if self.pooling.score_sigmoid:
                score = 1 / (1 + math.exp(-max(min(score, 80.0), -80.0)))
            times = None if scores else clock.times
            scores.append(PairScore(score, len(each.tokens), times))
        return scores

    async def _encoded(self, encode: Callable[[], T], context: RequestContext) -> T:
        """What a function makes of texts, in time; raises `RequestTimeoutError`."""
        async with in_time(context, self._engine.config, generates=False):
            return await asyncio.to_thread(encode)

    async def _pool_all(
        self,
        inputs: Sequence[PoolInput],
        context: RequestContext,
        adapter: int | None,
        clock: _Clock,
        on_done: Callable[[], None],
    ) -> list[NDArray[np.float64]]:
        # Enough in the queue for full batches, and never so many as to fill it.
        config = self._engine.config
        places = asyncio.Semaphore(max(1, min(2 * config.max_num_seqs, config.max_queue)))
        prefix = uuid.uuid4().hex
        numbers = itertools.count()

        async def run_one(each: PoolInput) -> NDArray[np.float64]:
            async with places:
                total = await self._pool(
                    Request(
                        request_id=f"{prefix}-{next(numbers)}",
                        prompt=each.tokens,
                        work=Pool(self.pooling.kind, each.second_segment),
                        priority=context.priority,
                        cache_salt=context.cache_salt,
                        adapter=adapter,
                        tenant=context.tenant,
                        weight=context.weight,
                        max_waiting=context.max_waiting,
                        arrived=context.arrived,
                        timeout=context.timeout,
                    ),
                    clock,
                )
            on_done()
            return total

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_one(each)) for each in inputs]
        except BaseExceptionGroup as failures:  # the first says what went wrong
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _pool(self, request: Request, clock: _Clock) -> NDArray[np.float64]:
        stream = await self._engine.submit(request)
        async with contextlib.aclosing(stream):
            async for updates in stream:
                for update in updates:
                    check_end(update)
                    if update.pooled is not None:
                        self._on_end(update)
                        clock.note(update)
                        return update.pooled
        raise EngineDeadError("The engine stopped before the embedding was complete.")
