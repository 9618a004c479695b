"""A request, its life cycle, and what the engine reports about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import SampledToken, TokenLogprob
from caudal.engine.lost_prefixes import LostPrefix
from caudal.engine.thinking import ThinkingLimit
from caudal.models.pooling import PoolingKind
from caudal.sampling_params import SamplingParams


class FinishReason(enum.Enum):
    """How a sequence ended. Every sequence ends exactly once."""

    STOP = "stop"
    """End-of-sequence, a stop token id or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context was used up."""
    CANCELLED = "cancelled"
    """The client went away; the engine drops it at the next iteration."""
    TIMEOUT = "timeout"
    """It ran out of time."""
    FAILED = "failed"
    """The executor failed; `SequenceUpdate.error` says how."""


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Go on from the prompt.

    Attributes:
        params: Sampling parameters.
        thinking: Bounds the model's thinking.
        prediction: Tokens that the client thinks the answer will have; it gets the model's own all
            the same, and sooner where they are.
    """

    params: SamplingParams
    thinking: ThinkingLimit | None = None
    prediction: Sequence[int] = ()

    @property
    def num_sequences(self) -> int:
        """Answers to the prompt, each with an end of its own."""
        return self.params.n

    @property
    def min_tokens(self) -> int:
        """Fewest tokens of each."""
        return self.params.min_tokens

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of each; None: as many as the context has left."""
        return self.params.max_tokens

    @property
    def is_constrained(self) -> bool:
        """Whether it takes a grammar to say which tokens may come next."""
        params = self.params
        return (
            params.structured_outputs is not None
            or params.allowed_token_ids is not None
            or bool(params.bad_words)
            or self.thinking is not None
        )


class Pool(msgspec.Struct, frozen=True, tag="pool"):
    """Sum up states of the prompt's tokens, for an embedding or a score; generates nothing.

    Attributes:
        kind: Which tokens' states.
        second_segment: Where the second text of a pair begins in the prompt, for an encoder that
            tells the two apart.
    """

    kind: PoolingKind
    second_segment: int | None = None

    num_sequences: ClassVar = 1
    min_tokens: ClassVar = 0
    max_tokens: ClassVar = 0


BACKGROUND = 1_000_000
"""Work of this priority, or a larger one, is done when there is room: it makes way for any other,
however long it has waited."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is asked to do: plain data. Immutable: progress lives in the engine.

    Attributes:
        request_id: Unique among live requests.
        prompt: Token ids, at least one, all inside the vocabulary.
        work: What to do with the prompt.
        priority: Lower runs first (vLLM's convention); from `BACKGROUND` on it makes way.
        cache_salt: Requests share cached prefixes only with those of the same salt.
        adapter: The number of the adapter to compute with, as the engine gave it
            (`EngineAdapter.number`); None: the bare model. Prefixes are shared only within one.
        tenant: Whose it is: tenants get equal shares of the engine, by weight. None is one, too.
        weight: The tenant's share.
        max_waiting: Most requests of the tenant that may wait for this one to be queued; None: as
            many as of all.
        arrived: When it arrived, on the engine's (monotonic) clock; None: as it is submitted.
        first_token_timeout: Seconds from arrival in which the first token must come; of what pools
            there is none.
        timeout: Seconds from arrival in which the whole request must end.
    """

    request_id: str
    prompt: Sequence[int]
    work: Generate | Pool
    priority: int = 0
    cache_salt: str | None = None
    adapter: int | None = None
    tenant: str | None = None
    weight: float = 1.0
    max_waiting: int | None = None
    arrived: float | None = None
    first_token_timeout: float | None = None
    timeout: float | None = None

    @property
    def constrained(self) -> Generate | None:
        """The work, where it takes a grammar to say which tokens may come next."""
        work = self.work
        return work if isinstance(work, Generate) and work.is_constrained else None


class Missed(msgspec.Struct, frozen=True):
    """The deadline that a request has missed.

    Attributes:
        limit: Which one: `timeout` or `first_token_timeout`.
        retry_after: Seconds after which it is sensible to ask again.
    """

    limit: str
    retry_after: int


class SequenceUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one sequence of a request got on in an iteration: plain data.

    Times are in seconds on the engine's (monotonic) clock.

    Attributes:
        request_id: The request.
        index: Which of its `n` sequences.
        tokens: Newly generated tokens, in order. A token that ended the sequence is included.
        finish_reason: Set exactly once per sequence, on its last update.
        stop_token: The token that ended the sequence, where one did (end-of-sequence or a stop
            token id); it is the last of `tokens` and not part of the text.
        num_cached_tokens: Prompt tokens that were taken from the prefix cache; on every update.
        lost: What the prompt lost by breaking its own prefix, where it did; likewise.
        prompt_logprobs: On the request's first update (index 0), where asked for: one entry per
            prompt token after the first.
        pooled: On a pooling request's last update, if all went well: the sum of the pooled states,
            shape (width,).
        error: What went wrong, with `FinishReason.FAILED` and `TIMEOUT`.
        missed: Which deadline, with `FinishReason.TIMEOUT`.
        time: When this happened.
        submitted: When the request was submitted.
        first_scheduled: When it first ran; None while it has only waited.
        first_token: When its first token was there; None before.
    """

    request_id: str
    index: int
    tokens: Sequence[SampledToken] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0
    lost: LostPrefix | None = None
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    pooled: NDArray[np.float64] | None = None
    error: str | None = None
    missed: Missed | None = None
    time: float = 0.0
    submitted: float = 0.0
    first_scheduled: float | None = None
    first_token: float | None = None
