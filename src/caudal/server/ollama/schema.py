"""What the routes that generate text accept; see `caudal.reading.fields` for what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from pydantic import Field

from caudal.chat.conversation import Conversation, Message, ReasoningEffort
from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGPROBS, RecommendedSampling, SamplingParams
from caudal.server.ollama.messages import NO_IMAGES, OllamaMessage, read_messages
from caudal.server.ollama.options import FIELD_NAMES, Options
from caudal.server.ollama.tools import OllamaTool, read_tools, tool_field
from caudal.server.request_bodies import GenerationRequestBody, ModelRequestBody, estimated_output
from caudal.service.info import TemplateInfo
from caudal.service.naming import FieldNames
from caudal.structured_outputs import StructuredOutputsParams

_NAMES: Mapping[str, str] = {
    **FIELD_NAMES,
    "chat_template": "template",
    "logprobs": "top_logprobs",
    "reasoning_effort": "think",
    "structured_outputs": "format",
}

_NO_OPTIONS = Options.model_validate({})

_SWITCHES = ("enable_thinking", "thinking")


class OllamaBody(ModelRequestBody):
    """A body of Ollama's API: a model must be named, and options may say how it is run."""

    options: Options | None = None

    @property
    def only_unloads(self) -> bool:
        """Whether nothing is asked but that the model be unloaded."""
        return False

    def streams(self) -> bool:
        """Never by events, which could say that the model is still being loaded."""
        return False

    @property
    def given_options(self) -> Options:
        """The options, where there are none too."""
        return self.options or _NO_OPTIONS


class AnswerBody(OllamaBody, GenerationRequestBody):
    """What is said of an answer, be it to a prompt or to messages."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"_debug_render_only": (False,)}
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "shift": (False,),  # an answer ends where the context does
    }

    stream: bool | None = Field(None, description="Line by line, unless it is false.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description="`json`, or a JSON schema, that the answer follows."
    )
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="Default: as models do that can."
    )
    truncate: bool | None = Field(
        None,
        description="Leave out the first messages where they don't all fit; by default that is an "
        "error.",
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is sent as it comes."""
        return self.stream is not False

    @property
    def only_loads(self) -> bool:
        """Whether nothing is asked but that the model be loaded, or unloaded."""
        raise NotImplementedError

    @property
    def only_unloads(self) -> bool:
        """See `OllamaBody`."""
        return self.only_loads and self.keep_alive == 0

    def estimated_output(self) -> int:
        """See `ModelRequestBody`."""
        bound = self.given_options.num_predict
        return estimated_output(-1 if bound is None else bound)

    def sampling_params(self, recommended: RecommendedSampling) -> SamplingParams:
        """Check the values and return them under the engine's names.

        Args:
            recommended: Holds where the body says nothing.

        Raises:
            ParameterError: Names the offending field.
        """
        return SamplingParams(
            **self.given_options.sampling(recommended),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured_outputs=self._form(),
        )

    def room(self, max_model_len: int) -> int:
        """Most tokens of a prompt, where it may be cut: as many as leave room for the answer that
        is asked for, and half of the context at least.

        Args:
            max_model_len: Most tokens for which the model has room.
        """
        options = self.given_options
        length = min(options.context_length or max_model_len, max_model_len)
        return max(1, length - max(1, min(options.num_predict or 1, length // 2)))

    def _form(self) -> StructuredOutputsParams | None:
        if self.format is None or self.format == "":
            return None
        if self.format == "json":
            return StructuredOutputsParams(json_object=True)
        assert isinstance(self.format, dict)
        return StructuredOutputsParams(json=self.format)

    def _effort(self, template: TemplateInfo) -> ReasoningEffort | None:
        """How much the model is to think; None leaves it to its template.

        Raises:
            ParameterError: It can't.
        """
        if self.think is None:
            return None
        if self.think is False:
            return "none"
        if not template.can_think:
            raise ParameterError("think", f'"{self.model}" does not support thinking')
        return "medium" if self.think is True else self.think

    def _switches(self, template: TemplateInfo) -> dict[str, bool]:
        """Turns thinking on where the request doesn't say: models that can do, at Ollama."""
        if self.think is not None or not template.can_think:
            return {}
        return {name: True for name in _SWITCHES if name in template.variables}


class GenerateRequest(AnswerBody):
    """Body of `POST /api/generate`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **NO_IMAGES,
        "height": (0,),
        "steps": (0,),
        "width": (0,),
    }

    prompt: str | None = Field(
        None, description="Without one, the model is loaded, or with `keep_alive` 0 unloaded."
    )
    suffix: str | None = Field(None, description="What is to follow the answer.")
    system: str | None = None
    template: str | None = Field(None, description="A chat template instead of the model's.")
    preceding: list[int] | None = Field(
        None,
        alias="context",
        description="The `context` of an earlier answer, to go on from there.",
    )
    raw: bool | None = Field(None, description="The prompt is all that the model gets.")

    @property
    def only_loads(self) -> bool:
        """Whether there is no prompt."""
        return not self.prompt

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        return FieldNames({**_NAMES, "messages": "prompt"})

    def prompt_parts(self, request: Request) -> Iterator[Any]:
        """See `ModelRequestBody`."""
        yield from super().prompt_parts(request)
        yield from (part for part in (self.preceding, self.suffix) if part)

    def conversation(self, template: TemplateInfo) -> Conversation:
        """The prompt as a conversation.

        Args:
            template: The model's.

        Raises:
            ParameterError: The model can't think, but is to.
        """
        messages = [Message(role="system", content=self.system)] if self.system else []
        return Conversation(
            messages=[*messages, Message(role="user", content=self.prompt or "")],
            reasoning_effort=self._effort(template),
            template=self.template or None,
            template_kwargs={} if self.template else self._switches(template),
            opens=not self.preceding,
        )


class ChatRequest(AnswerBody):
    """Body of `POST /api/chat`."""

    messages: list[OllamaMessage] | None = Field(
        None, description="Without any, the model is loaded, or with `keep_alive` 0 unloaded."
    )
    tools: list[OllamaTool] | None = None

    @property
    def only_loads(self) -> bool:
        """Whether there are no messages."""
        return not self.messages

    def field_names(self) -> FieldNames:
        """What is called otherwise here than elsewhere."""
        names = {**_NAMES, "prompt": "messages", "continue_final_message": "messages"}
        return FieldNames(names, tool_field)

    def conversation(self, template: TemplateInfo) -> Conversation:
        """The request in the shape that all APIs share; an assistant's message last is continued.

        Args:
            template: The model's.

        Raises:
            ParameterError: Names the offending field.
        """
        messages = read_messages(self.messages or ())
        last = messages[-1]
        continues = last.role == "assistant" and not last.tool_calls
        return Conversation(
            messages=messages,
            tools=read_tools(self.tools or ()),
            add_generation_prompt=not continues,
            continue_final_message=continues,
            reasoning_effort=self._effort(template),
            template_kwargs=self._switches(template),
        )
