"""A request, its life cycle, and what the engine reports about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caudal.backends.base import SampledToken, TokenLogprob
from caudal.engine.grammar import Grammar
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
    """A deadline passed."""
    FAILED = "failed"
    """The executor failed; `SequenceUpdate.error` says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine is asked to do. Immutable: progress lives in the engine.

    Attributes:
        request_id: Unique among live requests.
        prompt: Token ids, at least one, all inside the vocabulary.
        params: Sampling parameters.
        grammar: What holds the answer to `params.structured_outputs`, `allowed_token_ids` and
            `bad_words`.
        priority: Lower runs first (vLLM's convention).
        cache_salt: Requests share cached prefixes only with those of the same salt.
        first_token_deadline: Seconds from submission in which the first token must come.
        deadline: Seconds from submission in which the whole request must end.
        pooling: Sum up states of the prompt's tokens instead of generating (for an embedding);
            `params.max_tokens` is 0 then.
        second_segment: Where the second text of a pair begins in the prompt, for an encoder that
            tells the two apart.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    grammar: Grammar | None = None
    priority: int = 0
    cache_salt: str | None = None
    first_token_deadline: float | None = None
    deadline: float | None = None
    pooling: PoolingKind | None = None
    second_segment: int | None = None


class RequestTiming:
    """When things happened to a request, in seconds on the engine's (monotonic) clock.

    One object per request, shared by all its updates and filled in as the request goes on.

    Attributes:
        submitted: When it was submitted.
        first_scheduled: When it first ran; None while it has only waited.
        first_token: When its first token was there; None before.
    """

    __slots__ = ("first_scheduled", "first_token", "submitted")

    def __init__(self, submitted: float) -> None:
        self.submitted = submitted
        self.first_scheduled: float | None = None
        self.first_token: float | None = None


@dataclass(slots=True, kw_only=True)
class SequenceUpdate:
    """News about one sequence of a request after an iteration.

    Attributes:
        request_id: The request.
        index: Which of its `n` sequences.
        tokens: Newly generated tokens, in order. A token that ended the sequence is included.
        finish_reason: Set exactly once per sequence, on its last update.
        stop_token: The token that ended the sequence, where one did (end-of-sequence or a stop
            token id); it is the last of `tokens` and not part of the text.
        num_cached_tokens: Prompt tokens that were taken from the prefix cache; on every update.
        prompt_logprobs: On the request's first update (index 0), where asked for: one entry per
            prompt token after the first.
        pooled: On a pooling request's last update, if all went well: the sum of the pooled states,
            shape (width,).
        error: What went wrong, with `FinishReason.FAILED` and `TIMEOUT`.
        time: When this happened, on the engine's clock.
        timing: The request's milestones; None only where an update was made without an engine.
    """

    request_id: str
    index: int
    tokens: Sequence[SampledToken] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    pooled: NDArray[np.float64] | None = None
    error: str | None = None
    time: float = 0.0
    timing: RequestTiming | None = None
