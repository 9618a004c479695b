"""What the message routes accept; see `caudal.server.fields` for what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from caudal.chat.conversation import Conversation, Message, ReasoningEffort, Tool, ToolChoice
from caudal.errors import ParameterError
from caudal.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams
from caudal.server.anthropic.content import (
    CacheControl,
    MessageObject,
    Metadata,
    OutputConfig,
    SystemPart,
    Thinking,
    ToolChoiceObject,
    ToolObject,
)
from caudal.server.anthropic.turns import read_messages
from caudal.server.fields import RequestModel
from caudal.server.openai.messages import MAX_TOOLS, check_tool_name, object_schema
from caudal.structured_outputs import StructuredOutputsParams

FIELD_NAMES: Mapping[str, str] = {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice",
    "reasoning_effort": "output_config.effort",
    "structured_outputs": "output_config.format",
}
"""Anthropic's names for what the rest of the server calls otherwise."""

StopSequence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class CountTokensRequest(RequestModel):
    """Body of `POST /v1/messages/count_tokens`: whatever decides the prompt."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "speed": ("standard",),
        "user_profile_id": (),
        "workspace_id": (),
    }

    model: str
    messages: Annotated[list[MessageObject], Field(min_length=1)]
    system: str | list[SystemPart] | None = None
    tools: Annotated[list[ToolObject], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceObject | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    @property
    def form(self) -> StructuredOutputsParams | None:
        """The form that the answer must have, None where it is free.

        Raises:
            ParameterError: It makes no sense.
        """
        if self.output_config is None or self.output_config.format is None:
            return None
        return StructuredOutputsParams(json=self.output_config.format.schema_)

    def conversation(self, template_reads: Callable[[str], bool]) -> Conversation:
        """The request in the shape that all APIs share.

        Args:
            template_reads: Whether the model's chat template reads a variable.

        Raises:
            ParameterError: Names the offending field.
        """
        messages = read_messages(self.messages)
        is_prefilled = messages[-1].role == "assistant"
        if self.system:
            texts = (
                self.system if isinstance(self.system, str) else [part.text for part in self.system]
            )
            messages.insert(0, Message(role="system", content=texts))
        tools = self._tools()
        choice = self.tool_choice
        # Who names a tool means one call of it.
        single = choice is not None and bool(
            choice.disable_parallel_tool_use or choice.type == "tool"
        )
        return Conversation(
            messages=messages,
            tools=tools,
            tool_choice=_tool_choice(choice, tools),
            parallel_tool_calls=not single,
            add_generation_prompt=not is_prefilled,
            continue_final_message=is_prefilled,
            reasoning_effort=self._effort(),
            template_kwargs=self._switches(template_reads),
        )

    def _tools(self) -> list[Tool]:
        tools: dict[str, Tool] = {}
        for index, tool in enumerate(self.tools or ()):
            where = f"tools[{index}]"
            check_tool_name(f"{where}.name", tool.name)
            if tool.name in tools:
                raise ParameterError(
                    f"{where}.name", f"{where}.name: there are two tools named {tool.name!r}."
                )
            tools[tool.name] = Tool(
                name=tool.name,
                description=tool.description,
                parameters=object_schema(f"{where}.input_schema", tool.input_schema),
                strict=bool(tool.strict),
            )
        return list(tools.values())

    def _effort(self) -> ReasoningEffort | None:
        effort = None if self.output_config is None else self.output_config.effort
        if self.thinking is None or self.thinking.type != "disabled":
            return effort
        if effort is not None:
            raise ParameterError(
                "output_config.effort", "output_config.effort does not go with disabled thinking."
            )
        return "none"

    def _switches(self, template_reads: Callable[[str], bool]) -> dict[str, bool]:
        """Turns thinking on where a template has a switch for it."""
        if self.thinking is None or self.thinking.type == "disabled":
            return {}
        return {name: True for name in ("enable_thinking", "thinking") if template_reads(name)}


class MessageRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "container": (),
        "context_management": (),
        "diagnostics": ({}, {"previous_message_id": None}),
        "inference_geo": (),
        "mcp_servers": ([],),
    }

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[StopSequence], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = Field(
        None, description="There is one tier; the answer says `standard`."
    )

    @property
    def omits_thinking(self) -> bool:
        """Whether thinking blocks come without their text."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of thinking."""
        return None if self.thinking is None else self.thinking.budget_tokens

    @property
    def user_id(self) -> str | None:
        """Who asks, for the log."""
        return None if self.metadata is None else self.metadata.user_id

    def sampling_params(self) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Raises:
            ParameterError: Names the offending field.
        """
        budget = self.thinking_budget
        if budget is not None and budget >= self.max_tokens:
            raise ParameterError(
                "thinking.budget_tokens",
                f"thinking.budget_tokens ({budget}) must be less than max_tokens "
                f"({self.max_tokens}).",
            )
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            **chosen,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or (),
            structured_outputs=self.form,
        )


def _tool_choice(choice: ToolChoiceObject | None, tools: Sequence[Tool]) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if not tools:
        raise ParameterError("tool_choice", "tool_choice needs tools.")
    match choice.type:
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice(mode="none")
        case "any":
            return ToolChoice(mode="required")
        case "tool":
            if choice.name not in {tool.name for tool in tools}:
                raise ParameterError(
                    "tool_choice", f"tool_choice.name is {choice.name!r}, which tools has not."
                )
            return ToolChoice(mode="required", names=[choice.name or ""])
