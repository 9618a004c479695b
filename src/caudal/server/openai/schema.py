"""What the OpenAI routes accept: OpenAI's fields, and the sampling extras of vLLM and llama.cpp.

See `caudal.reading.fields` for what happens to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGPROBS, RecommendedSampling, SamplingParams
from caudal.server.openai.peer_fields import PeerFields, same_meaning
from caudal.server.openai.shared_fields import (
    PaddingOptions,
    SaltedFields,
    SamplingFields,
    StreamFields,
    TokenLimit,
)
from caudal.server.openai.structured import FormFields
from caudal.server.openai.texts import read_texts_or_tokens
from caudal.server.openapi import TEXTS_OR_TOKENS
from caudal.server.request_bodies import GenerationRequestBody
from caudal.service.naming import FieldNames
from caudal.service.work import Truncation

MAX_CHOICES = 128
"""Most choices per prompt that HTTP clients may ask for (OpenAI's limit)."""


class StreamOptions(PaddingOptions):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="As in vLLM: with include_usage, every chunk has the usage so far."
    )


class GenerationFields(
    PeerFields, FormFields, SamplingFields, StreamFields, SaltedFields, GenerationRequestBody
):
    """Fields that chat and text completions share."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenLimit | None = None
    logit_bias: dict[str, float] | None = None
    stream_options: StreamOptions | None = None

    # vLLM's names for what OpenAI's API lacks.
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    speculative: Literal["off"] | None = Field(
        None, description="`off`: no tokens are guessed for it; the answer is the same."
    )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk carries the usage."""
        return (
            self.stream_options is not None
            and self.include_usage
            and bool(self.stream_options.continuous_usage_stats)
        )

    def _sampling_params(
        self,
        recommended: RecommendedSampling,
        *,
        max_tokens: int | None,
        default_max_tokens: int | None = None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        self.check_prompt_logprobs(stream=bool(self.stream))
        given = self.given_sampling() | {
            name: value for name in _OTHER_SAMPLING if (value := getattr(self, name)) is not None
        }
        _, penalty = same_meaning(
            {"repetition_penalty": self.repetition_penalty, "repeat_penalty": self.repeat_penalty}
        )
        if penalty is not None:
            given["repetition_penalty"] = penalty
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return SamplingParams(
            **recommended.with_limit(given, max_tokens, default_max_tokens),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=self.form(),
        )


_OTHER_SAMPLING = (
    "n",
    "allowed_token_ids",
    "bad_words",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "speculative",
)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit()) or len(key) > 10:
        raise ParameterError("logit_bias", f"logit_bias keys must be token ids, not {key!r}.")
    return int(key)


DEFAULT_MAX_TOKENS = 16
"""Of a completion, as OpenAI has it."""


class CompletionRequest(GenerationFields):
    """Body of `POST /v1/completions`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"suffix": ("",)}

    prompt: Any = Field(
        description="A string, a list of strings, token ids, or a list of token id lists.",
        json_schema_extra=TEXTS_OR_TOKENS,
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = Field(
        None, description="Whether BOS begins a prompt that is text; true by default."
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = Field(
        None,
        description="Read only so many tokens of each prompt; -1: as many as there is room for "
        "beside the answer.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Where a prompt is cut: `left`, the default, keeps its end."
    )

    def field_names(self) -> FieldNames:
        """By what names the limit and the form were given."""
        return FieldNames({"max_tokens": self._limit()[0], "structured_outputs": self.form_field})

    def truncation(self) -> Truncation | None:
        """How much of each prompt is read.

        Raises:
            ParameterError: That would be nothing.
        """
        most = self.truncate_prompt_tokens
        if most is None:
            return None
        if most == 0:
            raise ParameterError(
                "truncate_prompt_tokens",
                "truncate_prompt_tokens must be at least 1, or -1 for all there is room for.",
            )
        return Truncation(
            max_tokens=most, keep="begin" if self.truncation_side == "right" else "end"
        )

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one per list item.

        Raises:
            ParameterError: `prompt` is of another shape, or empty.
        """
        return read_texts_or_tokens("prompt", self.prompt)

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        self.check_stream_options()
        name, max_tokens = self._limit()
        scored = [] if self.prompt_logprobs is None else [self.prompt_logprobs]
        if self.echo and self.logprobs is not None:
            scored.append(self.logprobs)
        if max_tokens == 0 and not self.echo and not scored:
            raise ParameterError(name, f"{name} 0 needs echo: it scores the prompt.")
        return self._sampling_params(
            recommended,
            max_tokens=max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.logprobs,
            prompt_logprobs=max(scored, default=None),
        )

    def _limit(self) -> tuple[str, int | None]:
        """The name under which the most tokens were given, and the number; -1 for no limit."""
        given = {"max_tokens": self.max_tokens, "n_predict": self.n_predict}
        name, limit = same_meaning(given)
        if limit is None and "max_tokens" in self.model_fields_set:
            limit = -1  # an explicit null means as far as the context goes
        return name, limit
