"""What the chat routes accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from caudal.chat.conversation import Conversation
from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGPROBS, SamplingParams
from caudal.server.model_request import ModelRequest
from caudal.server.openai.chat_tools import (
    NamedTool,
    ToolChoiceField,
    ToolObject,
    read_tool_choice,
    read_tools,
)
from caudal.server.openai.messages import ChatMessage
from caudal.server.openai.peer_fields import same_meaning
from caudal.server.openai.schema import GenerationFields, TokenLimit
from caudal.server.openai.thinking import ThinkingFields
from caudal.service.context import RequestContext
from caudal.service.naming import FieldNames

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ChatFields(ThinkingFields, ModelRequest):
    """Fields that decide how a conversation becomes a prompt."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[ToolObject] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(None, description="A Jinja template instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = None

    def without_effect(self) -> list[str]:
        """What does nothing here, beside what never does: parts of messages that the model can't
        read and that were replaced by words, and places for reasoning that there are not.
        """
        kinds = {part.kind for message in self.messages for _, part in message.unreadable_parts}
        formats = [] if self.has_reasoning_format else ["reasoning_format"]
        return [f"messages[].content[{kind}]" for kind in sorted(kinds)] + formats

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames(self._names(), _tool_field)

    def _names(self) -> dict[str, str]:
        return {"prompt": "messages", "reasoning_effort": self.effort_field}

    def _check_parts(self) -> None:
        """A tool's output may have parts that the model can't read; who asks must know better."""
        for index, message in enumerate(self.messages):
            for place, part in message.unreadable_parts:
                if message.role != "tool":
                    where = f"messages[{index}].content[{place}]"
                    raise ParameterError(
                        where, f"{where}: this model reads text only, no part of type {part.type}."
                    )

    def conversation(self) -> Conversation:
        """The request in the shape that all APIs share.

        Raises:
            ParameterError: Names the offending field.
        """
        self._check_parts()
        tools = read_tools(self.tools or ())
        continue_final = bool(self.continue_final_message)
        add_prompt = self.add_generation_prompt
        # Who names a tool means one call of it.
        single = self.parallel_tool_calls is False or isinstance(self.tool_choice, NamedTool)
        return Conversation(
            messages=[message.message() for message in self.messages],
            tools=tools,
            tool_choice=read_tool_choice(self.tool_choice, tools),
            parallel_tool_calls=not single,
            add_generation_prompt=not continue_final if add_prompt is None else add_prompt,
            continue_final_message=continue_final,
            reasoning_effort=self.effort,
            include_reasoning=self.shows_reasoning,
            template=self.chat_template,
            template_kwargs=self.chat_template_kwargs or {},
        )


class ChatCompletionRequest(GenerationFields, ChatFields):
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
        "prediction": ({},),
        "prompt_cache_options": ({}, {"mode": "implicit"}),
        "prompt_cache_retention": ("in_memory",),
        "provider": ({},),  # OpenRouter's
        "store": (False,),
        "verbosity": ("medium",),
    }

    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = Field(
        None, description="Returned with the answer."
    )
    service_tier: str | None = Field(
        None, description="There is one tier; the answer says `default`."
    )
    safety_identifier: str | None = Field(
        None, description="Named in the server's log line of the request, like `user`."
    )
    prompt_cache_key: str | None = Field(
        None, description="Not needed: every prompt's beginning is cached for every other."
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

    def context(self) -> RequestContext:
        """Who asks, and how urgent it is."""
        return replace(super().context(), user=self.safety_identifier or self.user)

    def sampling_params(self) -> SamplingParams:
        """Check the values and return them under the engine's names.

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
            max_tokens=max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _limit(self) -> tuple[str, int | None]:
        """The name under which the most tokens were given, and how many they are."""
        name, limit = same_meaning(
            {
                "max_tokens": self.max_tokens,
                "max_completion_tokens": self.max_completion_tokens,
                "n_predict": self.n_predict,
            }
        )
        return name, None if limit == -1 else limit


def _tool_field(index: int, part: str) -> str:
    return f"tools[{index}].{'function' if part == 'parameters' else 'custom'}.{part}"
