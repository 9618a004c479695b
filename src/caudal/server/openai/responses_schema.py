"""What the responses routes accept; see `caudal.reading.fields` for what they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from fastapi import Request
from pydantic import Discriminator, Field, Tag, model_validator

from caudal.chat.conversation import Conversation, Message, ReasoningEffort
from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.reading.openai.tools import MAX_TOOLS, ToolMode
from caudal.sampling_params import MAX_LOGPROBS, RecommendedSampling, SamplingParams
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_history import HistoryReader
from caudal.server.openai.responses_items import AnyItem, InputItem, MessageItem
from caudal.server.openai.responses_tools import (
    AllowedTools,
    OfferedTool,
    ToolChoiceObject,
    ToolObject,
    read_tool_choice,
    read_tools,
)
from caudal.server.openai.shared_fields import (
    EndUserFields,
    Metadata,
    SaltedFields,
    SamplingFields,
    StreamFields,
    TokenLimit,
)
from caudal.server.openai.structured import CHAT_FORMS, FORMS_ELSEWHERE
from caudal.server.request_bodies import GenerationRequestBody, ModelRequestBody
from caudal.server.tenancy import tenant_of
from caudal.service.naming import FieldNames
from caudal.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from caudal.server.openai.responses_state import ResponsesState

_FIELD_NAMES: Mapping[str, str] = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "structured_outputs": "text.format",
}
"""The names that this API has for what the rest of the server calls otherwise."""


class Reasoning(RequestObject):
    """How much the model thinks."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "context": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "summary": ("auto",),  # there is none to be had: reasoning is given as it is
    }

    effort: ReasoningEffort | None = None


class TextFormat(RequestObject):
    """The form that the answer has."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Makes no difference: answers always conform.")

    @model_validator(mode="after")
    def _check(self) -> TextFormat:
        is_schema = self.type == "json_schema"
        for name in ("name", "schema_"):
            if (getattr(self, name) is not None) != is_schema:
                raise ValueError(f"{name.rstrip('_')} goes with type json_schema, and only with it")
        if not is_schema and (self.description is not None or self.strict is not None):
            raise ValueError("description and strict go with type json_schema only")
        return self

    def form(self) -> StructuredOutputsParams | None:
        """What is asked for, None where that is text."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return StructuredOutputsParams(json_object=True)
            case "json_schema":
                return StructuredOutputsParams(json=self.schema_)


class TextConfig(RequestObject):
    """How the answer's text is to be."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class ConversationObject(RequestObject):
    """Names a conversation."""

    id: str


ConversationField = Annotated[
    Annotated[str, Tag("[id]")] | Annotated[ConversationObject, Tag("[object]")],
    Discriminator(lambda given: "[id]" if isinstance(given, str) else "[object]"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInput:
    """A request, understood.

    Attributes:
        conversation: In the shape that all APIs share.
        tools: What the model is offered, by the names that it knows.
        ignored: What had no effect, as it is said to the client.
    """

    conversation: Conversation
    tools: Mapping[str, OfferedTool]
    ignored: Sequence[str]


class InputFields(ModelRequestBody):
    """Fields that decide the prompt."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **FORMS_ELSEWHERE,  # `text.format` is what there is
        **CHAT_FORMS,
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "personality": (),
        "truncation": ("disabled",),  # what doesn't fit is refused
    }

    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationField | None = None
    tools: Annotated[list[ToolObject], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolMode | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    chat_template: str | None = Field(None, description="A template instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="As in vLLM.")

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return self.field_names_with(())

    def field_names_with(self, tools: Iterable[OfferedTool]) -> FieldNames:
        """The same, once it is known where in the request each of the conversation's tools is."""
        places = [tool.field for tool in tools]
        if not places:
            return FieldNames(_FIELD_NAMES)
        return FieldNames(_FIELD_NAMES, lambda index, part: f"{places[index]}.{part}")

    def prompt_parts(self, request: Request) -> Iterator[Any]:
        """What it goes on from, too.

        Raises:
            ParameterError, UnknownConversationError: There is nothing of the kind.
        """
        state: ResponsesState = request.app.state.responses
        kept = state.of(tenant_of(request.scope).id)
        conversation = kept.conversation_of(self)
        yield from kept.items_before(self) if conversation is None else conversation.items
        yield from super().prompt_parts(request)

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that the request belongs to."""
        given = self.conversation
        return given.id if isinstance(given, ConversationObject) else given

    @property
    def items(self) -> list[AnyItem]:
        """The input; a string is the user's message."""
        if isinstance(self.input, str):
            return [MessageItem(type="message", role="user", content=self.input)]
        return list(self.input or ())

    def form(self) -> StructuredOutputsParams | None:
        """The form that the answer must have, None where it is free.

        Raises:
            ParameterError: It makes no sense.
        """
        if self.text is None or self.text.format is None:
            return None
        return self.text.format.form()

    def read(self, items: Sequence[AnyItem], seal: ReasoningSeal) -> ReadInput:
        """The request in the shape that all APIs share.

        Args:
            items: What was said before this input, and the input.
            seal: Opens reasoning.

        Raises:
            ParameterError: Names the offending field.
        """
        history = HistoryReader(seal)
        messages = history.read(items)
        if not messages:
            raise ParameterError("input", "input has nothing for the model to read.")
        if self.instructions:
            messages.insert(0, Message(role="system", content=self.instructions))
        ignored = history.ignored
        offered = read_tools(self.tools or (), history.tools, ignored)
        tools = [each.tool for each in offered.values()]
        choice = self.tool_choice
        # Who names a tool means one call of it.
        named = choice is not None and not isinstance(choice, str | AllowedTools)
        return ReadInput(
            conversation=Conversation(
                messages=messages,
                tools=tools,
                tool_choice=read_tool_choice(choice, tools, ignored),
                parallel_tool_calls=self.parallel_tool_calls is not False and not named,
                reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
                template=self.chat_template,
                template_kwargs=self.chat_template_kwargs or {},
            ),
            tools=offered,
            ignored=ignored,
        )


LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_OTHER_INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What can be included of tools that this server doesn't have, and of images."""


class ResponseRequest(
    InputFields, SamplingFields, StreamFields, EndUserFields, SaltedFields, GenerationRequestBody
):
    """Body of `POST /v1/responses`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "moderation": (),
        "prompt": (),
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "access_programs": ({},),
        "background_options": ({},),
        "client_metadata": ({},),
        "context_management": ([],),
        "image": ({},),
        "prompt_cache_options": ({}, {"mode": "implicit"}),
        "prompt_cache_retention": ("in_memory",),
        "service_tier": ("auto", "default"),  # there is one tier; the response says `default`
    }

    max_output_tokens: TokenLimit | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Limits built-in tools, of which there are none; returned."
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: list[str] | None = Field(
        None, description=f"May hold {LOGPROBS} and {ENCRYPTED_REASONING}."
    )
    store: bool | None = None
    background: bool | None = Field(None, description="Go on without the client; needs `store`.")
    metadata: Metadata | None = Field(None, description="Returned with the response.")

    @property
    def includes_logprobs(self) -> bool:
        """Whether text comes with log-probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def includes_sealed_reasoning(self) -> bool:
        """Whether reasoning comes in a form to pass back, too."""
        return ENCRYPTED_REASONING in (self.include or ())

    @property
    def ignored_includes(self) -> list[str]:
        """What `include` has that there is nothing of, as it is said to the client."""
        return [f"include[{name}]" for name in self.include or () if name in _OTHER_INCLUDABLE]

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        if self.background and self.store is False:
            raise ParameterError("background", "background needs store: the response is kept.")
        self.check_stream_options()
        if self.max_output_tokens == 0:
            raise ParameterError(
                "max_output_tokens", "max_output_tokens must be at least 1, but is 0."
            )
        for name in self.include or ():
            if name not in (LOGPROBS, ENCRYPTED_REASONING, *_OTHER_INCLUDABLE):
                raise ParameterError(
                    "include",
                    f"include: {name!r:.80} is none of {LOGPROBS}, {ENCRYPTED_REASONING}, "
                    f"{', '.join(_OTHER_INCLUDABLE)}.",
                )
        if self.top_logprobs and not self.includes_logprobs:
            raise ParameterError("top_logprobs", f"top_logprobs needs include to have {LOGPROBS}.")
        return SamplingParams(
            **recommended.with_limit(self.given_sampling(), self.max_output_tokens),
            logprobs=(self.top_logprobs or 0) if self.includes_logprobs else None,
            structured_outputs=self.form(),
        )
