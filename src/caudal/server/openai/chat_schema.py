"""What the chat routes accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from caudal.chat.conversation import Conversation, ReasoningEffort
from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGPROBS, SamplingParams
from caudal.server.fields import RequestModel
from caudal.server.openai.messages import (
    ChatMessage,
    NamedTool,
    ToolChoiceField,
    ToolObject,
    read_tool_choice,
    read_tools,
)
from caudal.server.openai.peer_fields import same_meaning
from caudal.server.openai.schema import GenerationFields

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ChatFields(RequestModel):
    """Fields that decide how a conversation becomes a prompt."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[ToolObject] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="Where the model's chat template has levels of effort, or for `none`."
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(None, description="A Jinja template instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None

    def conversation(self) -> Conversation:
        """The request in the shape that all APIs share.

        Raises:
            ParameterError: Names the offending field.
        """
        tools = read_tools(self.tools or ())
        if self.parallel_tool_calls is not None and not tools:
            raise ParameterError("parallel_tool_calls", "parallel_tool_calls needs tools.")
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
            reasoning_effort=self.reasoning_effort,
            include_reasoning=self.include_reasoning is not False,
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
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": ({}, {"mode": "implicit"}),
        "prompt_cache_retention": ("in_memory",),
        "store": (False,),
        "truncate_prompt_tokens": (),  # what is left would be no conversation
        "verbosity": ("medium",),
        "web_search_options": (),
    }

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = Field(
        None, description="Returned with the answer."
    )
    service_tier: Literal["auto", "default"] | None = Field(
        None, description="There is one tier; the answer says `default`."
    )
    safety_identifier: str | None = Field(
        None, description="Named in the server's log line of the request, like `user`."
    )
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="Most tokens that the model may think for; -1: no limit."
    )
    prompt_cache_key: str | None = Field(
        None, description="Not needed: every prompt's beginning is cached for every other."
    )

    @property
    def max_tokens_field(self) -> str:
        """The name under which the limit was given."""
        return self._limit()[0]

    @property
    def end_user(self) -> str | None:
        """Who asks, for the log."""
        return self.safety_identifier or self.user

    def sampling_params(self) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Raises:
            ParameterError: Names the offending field.
        """
        self.check_stream_options()
        if self.top_logprobs is not None and not self.logprobs:
            raise ParameterError("top_logprobs", "top_logprobs needs logprobs to be true.")
        name, max_tokens = self._limit()
        if max_tokens == 0:
            raise ParameterError(name, f"{name} must be at least 1, but is 0.")
        return self._sampling_params(
            max_tokens=max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens that the model may think for; None for no limit."""
        budget = self.thinking_token_budget
        return None if budget == -1 else budget

    def _limit(self) -> tuple[str, int | None]:
        """The name under which the most tokens were given, and how many they are."""
        name, limit = same_meaning(
            {
                "max_tokens": self.max_tokens,
                "max_completion_tokens": self.max_completion_tokens,
                "n_predict": self.n_predict,
            }
        )
        return name, None if name == "n_predict" and limit == -1 else limit
