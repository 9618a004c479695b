"""What llama.cpp's own `POST /completion` accepts: its names, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS, RecommendedSampling, SamplingParams
from caudal.server.llama_cpp.fields import LlamaCppFields
from caudal.server.openai.schema import MAX_CHOICES
from caudal.server.openai.structured import FormFields
from caudal.server.request_bodies import GenerationRequestBody
from caudal.service.naming import FieldNames
from caudal.service.service import Service

Piece = str | int
"""Of a prompt: a text, or a token id."""

_BANNED = -100.0
"""The bias that stands for `false`."""

_LONGEST_TEXT = 256
"""Texts that stand for their tokens are tokenised at once, in the event loop."""


class NativeCompletionRequest(LlamaCppFields, FormFields, GenerationRequestBody):
    """Body of `POST /completion`."""

    prompt: Any = Field(
        description="A string, a list of token ids and strings, an object with `prompt_string`, or "
        "a list of such prompts."
    )
    stream: bool | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="Most tokens of the answer; -1, the default: the rest of the context."
    )
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Any = Field(
        None, description="Pairs of a token id or text and a bias, `false` for never; or an object."
    )
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n_probs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = Field(
        None, description="Only these fields are answered; `a/b` is `b` of `a`."
    )

    def prompts(self) -> tuple[list[list[Piece]], bool]:
        """The prompts, each as texts and token ids, and whether they came as a list of prompts.

        Raises:
            ParameterError: `prompt` is of another shape, empty, or has images.
        """
        value = self.prompt
        if isinstance(value, list) and value and not _is_pieces(value):
            return [_pieces(each) for each in value], True
        return [_pieces(value)], False

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames({**_FIELD_NAMES, "structured_outputs": self.form_field})

    async def params_for(self, model: Service) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            model: Knows the tokens of texts that are biased.

        Raises:
            ParameterError: Names the offending field.
        """
        given = {
            ours: value
            for theirs, ours, _ in _SAMPLING
            if (value := getattr(self, theirs)) is not None
        }
        if self.seed is not None:
            given["seed"] = None if self.seed == -1 else self.seed
        return SamplingParams(
            **_defaults(model.facts.loaded.sampling).with_limit(given, self.n_predict),
            n=self.n_cmpl or 1,
            logit_bias=await _biases(self.logit_bias, model),
            logprobs=self.n_probs or None,
            structured_outputs=self.form(),
        )


_SAMPLING: Sequence[tuple[str, str, Any]] = (
    ("temperature", "temperature", 0.8),
    ("top_k", "top_k", 40),
    ("top_p", "top_p", 0.95),
    ("min_p", "min_p", 0.05),
    ("typical_p", "typical_p", None),
    ("repeat_penalty", "repetition_penalty", None),
    ("presence_penalty", "presence_penalty", None),
    ("frequency_penalty", "frequency_penalty", None),
    ("stop", "stop", None),
    ("ignore_eos", "ignore_eos", None),
)
"""llama.cpp's name of a parameter, ours, and its default where that isn't ours."""

_FIELD_NAMES: Mapping[str, str] = {
    "max_tokens": "n_predict",
    "n": "n_cmpl",
    "logprobs": "n_probs",
    "repetition_penalty": "repeat_penalty",
}
"""What llama.cpp calls the engine's parameters, where it differs."""


def default_params(recommended: RecommendedSampling) -> SamplingParams:
    """What a request that says nothing is sampled with."""
    return SamplingParams(**_defaults(recommended).with_limit({}, None))


def _defaults(recommended: RecommendedSampling) -> RecommendedSampling:
    """What holds where a request says nothing: the model's, else llama.cpp's."""
    theirs = {ours: value for _, ours, value in _SAMPLING if value is not None}
    return recommended.over(RecommendedSampling(**theirs))


def _is_pieces(value: list[Any]) -> bool:
    """Whether a list is one prompt: token ids, or token ids among texts."""
    return all(type(item) in (int, str) for item in value) and any(
        type(item) is int for item in value
    )


def _pieces(value: Any) -> list[Piece]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and _is_pieces(value):
        return value
    if isinstance(value, dict) and isinstance(value.get("prompt_string"), str):
        if value.get("multimodal_data"):
            raise ParameterError("prompt", "prompt: this model takes no multimodal_data.")
        return [value["prompt_string"]]
    raise ParameterError(
        "prompt",
        "prompt must be a string, a list of token ids and strings, an object with prompt_string, "
        "or a list of such prompts.",
    )


async def _biases(value: Any, model: Service) -> dict[int, float]:
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list):
        raise ParameterError("logit_bias", "logit_bias must be a list of pairs, or an object.")
    if len(pairs) > MAX_LOGIT_BIAS:
        raise ParameterError("logit_bias", f"logit_bias may have at most {MAX_LOGIT_BIAS} tokens.")
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ParameterError("logit_bias", "logit_bias must have pairs: a token and a bias.")
        token, bias = pair
        bias = _BANNED if bias is False else bias
        for each in await _tokens(token, model, numbers_are_ids=isinstance(value, dict)):
            biases[each] = bias
    return biases


async def _tokens(token: Any, model: Service, *, numbers_are_ids: bool) -> Sequence[int]:
    """The tokens that a bias is for: one by its id, or all of a text."""
    if type(token) is int:
        return [token]
    if not isinstance(token, str):
        raise ParameterError("logit_bias", "logit_bias needs token ids or texts.")
    if numbers_are_ids and token.isascii() and token.isdigit() and len(token) <= 10:
        return [int(token)]
    if len(token) > _LONGEST_TEXT:
        raise ParameterError(
            "logit_bias", f"logit_bias has a text of more than {_LONGEST_TEXT} characters."
        )
    tokens = await model.tokenize(token, add_special=False, parse_special=True)
    return tokens.ids
