"""Messages as OpenAI's chat API has them, and how they become a `Conversation`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from caudal.chat.conversation import Message, ToolCall
from caudal.chat.text_input import arguments_of
from caudal.reading.blocks import known_types
from caudal.reading.fields import RequestObject

CacheControl = Annotated[
    dict[str, Any] | None,
    Field(description="Not needed: every prompt's beginning is cached for every other."),
]
"""Anthropic's mark, which LiteLLM and others pass through."""


class TextPart(RequestObject):
    """One part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class RefusalPart(RequestObject):
    """An assistant's refusal, which OpenAI gives back as a part of its own."""

    type: Literal["refusal"]
    refusal: str


UNREADABLE = ("image_url", "input_audio", "file", "video_url", "audio_url")


class UnreadablePart(BaseModel):
    """What a model that reads text can't: an image, say. The rest of it doesn't matter."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str

    @property
    def words(self) -> str:
        """What a tool's output has in its place."""
        return f"[{self.kind} left out: this model reads text only]"

    @property
    def kind(self) -> str:
        """What it is."""
        return self.type.removeprefix("input_").removesuffix("_url")


def _kind_of_part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", "text")
    if kind in UNREADABLE:
        return "[unreadable]"
    return "[refusal]" if kind == "refusal" else "[text]"


Part = Annotated[
    Annotated[TextPart, Tag("[text]")]
    | Annotated[RefusalPart, Tag("[refusal]")]
    | Annotated[UnreadablePart, Tag("[unreadable]")],
    Discriminator(_kind_of_part),
    known_types("a content part", ("text", "refusal"), also=UNREADABLE),
]


class ThinkingBlock(RequestObject):
    """What an assistant thought, as Anthropic has it; redacted blocks have no text."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = Field(None, description="Isn't checked.")
    data: str | None = Field(None, description="Of a redacted block; can't be read.")
    cache_control: CacheControl = None


class FunctionCall(RequestObject):
    """What a call calls; `arguments` is a JSON object as text."""

    name: str
    arguments: str


class _Call(RequestObject):
    id: str
    cache_control: CacheControl = None
    index: int | None = Field(None, description="In calls joined from a stream; not needed.")


class FunctionToolCall(_Call):
    """A call of a function that the assistant made."""

    type: Literal["function"] | None = None
    function: FunctionCall

    def call(self) -> ToolCall:
        """The call in the shape that all APIs share."""
        return ToolCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


class CustomCall(RequestObject):
    """A custom tool's name, and the text that it was given."""

    name: str
    input: str


class CustomToolCall(_Call):
    """A call of a custom tool that the assistant made."""

    type: Literal["custom"]
    custom: CustomCall

    def call(self) -> ToolCall:
        """The call in the shape that all APIs share."""
        return ToolCall(
            id=self.id, name=self.custom.name, arguments=arguments_of(self.custom.input)
        )


def _kind_of_call(call: Any) -> str:
    kind = call.get("type") if isinstance(call, dict) else call.type
    return "[function]" if kind is None else f"[{kind}]"


ToolCallObject = Annotated[
    Annotated[FunctionToolCall, Tag("[function]")] | Annotated[CustomToolCall, Tag("[custom]")],
    Discriminator(_kind_of_call),
    known_types("a tool call", ("function", "custom"), default="function"),
]


class ChatMessage(RequestObject):
    """One message of a conversation. `developer` is OpenAI's newer name for `system`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "audio": (),
        "function_call": (),
    }
    # What servers say beside an answer, and clients send back with it.
    hints: ClassVar[frozenset[str]] = frozenset(
        ("annotations", "id", "images", "provider_specific_fields", "reasoning_details")
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = Field(None, description="What an assistant thought.")
    reasoning: str | None = Field(None, description="Another name for `reasoning_content`.")
    thinking_blocks: list[ThinkingBlock] | None = Field(
        None, description="LiteLLM's; counts where there is no `reasoning_content`."
    )
    cache_control: CacheControl = None
    tool_calls: list[ToolCallObject] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id goes with the role tool, and only with it")
        for name in ("tool_calls", "refusal", "reasoning_content", "reasoning"):
            if getattr(self, name) and self.role != "assistant":
                raise ValueError(f"only the assistant's messages may have {name}")
        return self

    @property
    def unreadable_parts(self) -> list[tuple[int, UnreadablePart]]:
        """The parts that the model can't read, with their places."""
        if not isinstance(self.content, list):
            return []
        return [
            (index, part)
            for index, part in enumerate(self.content)
            if isinstance(part, UnreadablePart)
        ]

    def _thoughts(self) -> str:
        return "\n\n".join(block.thinking for block in self.thinking_blocks or () if block.thinking)

    def message(self) -> Message:
        """The message in the shape that all APIs share."""
        content: str | list[str] | None
        if isinstance(self.content, list):
            content = [_words_of(part) for part in self.content]
        else:
            content = self.content if self.content is not None else self.refusal
        return Message(
            role=self.role,
            content=content,
            name=self.name,
            reasoning=self.reasoning_content or self.reasoning or self._thoughts() or None,
            tool_calls=[call.call() for call in self.tool_calls or ()],
            tool_call_id=self.tool_call_id,
        )


def _words_of(part: TextPart | RefusalPart | UnreadablePart) -> str:
    match part:
        case TextPart():
            return part.text
        case RefusalPart():
            return part.refusal
        case UnreadablePart():
            return part.words
