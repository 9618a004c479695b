"""What the engine knows about a request and each of its sequences while they live."""

from __future__ import annotations

import enum
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import SampledToken, TokenLogprob
from caudal.engine.grammar import Matcher
from caudal.engine.lost_prefixes import LostPrefix
from caudal.engine.nodes import Match
from caudal.engine.request import (
    BACKGROUND,
    FinishReason,
    Generate,
    Missed,
    Pool,
    Request,
    SequenceUpdate,
)
from caudal.engine.space import Space
from caudal.engine.tables import SequenceMemory
from caudal.sampling_params import SamplingParams

_SEED_MASK = 2**64 - 1


class Status(enum.Enum):
    """Where a sequence is. It ends once and for all."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class SequenceGroup:
    """One live request: what its sequences share.

    Args:
        request: The request, already checked.
        arrival: Its number in the order of arrival.
        submitted: When it was submitted, on the engine's clock.
        seed: Key of its random numbers.
        max_output_tokens: Most tokens a sequence of it may generate.
        eos_token_ids: The model's end-of-sequence tokens.
        suppressed_token_ids: Tokens that no answer has.
        constrained: Whether a grammar says which tokens may come next.
        jump_ahead: See `EngineConfig`.
        adapter: The executor's number of its adapter, where it has one.

    Attributes:
        adapter: The executor's number of its adapter, where it has one.
        params: How it generates; None where it pools.
        first_scheduled: When it first ran, on the engine's clock.
        first_token: When its first token was there.
        lost: What its prompt lost by breaking its own prefix, where it did.
        pooling: What it pools; None where it generates.
        prediction: What its client thinks that the answer will be.
        speculates: Whether tokens may be guessed for it.
    """

    __slots__ = (
        "adapter",
        "arrival",
        "banned",
        "banned_at_first",
        "draws_all",
        "ending",
        "eos_token_ids",
        "first_scheduled",
        "first_token",
        "jumps",
        "lost",
        "max_output_tokens",
        "min_tokens",
        "needs_history",
        "num_cached",
        "params",
        "pooled",
        "pooled_tokens",
        "pooling",
        "prediction",
        "prompt",
        "prompt_scores",
        "request",
        "score_top",
        "scores_reported",
        "seed",
        "sequences",
        "space",
        "speculates",
        "submitted",
    )

    def __init__(
        self,
        request: Request,
        *,
        arrival: int,
        submitted: float,
        seed: int,
        max_output_tokens: int,
        eos_token_ids: frozenset[int],
        suppressed_token_ids: frozenset[int],
        constrained: bool,
        jump_ahead: bool,
        adapter: int | None = None,
    ) -> None:
        work = request.work
        self.request = request
        self.params = params = work.params if isinstance(work, Generate) else None
        self.pooling = work if isinstance(work, Pool) else None
        self.prediction = work.prediction if isinstance(work, Generate) else ()
        self.speculates = params is not None and params.speculative != "off"
        self.prompt = list(request.prompt)
        self.space = Space.of(request.cache_salt, request.adapter)
        self.adapter = adapter
        self.arrival = arrival
        self.seed = seed & _SEED_MASK
        self.max_output_tokens = max_output_tokens
        self.submitted = submitted
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.num_cached: int | None = None
        self.lost: LostPrefix | None = None
        self.prompt_scores: list[TokenLogprob] | None = None
        self.score_top = 0
        self.scores_reported = False
        self.pooled: NDArray[np.float64] | None = None
        self.pooled_tokens = 0
        self.eos_token_ids = eos_token_ids
        self.ending: frozenset[int] = frozenset()
        self.banned: tuple[int, ...] = ()
        self.banned_at_first: tuple[int, ...] = ()  # for `min_tokens`
        self.min_tokens = 0
        self.jumps = self.draws_all = self.needs_history = False
        if params is not None:
            self._prepare(params, suppressed_token_ids, constrained, jump_ahead)
        self.sequences: dict[int, Sequence] = {}  # by index, only those that have not ended

    def _prepare(
        self,
        params: SamplingParams,
        suppressed_token_ids: frozenset[int],
        constrained: bool,
        jump_ahead: bool,
    ) -> None:
        """Note what generating takes."""
        if params.prompt_logprobs is not None:
            self.prompt_scores = []
            self.score_top = params.prompt_logprobs
        stop = frozenset(params.stop_token_ids)
        self.ending = stop if params.ignore_eos else stop | self.eos_token_ids
        banned = suppressed_token_ids
        if constrained and params.ignore_eos:
            banned |= self.eos_token_ids  # a grammar has no room for one that ends nothing
        self.banned = tuple(sorted(banned))
        self.banned_at_first = tuple(sorted(banned | self.ending))
        self.min_tokens = params.min_tokens
        self.jumps = jump_ahead and constrained
        self.draws_all = params.logprobs is not None  # what isn't drawn has no log-probability
        self.needs_history = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )

    def banned_after(self, length: int) -> tuple[int, ...]:
        """Tokens that may not be drawn next in an answer of `length` tokens."""
        return self.banned_at_first if length < self.min_tokens else self.banned

    def take_pooled(self, total: NDArray[np.float64], end: int) -> None:
        """Note a sum of states; it is complete, or for the mean covers the tokens up to `end`."""
        self.pooled = total
        is_mean = self.pooling is not None and self.pooling.kind == "mean"
        self.pooled_tokens = end if is_mean else len(self.prompt)

    def update(
        self,
        index: int,
        now: float,
        tokens: SequenceOf[SampledToken],
        reason: FinishReason | None = None,
        stop_token: int | None = None,
        error: str | None = None,
        missed: Missed | None = None,
    ) -> SequenceUpdate:
        """An update of one sequence; the prompt's scores go with the first that has them all."""
        scores = self.prompt_scores
        if scores is not None:
            if self.scores_reported or len(scores) < len(self.prompt) - 1:
                scores = None
            else:
                self.scores_reported = True
        return SequenceUpdate(
            request_id=self.request.request_id,
            index=index,
            tokens=tokens,
            finish_reason=reason,
            stop_token=stop_token,
            num_cached_tokens=self.num_cached or 0,
            lost=self.lost,
            prompt_logprobs=scores,
            pooled=self.pooled if reason is FinishReason.STOP else None,
            error=error,
            missed=missed,
            time=now,
            submitted=self.submitted,
            first_scheduled=self.first_scheduled,
            first_token=self.first_token,
        )


class Sequence:
    """One sequence of tokens: a prompt and the answer so far.

    Until a prompt is computed, one sequence stands for all `n` of its request (`branches`); they
    fork when their first tokens are drawn.

    Attributes:
        group: Its request.
        branches: Indices of the request's sequences that it stands for; its own comes first.
        tokens: Prompt and answer.
        output: The answer alone.
        matcher: Where the answer is in the request's grammar; None without one.
        reported: Tokens of the answer that have been reported. Those that the grammar forces at
            first go out with the first that is drawn.
        draft: Tokens proposed to follow: computed with the rest, and of the answer only where they
            are drawn in their places too.
        memory: What it has in memory.
        charged: Tokens of it that its tenant has had or needn't pay.
        planned: Tokens of it that the iteration being prepared computes.
        status: Where it is.
        preempted: It has run and had to give up its blocks.
        recalled: A further tier has been asked for it since, and needn't be again.
        match: What the cache held of it when last looked at, for a waiting sequence.
        match_version: The tree's version at that time.
    """

    __slots__ = (
        "branches",
        "charged",
        "draft",
        "group",
        "match",
        "match_version",
        "matcher",
        "memory",
        "output",
        "planned",
        "preempted",
        "recalled",
        "reported",
        "status",
        "tokens",
    )

    def __init__(
        self, group: SequenceGroup, branches: list[int], matcher: Matcher | None = None
    ) -> None:
        self.group = group
        self.branches = branches
        self.tokens = group.prompt.copy()
        self.output: list[int] = []
        self.matcher = matcher
        self.reported = 0
        self.draft: list[int] = []
        self.memory = SequenceMemory()
        self.charged = 0
        self.planned = 0
        self.status = Status.WAITING
        self.preempted = False
        self.recalled = False
        self.match = Match()
        self.match_version = -1

    @property
    def in_background(self) -> bool:
        """Whether it makes way for others."""
        return self.group.request.priority >= BACKGROUND

    @property
    def index(self) -> int:
        """Which of its request's sequences this is."""
        return self.branches[0]

    @property
    def keys(self) -> SequenceOf[int]:
        """What the prefix cache knows its tokens by, one for each; see `radix.py`."""
        return self.tokens

    @property
    def extent(self) -> int:
        """Tokens that it has, with those proposed."""
        return len(self.tokens) + len(self.draft)

    @property
    def remaining(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding, but for jumps and drafts."""
        return len(self.tokens) + len(self.draft) - self.memory.length

    @property
    def match_limit(self) -> int:
        """Most tokens to take from the cache.

        The last token is always computed, for its logits; so is every prompt position whose score
        or state is asked for and not yet known.
        """
        limit = len(self.tokens) - 1
        group = self.group
        scores = group.prompt_scores
        if scores is not None and len(scores) < len(group.prompt) - 1:
            limit = min(limit, len(scores))
        if group.pooling is not None and group.pooling.kind != "last":
            limit = min(limit, group.pooled_tokens)
        return limit

    def fork(self, index: int, memory: SequenceMemory) -> Sequence:
        """Another sequence of the same request that goes on from here on its own."""
        matcher = None if self.matcher is None else self.matcher.fork()
        twin = Sequence(self.group, [index], matcher)
        twin.tokens = self.tokens.copy()
        twin.output = self.output.copy()
        twin.reported = self.reported
        twin.memory = memory
        twin.charged = memory.length
        twin.status = self.status
        return twin
