"""What the chat routes accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.reading.openai.conversation import ConversationFields, tool_field
from caudal.sampling_params import MAX_LOGPROBS, RecommendedSampling, SamplingParams
from caudal.server.openai.peer_fields import same_meaning
from caudal.server.openai.schema import GenerationFields
from caudal.server.openai.shared_fields import EndUserFields, Metadata, TokenLimit
from caudal.server.request_bodies import ModelRequestBody
from caudal.service.naming import FieldNames


class ChatFields(ConversationFields, ModelRequestBody):
    """A conversation, and the model that it is for."""

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames(self._names(), tool_field)

    def _names(self) -> dict[str, str]:
        return {"prompt": "messages", "reasoning_effort": self.effort_field}


class PredictedPart(RequestObject):
    """A part of a prediction."""

    type: Literal["text"]
    text: str


class Prediction(RequestObject):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        """What it says."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(GenerationFields, EndUserFields, ChatFields):
    """Body of `POST /v1/chat/completions`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "audio": (),
        "function_call": ("none",),  # long replaced by tool_choice
        "functions": ([],),  # long replaced by tools
        "modalities": (["text"],),
        "documents": ([],),
        "echo": (False,),
        "moderation": (),
        "truncate_prompt_tokens": (),  # what is left would be no conversation
        "web_search_options": (),
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "models": ([],),  # OpenRouter's, to fall back to
        "prompt_cache_options": ({}, {"mode": "implicit"}),
        "prompt_cache_retention": ("in_memory",),
        "provider": ({},),  # OpenRouter's
        "store": (False,),
        "verbosity": ("medium",),
    }

    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    prediction: Prediction | None = Field(
        None, description="What the answer is thought to be; it comes sooner where it is."
    )
    metadata: Metadata | None = Field(None, description="Returned with the answer.")
    service_tier: str | None = Field(
        None, description="There is one tier; the answer says `default`."
    )

    def without_effect(self) -> list[str]:
        """As of all conversations, and what is about the answer."""
        tier = [] if self.service_tier in (None, "auto", "default") else ["service_tier"]
        return super().without_effect() + tier

    def _names(self) -> dict[str, str]:
        return {
            **super()._names(),
            "max_tokens": self._limit()[0],
            "structured_outputs": self.form_field,
        }

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        self.check_stream_options()
        if self.top_logprobs and not self.logprobs:
            raise ParameterError("top_logprobs", "top_logprobs needs logprobs to be true.")
        name, max_tokens = self._limit()
        if max_tokens == 0:
            raise ParameterError(name, f"{name} must be at least 1, but is 0.")
        return self._sampling_params(
            recommended,
            max_tokens=max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _limit(self) -> tuple[str, int | None]:
        """The name under which the most tokens were given, and the number; -1 for no limit."""
        return same_meaning(
            {
                "max_tokens": self.max_tokens,
                "max_completion_tokens": self.max_completion_tokens,
                "n_predict": self.n_predict,
            }
        )
