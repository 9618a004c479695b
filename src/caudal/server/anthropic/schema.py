"""What the message routes accept; see `caudal.reading.fields` for what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec.structs import replace
from pydantic import Field

from caudal.chat.conversation import Conversation, Message, ReasoningEffort, Tool
from caudal.errors import ParameterError
from caudal.sampling_params import (
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    RecommendedSampling,
    SamplingParams,
)
from caudal.server.anthropic.content import MessageObject, SystemPart, without_effect
from caudal.server.anthropic.context_edits import edits_without_effect
from caudal.server.anthropic.settings import (
    BILLING,
    CacheControl,
    ContextManagement,
    JSONOutputFormat,
    Metadata,
    OutputConfig,
    Thinking,
    Thread,
)
from caudal.server.anthropic.tools import (
    MAX_TOOLS,
    ToolChoiceObject,
    ToolObject,
    read_tool_choice,
    read_tools,
    skipped_tools,
)
from caudal.server.anthropic.turns import answers_tools, read_messages, read_tool_changes
from caudal.server.openai.structured import CHAT_FORMS, FORMS_ELSEWHERE
from caudal.server.request_bodies import GenerationRequestBody, ModelRequestBody
from caudal.service.context import RequestContext
from caudal.service.info import TemplateInfo
from caudal.service.naming import FieldNames
from caudal.structured_outputs import StructuredOutputsParams

_FIELD_NAMES: Mapping[str, str] = {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice",
    "prompt": "messages",
    "reasoning_effort": "output_config.effort",
}
"""Anthropic's names for what the rest of the server calls otherwise."""

CLAUDE = "claude-"
"""Names of Anthropic's models begin so. Clients have them built in, and mean whatever is served."""

BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins a first system block that Claude Code adds for Anthropic's accounts. It differs between
requests, and would keep every prompt from being found in the cache."""

StopSequence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class CountTokensRequest(ModelRequestBody):
    """Body of `POST /v1/messages/count_tokens`: whatever decides the prompt."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "compaction": (),
        **FORMS_ELSEWHERE,  # `output_config.format` is what there is
        **CHAT_FORMS,
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {**BILLING, "mcp_servers": ([],)}

    messages: Annotated[list[MessageObject], Field(min_length=1)]
    system: str | list[SystemPart] | None = None
    tools: Annotated[list[ToolObject], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceObject | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JSONOutputFormat | None = Field(
        None, description="An earlier name of `output_config.format`."
    )
    context_management: ContextManagement | None = None
    cache_control: CacheControl | None = None

    def takes_any_model(self) -> bool:
        """Whether it names one of Anthropic's."""
        return self.model is not None and self.model.startswith(CLAUDE)

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        names = {**_FIELD_NAMES, "structured_outputs": self._form[0]}
        if self.thinks is False:  # which is asked for as the lowest effort
            names["reasoning_effort"] = "thinking"
        return FieldNames(names, lambda index, _: f"tools[{index}].input_schema")

    @property
    def form(self) -> StructuredOutputsParams | None:
        """The form that the answer must have, None where it is free.

        Raises:
            ParameterError: It makes no sense.
        """
        form = self._form[1]
        return None if form is None else StructuredOutputsParams(json=form.schema_)

    @property
    def _form(self) -> tuple[str, JSONOutputFormat | None]:
        """The field that has the answer's form, and the form."""
        form = None if self.output_config is None else self.output_config.format
        if form is None and self.output_format is not None:
            return "output_format", self.output_format
        return "output_config.format", form

    def conversation(
        self, template: TemplateInfo, messages: Sequence[MessageObject] | None = None
    ) -> Conversation:
        """The request in the shape that all APIs share.

        Args:
            template: The model's.
            messages: What the model gets to see of the request's; by default all.

        Raises:
            ParameterError: Names the offending field.
        """
        messages = self.messages if messages is None else messages
        read = read_messages(messages)
        is_prefilled = read[-1].role == "assistant"
        if system := self._system():
            read.insert(0, Message(role="system", content=system))
        tools = self._offered_tools()
        choice = self.tool_choice
        # Who names a tool means one call of it.
        single = choice is not None and bool(
            choice.disable_parallel_tool_use or choice.type == "tool"
        )
        return Conversation(
            messages=read,
            tools=tools,
            tool_choice=read_tool_choice(choice, tools, skipped_tools(self.tools or ())),
            parallel_tool_calls=not single,
            add_generation_prompt=not is_prefilled,
            continue_final_message=is_prefilled,
            reasoning_effort=self._effort(),
            template_kwargs=self._switches(template),
        )

    def without_effect(self, *, can_think: bool) -> Iterator[str]:
        """The fields that don't do anything here, beside those that never do.

        Args:
            can_think: Whether the model does.
        """
        yield from without_effect(self.messages)
        yield from skipped_tools(self.tools or ())
        if self.context_management is not None:
            yield from edits_without_effect(self.context_management.edits or ())
        thinking = self.thinking
        if thinking is not None:
            if thinking.type == "enabled" and not can_think:
                yield "thinking"
            elif thinking.type == "disabled" and thinking.budget_tokens is not None:
                yield "thinking.budget_tokens"
            if thinking.display == "updates":
                yield "thinking.display"
        if self.thinks is False and self.output_config is not None and self.output_config.effort:
            yield "output_config.effort"

    @property
    def thinks(self) -> bool | None:
        """Whether the model is to think; None where the request doesn't say."""
        if self.thinking is None:
            return None
        return self.thinking.is_on(after_tools=answers_tools(self.messages))

    def _system(self) -> str | list[str] | None:
        if self.system is None or isinstance(self.system, str):
            return self.system
        texts = [part.text for part in self.system]
        return texts[1:] if texts and texts[0].startswith(BILLING_HEADER) else texts

    def _offered_tools(self) -> list[Tool]:
        changes = read_tool_changes(self.messages)
        given = [tool for tool in self.tools or () if tool.name not in changes.added]
        tools = [*given, *changes.added.values()]
        return read_tools(tools, loaded=changes.loaded, removed=changes.removed)

    def _effort(self) -> ReasoningEffort | None:
        if self.thinks is False:
            return "none"
        return None if self.output_config is None else self.output_config.effort

    def _switches(self, template: TemplateInfo) -> dict[str, bool]:
        """Turns thinking on where a template has a switch for it."""
        if not self.thinks:
            return {}
        return {
            name: True for name in ("enable_thinking", "thinking") if name in template.variables
        }


class MessageRequest(CountTokensRequest, GenerationRequestBody):
    """Body of `POST /v1/messages`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "container": ({}, {"id": None}, {"skills": []}, {"id": None, "skills": []}),
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "diagnostics": ({}, {"previous_message_id": None}),
        "fallbacks": ([],),  # for answers that a policy forbids, which there are none of
        "inference_geo": (),
    }

    max_tokens: Annotated[int, Field(ge=-1)] = Field(
        description="0 only reads the prompt into the cache; -1 is as many as there is room for."
    )
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    stop_sequences: Annotated[list[StopSequence], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = Field(
        None, description="There is one tier; the answer says `standard`."
    )
    thread: Thread | None = None

    @property
    def omits_thinking(self) -> bool:
        """Whether thinking blocks come without their text."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of thinking."""
        return self.thinking.budget_tokens if self.thinking is not None and self.thinks else None

    def context(self) -> RequestContext:
        """Who asks."""
        user = None if self.metadata is None else self.metadata.user_id
        return replace(super().context(), user=user)

    def without_effect(self, *, can_think: bool) -> Iterator[str]:
        """As for counting, and what is about the answer."""
        yield from super().without_effect(can_think=can_think)
        if self.service_tier not in (None, "auto", "standard_only"):
            yield "service_tier"
        if self.thread is not None:
            yield "thread"

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        budget = self.thinking_budget
        if budget is not None and 0 <= self.max_tokens <= budget:
            raise ParameterError(
                "thinking.budget_tokens",
                f"thinking.budget_tokens ({budget}) must be less than max_tokens "
                f"({self.max_tokens}).",
            )
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
        }
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            **recommended.with_limit(chosen, self.max_tokens),
            structured_outputs=self.form,
        )
