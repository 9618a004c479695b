"""What the engine knows about a request and each of its sequences while they live."""

from __future__ import annotations

import enum
from collections.abc import Sequence as SequenceOf

from caudal.backends.base import SamplingRow, SequenceStep, TokenLogprob
from caudal.engine.memory import BlockTable
from caudal.engine.radix import Match
from caudal.engine.request import Request, RequestTiming

_SEED_MASK = 2**64 - 1


class Status(enum.Enum):
    """Where a sequence is. It ends once and for all."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class RequestState:
    """One live request: what its sequences share.

    Args:
        request: The request, already checked.
        arrival: Its place in the order of arrival.
        submitted: When it was submitted, on the engine's clock.
        seed: Key of its random numbers.
        room: Most tokens a sequence of it may generate.
        eos_token_ids: The model's end-of-sequence tokens.
    """

    __slots__ = (
        "arrival",
        "banned",
        "ending",
        "needs_history",
        "num_cached",
        "prompt",
        "prompt_scores",
        "request",
        "room",
        "scores_reported",
        "seed",
        "sequences",
        "timing",
    )

    def __init__(
        self,
        request: Request,
        *,
        arrival: int,
        submitted: float,
        seed: int,
        room: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        params = request.params
        self.request = request
        self.prompt = list(request.prompt)
        self.arrival = arrival
        self.seed = seed & _SEED_MASK
        self.room = room
        self.timing = RequestTiming(submitted)
        self.num_cached: int | None = None
        self.prompt_scores: list[TokenLogprob] | None = (
            None if params.prompt_logprobs is None else []
        )
        self.scores_reported = False
        stop = frozenset(params.stop_token_ids)
        self.ending = stop if params.ignore_eos else stop | eos_token_ids
        self.banned = tuple(sorted(self.ending)) if params.min_tokens else ()
        self.needs_history = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self.sequences: dict[int, Sequence] = {}  # by index, only those that have not ended


class Sequence:
    """One sequence of tokens: a prompt and the answer so far.

    Until a prompt is computed, one sequence stands for all `n` of its request (`branches`); they
    fork when their first tokens are drawn.

    Attributes:
        state: Its request.
        branches: Indices of the request's sequences that it stands for; its own comes first.
        tokens: Prompt and answer.
        output: The answer alone.
        table: Where its KV lives.
        planned: Tokens of it that the iteration being prepared computes.
        status: Where it is.
        preempted: It has run and lost its place.
        match: What the cache held of it when last looked at, for a waiting sequence.
        match_version: The tree's version at that time.
    """

    __slots__ = (
        "branches",
        "match",
        "match_version",
        "output",
        "planned",
        "preempted",
        "state",
        "status",
        "table",
        "tokens",
    )

    def __init__(self, state: RequestState, branches: list[int]) -> None:
        self.state = state
        self.branches = branches
        self.tokens = state.prompt.copy()
        self.output: list[int] = []
        self.table = BlockTable()
        self.planned = 0
        self.status = Status.WAITING
        self.preempted = False
        self.match = Match()
        self.match_version = -1

    @property
    def index(self) -> int:
        """Which of its request's sequences this is."""
        return self.branches[0]

    @property
    def remaining(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding."""
        return len(self.tokens) - self.table.length

    @property
    def match_limit(self) -> int:
        """Most tokens to take from the cache.

        The last token is always computed, for its logits; so is every prompt position whose score
        is asked for and not yet known.
        """
        limit = len(self.tokens) - 1
        scores = self.state.prompt_scores
        if scores is not None and len(scores) < len(self.state.prompt) - 1:
            limit = min(limit, len(scores))
        return limit

    def fork(self, index: int, table: BlockTable) -> Sequence:
        """Another sequence of the same request that goes on from here on its own."""
        twin = Sequence(self.state, [index])
        twin.table = table
        twin.status = self.status
        return twin

    def step(self) -> SequenceStep:
        """The part of a batch that computes the planned tokens."""
        table = self.table
        tokens = self.tokens
        context = table.length
        end = context + self.planned
        state = self.state
        samples: SequenceOf[SamplingRow] = ()
        if end == len(tokens) and state.room:
            samples = [self._row(index) for index in self.branches]
        if state.prompt_scores is None or context >= len(state.prompt) - 1:
            return SequenceStep(tokens[context:end], context, table.blocks, samples)
        return SequenceStep(
            tokens[context:end],
            context,
            table.blocks,
            samples,
            tokens[context + 1 : min(end + 1, len(state.prompt))],
            state.request.params.prompt_logprobs or 0,
        )

    def _row(self, index: int) -> SamplingRow:
        state = self.state
        params = state.request.params
        step = len(self.output)
        banned = state.banned if step < params.min_tokens else ()
        if state.needs_history:
            return SamplingRow(params, state.seed, index, step, state.prompt, self.output, banned)
        return SamplingRow(params, state.seed, index, step, (), (), banned)
