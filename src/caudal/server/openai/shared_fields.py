"""Fields that several of OpenAI's APIs have: who asks, how text is drawn, and how it is sent."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.server.request_bodies import WorkRequestBody
from caudal.service.context import RequestContext

TokenLimit = Annotated[int, Field(ge=-1)]
"""Most tokens of an answer; -1: as many as the context has room for."""

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
"""What clients keep with what they made; it comes back as it was."""


class RequesterFields(WorkRequestBody):
    """Who asks, and how urgent it is; the latter is vLLM's."""

    user: str | None = Field(None, description="Named in the server's log line of the request.")
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None

    def context(self) -> RequestContext:
        """Who asks, and how urgent it is."""
        return replace(super().context(), priority=self.priority or 0, user=self.user)


class EndUserFields(RequesterFields):
    """For whom somebody asks who has users of their own."""

    safety_identifier: str | None = Field(None, description="Logged like `user`, and before it.")
    prompt_cache_key: str | None = Field(
        None,
        description="Not needed: every prompt's beginning is cached for every other of the key.",
    )

    def context(self) -> RequestContext:
        """Who asks, and how urgent it is."""
        return replace(super().context(), user=self.safety_identifier or self.user)


class SaltedFields(RequesterFields):
    """Whose cached prefixes a request may share, too; vLLM's."""

    cache_salt: str | None = None

    def context(self) -> RequestContext:
        """Who asks, how urgent it is, and what is shared with whom."""
        return replace(super().context(), cache_salt=self.cache_salt)


class SamplingFields(RequestObject):
    """How tokens are drawn, under the engine's names: OpenAI's, then vLLM's."""

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None

    def given_sampling(self) -> dict[str, Any]:
        """Those of these fields that the request has, as arguments of `SamplingParams`."""
        return {
            name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None
        }


_SAMPLING_FIELDS = tuple(SamplingFields.model_fields)


class PaddingOptions(RequestObject):
    """OpenAI's `stream_options`: what all its APIs have of them."""

    include_obfuscation: bool | None = Field(
        None, description="Pads every event with text to hide its size; off by default."
    )


class StreamFields(RequestObject):
    """Whether an answer is sent as it comes, and how."""

    stream: bool | None = None
    stream_options: PaddingOptions | None = None

    @property
    def obfuscate(self) -> bool:
        """Whether a stream's events with text are padded."""
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)

    def check_stream_options(self) -> None:
        """Raises `ParameterError` where `stream_options` come without `stream`."""
        if self.stream_options is not None and not self.stream:
            raise ParameterError(
                "stream_options", "stream_options may only be set when stream is true."
            )
