"""A cascade: a small model answers, and a larger one where the small one isn't sure.

After FrugalGPT (arXiv 2305.05176), with the mean log-probability of an answer's tokens for its
scorer, which costs nothing and needs no training.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from caudal.errors import (
    CaudalError,
    ContextOverflowError,
    EngineDeadError,
    ModelLoadError,
    ModelTooLargeError,
    ModelUnavailableError,
    ParameterError,
    QueueFullError,
    RequestFailedError,
    StoreError,
    UnknownModelError,
    UnsupportedTaskError,
)
from caudal.routes.held import HeldChat, HeldText
from caudal.routes.rules import Cascade
from caudal.sampling_params import SamplingParams
from caudal.service.answers import Embedding, PairScore, UnusedAnswer
from caudal.service.asking import Asking
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.models import NO_LEASE, Found, Lease
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork

logger = logging.getLogger("caudal.routes")

UNAVAILABLE = (
    EngineDeadError,
    ModelLoadError,
    ModelTooLargeError,
    ModelUnavailableError,
    StoreError,
    UnknownModelError,
    UnsupportedTaskError,
)
"""Why a model can't be had, so that a route goes on with the next."""

_NO_ANSWER = (*UNAVAILABLE, ContextOverflowError, QueueFullError, RequestFailedError)
"""Why there is no answer of one model, where another may have one."""

_TOKEN_IDS = ("logit_bias", "stop_token_ids", "allowed_token_ids")

_SWITCHES = frozenset(("enable_thinking", "thinking"))
"""What templates read that APIs set where a template reads it."""

H = TypeVar("H", HeldText, HeldChat)

Find = Callable[[str], Awaitable[Found]]
Begin = Callable[[Service, SamplingParams, bool], Awaitable[Sequence[H]]]


@dataclass(frozen=True, slots=True)
class _Kept(Generic[H]):
    """Complete answers that one model isn't sure of, in case that no other has any.

    Attributes:
        answers: They.
        found: The model.
        given_up: What is said of them where they aren't used.
    """

    answers: Sequence[H]
    found: Found
    given_up: UnusedAnswer


class _CascadeLease(Lease):
    """Keeps the model loaded that is being asked, and no other."""

    def __init__(self, cascade: CascadeService) -> None:
        self._cascade = cascade

    def again(self) -> Lease:
        """See `Lease`."""
        return self._cascade.current.lease.again()

    def release(self) -> None:
        """See `Lease`."""
        self._cascade.current.lease.release()


class CascadeService(ForwardingService):
    """The models of a cascade, one after another, for one request.

    Never two of them are kept loaded, so that they need not fit into memory together.

    Args:
        cascade: What is asked of them.
        first: The first of them that can be had.
        rest: The names of those behind it.
        find: Finds one of them.
        asking: Whose request it is.

    Attributes:
        current: The model that is being asked, or that has answered.
        found: What the request gets: the name in it is that of whoever has answered.
    """

    def __init__(
        self, cascade: Cascade, first: Found, rest: Sequence[str], find: Find, asking: Asking
    ) -> None:
        self.current = first
        self.found = Found(first.name, self, _CascadeLease(self), first.model or first.name)
        self._cascade = cascade
        self._rest = list(rest)
        self._find = find
        self._asking = asking

    # What it is: the model that is being asked, and at the end the one that has answered.

    @property
    def target(self) -> Service:
        """The model that is being asked."""
        return self.current.service

    @property
    def info(self) -> ServiceInfo:
        """See `Service`; its template is to read whatever one behind it may."""
        info = self.current.service.info
        if not self._rest:
            return info
        template = replace(
            info.template, variables=info.template.variables | _SWITCHES, can_think=True
        )
        return replace(info, template=template)

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """None: its stages may be adapters' names."""
        return ()

    # What it does

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`; returns once it is decided whose answer it is."""
        context = context.begun()

        async def begin(
            service: Service, params: SamplingParams, with_scores: bool
        ) -> list[HeldChat]:
            chat = await service.chat(replace(work, params=params), context)
            return [HeldChat(chat, params.n, with_scores=with_scores)]

        [chat] = await self._answer(work.params, begin)
        return chat

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """See `Service`; prompts are judged together, and `chat` says when it returns."""
        context = context.begun()
        for prompt in work.prompts:
            if not isinstance(prompt, str) and any(isinstance(part, int) for part in prompt):
                raise self._no_token_ids("prompt")

        async def begin(
            service: Service, params: SamplingParams, with_scores: bool
        ) -> list[HeldText]:
            texts = await service.complete(replace(work, params=params), context)
            return [HeldText(text, params.n, with_scores=with_scores) for text in texts]

        return await self._answer(work.params, begin)

    async def _answer(self, given: SamplingParams, begin: Begin[H]) -> Sequence[H]:
        for name in _TOKEN_IDS:
            if getattr(given, name):
                raise self._no_token_ids(name)
        return await self._asking.wait(self._first_good(given, begin))

    def _no_token_ids(self, field: str) -> ParameterError:
        return ParameterError(
            field,
            f"{field}: token ids mean something else to each model of the route "
            f"{self._cascade.name!r}; send text, or name a model.",
        )

    async def _first_good(self, given: SamplingParams, begin: Begin[H]) -> Sequence[H]:
        """The answers of the first model that is sure of them, or of the last one."""
        params = given
        unused: list[UnusedAnswer] = []
        kept: _Kept[H] | None = None
        while True:
            error: CaudalError | None = None
            try:
                answers = await self._ask(params, begin)
            except _NO_ANSWER as why:
                error = why
                logger.info("route %s: %s", self._cascade.name, why)
            else:
                confidence = _confidence(answers)
                if not self._rest or confidence >= self._cascade.min_logprob:
                    return _showing(answers, unused)
                unused.append(self._given_up(answers, confidence))
                if all(answer.complete for answer in answers):
                    kept = _Kept(answers, self.current, unused[-1])
                await _close(answers)
            self.current.lease.release()  # before the next is waited for, which may need its place
            if (failure := await self._move_on()) is None:
                params = await self._params(given)
            elif kept is not None:
                self._set_current(replace(kept.found, lease=NO_LEASE))
                return _showing(
                    kept.answers, [each for each in unused if each is not kept.given_up]
                )
            else:
                raise error or failure

    async def _ask(self, params: SamplingParams, begin: Begin[H]) -> Sequence[H]:
        """The answers of the current model, read as far as they have to be to judge them."""
        judged = bool(self._rest)
        with_scores = params.logprobs is not None
        if judged and not with_scores:
            params = replace(params, logprobs=0)
        answers = await begin(self.current.service, params, with_scores)
        if judged:
            tokens = self._cascade.judged_tokens
            try:
                await asyncio.gather(*(answer.fill(tokens) for answer in answers))
            except BaseException:
                await _close(answers)
                raise
        return answers

    def _given_up(self, answers: Sequence[H], confidence: float) -> UnusedAnswer:
        usages = [answer.usage for answer in answers]
        given_up = UnusedAnswer(
            self.current.name,
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.output_tokens for usage in usages),
            confidence,
        )
        logger.info(
            "route %s: %s isn't sure (%.2f < %.2f over %d tokens), asking %s",
            self._cascade.name,
            given_up.model,
            confidence,
            self._cascade.min_logprob,
            given_up.output_tokens,
            self._rest[0],
        )
        return given_up

    async def _move_on(self) -> CaudalError | None:
        """Ask the next model that can be had; returns why, where there is none."""
        reason: CaudalError = ModelUnavailableError(self.current.name, "has no answer")
        while self._rest:
            try:
                self._set_current(await self._find(self._rest.pop(0)))
            except (*UNAVAILABLE, QueueFullError) as error:
                logger.info("route %s: %s", self._cascade.name, error)
                reason = error
            else:
                return None
        return reason

    def _set_current(self, found: Found) -> None:
        self.current = found
        self.found.name, self.found.model = found.name, found.model or found.name

    async def _params(self, given: SamplingParams) -> SamplingParams:
        """Those of the request for the current model, whose maker may recommend others."""
        params = await self._asking.sampling_params(self.current.service)
        return given if params is None else params

    # What isn't asked of it

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """It has no vectors: `caudal.routes.routed_models` lets nobody ask."""
        raise UnsupportedTaskError(self._cascade.name, "embed", ["generate"])

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """Likewise."""
        raise UnsupportedTaskError(self._cascade.name, "score", ["generate"])

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """Adapters are its models'."""
        raise self._is_route()

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """Likewise."""
        raise self._is_route()

    def _is_route(self) -> ParameterError:
        names = ", ".join(self._cascade.stages)
        return ParameterError(
            "model", f"model: {self._cascade.name!r} is a route; name one of {names}."
        )

    async def shutdown(self) -> None:
        """The models are not its own."""


def _confidence(answers: Sequence[HeldText] | Sequence[HeldChat]) -> float:
    """The mean log-probability of the tokens of all answers; 0 where there are none."""
    count = sum(answer.num_scored for answer in answers)
    mean = sum(answer.sum_logprobs for answer in answers) / count if count else 0.0
    return -math.inf if math.isnan(mean) else mean


def _showing(answers: Sequence[H], unused: Sequence[UnusedAnswer]) -> Sequence[H]:
    """Answers that say what was computed besides."""
    for answer in answers:
        answer.unused = unused
    return answers


async def _close(answers: Sequence[HeldText] | Sequence[HeldChat]) -> None:
    for answer in answers:
        await answer.aclose()
