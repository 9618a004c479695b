"""Content blocks, tools and the rest of what a message request is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, model_validator

from caudal.server.blocks import BY_TYPE, known_types
from caudal.server.fields import RequestModel


class CacheControl(RequestModel):
    """Asks for what happens anyway: every prompt's beginning is kept for as long as there is room,
    whichever lifetime is named.
    """

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    """Text."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"citations": ([],)}

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(RequestModel):
    """What an assistant thought; the signature isn't checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(RequestModel):
    """A call that an assistant made."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "caller": ({"type": "direct"},),
        "toolset_name": (),
    }

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


ResultPart = Annotated[TextBlock, known_types("a tool result's block", ("text",))]


class ToolResultBlock(RequestModel):
    """What a call gave, or why it failed."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str | list[str]:
        """The result for the model, which has no other way to tell failures than words."""
        if isinstance(self.content, list):
            texts = [part.text for part in self.content]
            return ["Error:", *texts] if self.is_error else texts
        text = self.content or ""
        return f"Error: {text}" if self.is_error else text


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    BY_TYPE,
    known_types("a content block", ("text", "thinking", "tool_use", "tool_result")),
]

SystemPart = Annotated[TextBlock, known_types("a system block", ("text",))]

_BLOCKS_OF = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


class MessageObject(RequestModel):
    """One message; several of the same role in a row are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @model_validator(mode="after")
    def _check(self) -> MessageObject:
        for block in self.blocks:
            if not isinstance(block, _BLOCKS_OF[self.role]):
                raise ValueError(f"a message of role {self.role} can't have {block.type} blocks")
        return self

    @property
    def blocks(self) -> Sequence[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock]:
        """The content; a string is one block of text."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content


class ToolObject(RequestModel):
    """A tool that the client runs."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "eager_input_streaming": (False,),
        "input_examples": ([],),
    }

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="A JSON schema of type object.")
    strict: bool | None = Field(
        None, description="Inputs always follow the schema, also where the model may call freely."
    )
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_server_tools(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind not in (None, "custom"):
            raise ValueError(
                f"a tool of type {kind!r:.80} is not supported by this server, only custom ones"
            )
        return data


class ToolChoiceObject(RequestModel):
    """Whether tools are called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> ToolChoiceObject:
        if (self.name is not None) != (self.type == "tool"):
            raise ValueError("name goes with type tool, and only with it")
        if self.type == "none" and self.disable_parallel_tool_use is not None:
            raise ValueError("disable_parallel_tool_use does not go with type none")
        return self


class Thinking(RequestModel):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted` leaves the text of thinking out; nothing is summarised."
    )

    @model_validator(mode="after")
    def _check(self) -> Thinking:
        if (self.budget_tokens is not None) != (self.type == "enabled"):
            raise ValueError("budget_tokens goes with type enabled, and only with it")
        if self.display is not None and self.type == "disabled":
            raise ValueError("display does not go with type disabled")
        return self


class JSONOutputFormat(RequestModel):
    """The schema that an answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """How much effort an answer takes, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Where the model's chat template has levels of effort."
    )
    format: JSONOutputFormat | None = None


class Metadata(RequestModel):
    """About the request."""

    user_id: str | None = Field(None, description="Named in the server's log line of the request.")
