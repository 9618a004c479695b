"""How one request wants its tokens chosen: names and defaults are those of vLLM's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from caudal.errors import ParameterError
from caudal.structured_outputs import StructuredOutputsParams

MAX_LOGPROBS = 20
"""Most alternatives per token that a request may ask for (OpenAI's limit)."""

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of generation. Immutable; `validate` checks what needs no model.

    Attributes:
        n: Sequences generated from the same prompt.
        temperature: Divides the logits; 0 means greedy. Range [0, 100].
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches this; 0 keeps the
            likeliest alone. Range [0, 1].
        min_p: Drop tokens less likely than this share of the likeliest one. Range [0, 1].
        typical_p: Locally typical sampling (arXiv 2202.00666). Range (0, 1].
        repetition_penalty: Divides positive and multiplies negative logits of tokens already in
            prompt or output (CTRL, arXiv 1909.05858). Range (0, 100].
        presence_penalty: Subtracted once from the logit of each token in the output. [-2, 2].
        frequency_penalty: Subtracted per occurrence in the output. [-2, 2].
        logit_bias: Added to the logits, by token id. Values in [-100, 100].
        allowed_token_ids: Only these are ever chosen; end-of-sequence only if it is among them.
            None allows all.
        bad_words: Words that the answer won't have: the token that would complete one is never
            chosen. As in vLLM, that is about the tokens into which the tokenizer cuts a word, at
            the beginning and after a space; the same letters in other tokens may come.
        min_tokens: Neither end-of-sequence nor stop token ids end the answer before this many.
        max_tokens: Most tokens to generate; None means as far as the context goes.
        stop: Strings that end the answer and are left out of it.
        stop_token_ids: Tokens that end the answer, like end-of-sequence.
        ignore_eos: End-of-sequence does not end the answer.
        include_stop_str_in_output: Keep the stop string in the text.
        skip_special_tokens: Leave control tokens out of the text.
        seed: Makes sampling repeatable; None draws one.
        logprobs: Number of likeliest tokens whose log-probabilities are returned beside the
            chosen one's; None returns none. Log-probabilities are of the model's raw distribution.
        prompt_logprobs: The same for every prompt token after the first.
        structured_outputs: A form that the answer must have. Until it has, neither
            end-of-sequence nor `min_tokens` matter: a complete answer ends at once, and one cut
            short by `max_tokens` is a prefix of a complete one.
        speculative: `off`: no tokens are guessed for this request; None: as the engine does. The
            answer is the same.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    speculative: Literal["off"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):  # vLLM and OpenAI take a bare string too
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "bad_words"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, ())
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        self.validate()

    def validate(self) -> None:
        """Check every field's type and range.

        Raises:
            ParameterError: Names the first offending field and its allowed range.
        """
        _check_int("n", self.n, 1, 1024)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_int("top_k", self.top_k, -1, _MAX_INT32)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("typical_p", self.typical_p, 0.0, 1.0, low_open=True)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("min_tokens", self.min_tokens, 0, _MAX_INT32)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0, _MAX_INT32)
            if self.min_tokens > self.max_tokens:
                raise ParameterError(
                    "min_tokens",
                    f"min_tokens ({self.min_tokens}) must not exceed "
                    f"max_tokens ({self.max_tokens}).",
                )
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _check_type(name, getattr(self, name), bool, "true or false")
        self._validate_stop()
        self._validate_logit_bias()
        self._validate_token_rules()
        if self.speculative not in (None, "off"):
            raise ParameterError(
                "speculative", f'speculative must be "off" or null, not {self.speculative!r:.80}.'
            )
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ParameterError(
                "structured_outputs",
                "structured_outputs must be StructuredOutputsParams, not "
                f"{type(self.structured_outputs).__name__}.",
            )

    def validate_for_vocabulary(self, vocab_size: int) -> None:
        """Check that every token id this request names exists.

        Raises:
            ParameterError: An id in `logit_bias`, `stop_token_ids` or `allowed_token_ids` is
                outside the vocabulary.
        """
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            for token in getattr(self, name) or ():
                if not 0 <= token < vocab_size:
                    raise ParameterError(
                        name,
                        f"{name} has token id {token}, but this model's ids are 0 to "
                        f"{vocab_size - 1}.",
                    )

    def _validate_stop(self) -> None:
        for name in ("stop", "stop_token_ids"):
            _check_type(name, getattr(self, name), Sequence, "a list")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ParameterError("stop", f"stop may have at most {MAX_STOP_STRINGS} strings.")
        for text in self.stop:
            if not isinstance(text, str):
                raise ParameterError("stop", f"stop must be strings, not {type(text).__name__}.")
            if not text:
                raise ParameterError("stop", "stop must not contain an empty string.")
            if len(text) > MAX_STOP_LENGTH:
                raise ParameterError(
                    "stop",
                    f"stop has a string of {len(text)} characters; {MAX_STOP_LENGTH} are allowed.",
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise ParameterError(
                "stop_token_ids", f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} ids."
            )
        for token in self.stop_token_ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise ParameterError("stop_token_ids", "stop_token_ids must be integers.")

    def _validate_token_rules(self) -> None:
        allowed = self.allowed_token_ids
        if allowed is not None:
            _check_type("allowed_token_ids", allowed, Sequence, "a list")
            if not allowed:
                raise ParameterError(
                    "allowed_token_ids", "allowed_token_ids must have one id at least."
                )
            if set(map(type, allowed)) != {int}:
                raise ParameterError("allowed_token_ids", "allowed_token_ids must be integers.")
        _check_type("bad_words", self.bad_words, Sequence, "a list")
        if isinstance(self.bad_words, str):
            raise ParameterError("bad_words", "bad_words must be a list of strings, not a string.")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ParameterError("bad_words", f"bad_words may have at most {MAX_BAD_WORDS} words.")
        for word in self.bad_words:
            if not isinstance(word, str):
                raise ParameterError("bad_words", "bad_words must be strings.")
            if not word.strip():
                raise ParameterError("bad_words", "bad_words must not contain an empty word.")
            if len(word) > MAX_BAD_WORD_LENGTH:
                raise ParameterError(
                    "bad_words",
                    f"bad_words has a word of {len(word)} characters; {MAX_BAD_WORD_LENGTH} are "
                    "allowed.",
                )

    def _validate_logit_bias(self) -> None:
        _check_type("logit_bias", self.logit_bias, Mapping, "a dictionary")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ParameterError("logit_bias", f"logit_bias may have at most {MAX_LOGIT_BIAS} ids.")
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, int):
                raise ParameterError(
                    "logit_bias", f"logit_bias keys must be token ids, not {token!r}."
                )
            _check_float("logit_bias", bias, -100.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedSampling:
    """What holds for requests that don't say otherwise; see `SamplingParams`.

    The model's maker recommends it, or whoever packaged the model. None where nobody does.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ParameterError: Names the first value that is out of its own.
        """
        SamplingParams(**self.values())

    def values(self) -> dict[str, Any]:
        """Those that there are, as arguments of `SamplingParams`."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def with_limit(
        self, chosen: Mapping[str, Any], limit: int | None, default: int | None = None
    ) -> dict[str, Any]:
        """All that a request is generated with, as arguments of `SamplingParams`.

        Args:
            chosen: What it says itself.
            limit: Most tokens of its answer; -1 for as far as the context goes, None where it
                doesn't say.
            default: What that means where nobody says anything.
        """
        if limit is None:
            most = default if self.max_tokens is None else self.max_tokens
        else:
            most = None if limit == -1 else limit
        return {**self.values(), **chosen, "max_tokens": most}

    def over(self, other: RecommendedSampling) -> RecommendedSampling:
        """These, and the other's where there are none."""
        return RecommendedSampling(**(other.values() | self.values()))

    def __str__(self) -> str:
        """E.g. `temperature 0.6, top_p 0.95`; empty where there is none."""
        return ", ".join(f"{name} {_said(value)}" for name, value in self.values().items())


def _said(value: float | tuple[str, ...]) -> str:
    return " ".join(map(repr, value)) if isinstance(value, tuple) else f"{value:g}"


def _check_type(name: str, value: object, expected: type, what: str) -> None:
    if not isinstance(value, expected):
        raise ParameterError(name, f"{name} must be {what}, not {type(value).__name__}.")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(name, f"{name} must be an integer, not {type(value).__name__}.")
    if not low <= value <= high:
        raise ParameterError(
            name, f"{name} must be between {low} and {high}, but is {_shown(value)}."
        )


def _check_float(
    name: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(name, f"{name} must be a number, not {type(value).__name__}.")
    # Comparisons alone: NaN fails them, and unlike conversions they take integers of any size.
    if not (low < value <= high or (value == low and not low_open)):
        bracket = "(" if low_open else "["
        raise ParameterError(
            name, f"{name} must be in {bracket}{low:g}, {high:g}], but is {_shown(value)}."
        )


def _shown(value: float) -> str:
    """A value for a message: Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    return str(value)


NO_RECOMMENDATION = RecommendedSampling()
"""For a model whose maker says nothing, or isn't listened to."""
