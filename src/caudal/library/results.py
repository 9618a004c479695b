"""What the library returns: the shapes of vLLM's offline API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from caudal.backends.base import TokenLogprob
from caudal.formats.tokenizer import Tokenizer
from caudal.service.generation import Delta


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability.

    Attributes:
        logprob: Natural logarithm of its probability under the model's raw distribution.
        rank: 1 for the likeliest token, 2 for the next, …
        decoded_token: The token's text.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's answers; from `LLM.stream`, what is new in it.

    Attributes:
        index: Which of the `n` answers.
        text: Its text, without the stop string.
        token_ids: Its tokens, including the one that ended it.
        cumulative_logprob: Sum of the tokens' log-probabilities, where asked for.
        logprobs: One dictionary per token, by token id: the chosen one and the likeliest.
        finish_reason: "stop" or "length"; None while it runs.
        stop_reason: The stop string or stop token id that ended it; None for end-of-sequence.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def append(self, delta: Delta, tokenizer: Tokenizer) -> None:
        """Add what is new."""
        self.text += delta.text
        for token in delta.tokens:
            self.token_ids.append(token.sampled.token)
            scored = token.sampled.logprob
            if scored is not None:
                if self.logprobs is None:
                    self.logprobs = []
                self.logprobs.append(logprob_dict(scored, tokenizer))
                self.cumulative_logprob = (self.cumulative_logprob or 0.0) + scored.logprob
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its answers.

    Attributes:
        request_id: Unique among the requests of this process.
        prompt: The prompt's text; None where it was given as token ids.
        prompt_token_ids: Its tokens.
        prompt_logprobs: Where asked for: None for the first token, then one dictionary per token.
        outputs: The `n` answers, in order.
        finished: Whether all of them have ended.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector.

    Attributes:
        embedding: Its components.
    """

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """One prompt with its vector.

    Attributes:
        request_id: Unique among the requests of this process.
        outputs: The vector.
        prompt_token_ids: The prompt's tokens.
        finished: True.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well two texts belong together.

    Attributes:
        score: The greater, the better.
    """

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """One pair's score.

    Attributes:
        request_id: Unique among the requests of this process.
        outputs: The score.
        finished: True.
    """

    request_id: str
    outputs: ScoringOutput
    finished: bool


def logprob_dict(scored: TokenLogprob, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """The chosen token and the likeliest ones, by token id."""
    entries = {
        token: Logprob(logprob, rank, _text(tokenizer, token))
        for rank, (token, logprob) in enumerate(scored.top, start=1)
    }
    entries.setdefault(
        scored.token, Logprob(scored.logprob, scored.rank, _text(tokenizer, scored.token))
    )
    return entries


def prompt_logprob_dicts(
    scores: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> list[dict[int, Logprob] | None]:
    """Prompt log-probabilities in vLLM's shape; nothing comes before the first token."""
    return [None, *(logprob_dict(scored, tokenizer) for scored in scores)]


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode(errors="replace")
