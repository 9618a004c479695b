"""Bodies of requests that ask something of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Request
from pydantic import AfterValidator, Field

from caudal.fleet.durations import keep_alive_seconds
from caudal.reading.fields import RequestObject
from caudal.sampling_params import RecommendedSampling, SamplingParams
from caudal.server.adapter_field import AdapterField
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo
from caudal.service.naming import OUR_NAMES, FieldNames
from caudal.service.service import Service

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


KeepAlive = Annotated[
    str | int | float,
    AfterValidator(keep_alive_seconds),
]
"""Seconds, written in any way; infinite for ever."""


PROMPT_FIELDS = frozenset(
    (
        "content",  # of a text to be cut into tokens
        "documents",
        "input",
        "instructions",
        "messages",
        "prompt",
        "query",
        "system",
        "text_1",
        "text_2",
        "tools",
    )
)
"""Fields of any API that make up prompts."""


OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")
"""Fields of any API that bound an answer, in tokens; below 0 is no bound."""

OUTPUT_ESTIMATE = 1024
"""What an answer is reckoned at that may have more tokens: most that may have many have few."""


def estimated_output(bound: int, count: int = 1) -> int:
    """About how many tokens so many answers have that are bounded so; below 0 is no bound."""
    return count * (min(bound, OUTPUT_ESTIMATE) if bound >= 0 else OUTPUT_ESTIMATE)


class ModelRequestBody(RequestObject):
    """A body that names a model. Each API says here what it calls things, and who asks."""

    model: str | None = Field(None, description="Default: the model that is served.")
    keep_alive: KeepAlive | None = Field(
        None,
        description="How long the model stays loaded after this request, and after later ones "
        "until one says otherwise: `5m`, seconds, 0 for not at all, -1 for ever. Ollama's.",
    )

    def takes_any_model(self) -> bool:
        """Whether whatever is served is meant, where there is no model of the name given."""
        return False

    def streams(self) -> bool:
        """Whether it asks for a stream of events."""
        return bool(getattr(self, "stream", False))

    def adapter(self, model: Service) -> AdapterInfo | None:
        """The adapter that the model is to answer with, where a field besides `model` says so.

        Args:
            model: That which `model` names.

        Raises:
            ParameterError: There is no such adapter.
        """
        return None

    def context(self) -> RequestContext:
        """What travels with the work."""
        return NO_CONTEXT

    def prompt_parts(self, request: Request) -> Iterator[Any]:
        """What its prompt is made of: texts, token ids, and whatever they are in.

        Args:
            request: What it is the body of.
        """
        return (part for name, part in self if name in PROMPT_FIELDS and part is not None)

    def estimated_output(self) -> int:
        """About how many tokens all of its answers may have together."""
        return 0

    def field_names(self) -> FieldNames:
        """What this API calls the fields that errors blame."""
        return OUR_NAMES


class WorkRequestBody(AdapterField, ModelRequestBody):
    """A body that asks for work, which is given up where it takes too long."""

    timeout: Seconds | None = Field(
        None, description="Seconds from arrival after which an answer that isn't complete is a 504."
    )

    def context(self) -> RequestContext:
        """How long it may take."""
        return RequestContext(timeout=self.timeout)


class GenerationRequestBody(WorkRequestBody):
    """A body that asks for text."""

    first_token_timeout: Seconds | None = Field(
        None, description="Seconds from arrival after which an answer that hasn't begun is a 504."
    )

    def context(self) -> RequestContext:
        """How long it may take."""
        return RequestContext(timeout=self.timeout, first_token_timeout=self.first_token_timeout)

    def estimated_output(self) -> int:
        """About how many tokens all of its answers may have together."""
        bounds = (getattr(self, name, None) for name in OUTPUT_FIELDS)
        bound = next((each for each in bounds if each is not None), -1)
        return estimated_output(bound, getattr(self, "n", None) or 1)

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        raise NotImplementedError(f"{type(self).__name__} has either this or `params_for`")

    async def params_for(self, model: Service) -> SamplingParams:
        """The same, for a model."""
        return self.sampling_params(model.facts.loaded.sampling)
