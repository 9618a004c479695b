"""Messages, and the blocks that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Tag

from caudal.reading.blocks import OTHER, known_or_other, known_types, type_of
from caudal.reading.fields import RequestObject
from caudal.server.anthropic.settings import CacheControl
from caudal.server.anthropic.tools import ToolChange

_NO_CITATIONS: Mapping[str, Sequence[Any]] = {"citations": ({"enabled": False}, {}, [])}


class TextBlock(RequestObject):
    """Text. What an earlier answer cited is not shown to the model."""

    hints: ClassVar[frozenset[str]] = frozenset({"citations"})

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(RequestObject):
    """What an assistant thought; the signature isn't checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(RequestObject):
    """A call that an assistant made."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "caller": ({"type": "direct"},),
        "toolset_name": (),
    }

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class DocumentSource(BaseModel):
    """Where a document is. Text stands in the request; files and addresses aren't read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    data: str | None = None
    content: str | list[Any] | None = None

    @property
    def text(self) -> str | None:
        """The text, where it is one."""
        if self.type == "text":
            return self.data
        if self.type != "content" or self.content is None:
            return None
        if isinstance(self.content, str):
            return self.content
        found = [part.get("text") for part in self.content if isinstance(part, dict)]
        texts = [text for text in found if isinstance(text, str)]
        return "\n".join(texts) if len(texts) == len(self.content) else None


class DocumentBlock(RequestObject):
    """A document."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = _NO_CITATIONS

    type: Literal["document"]
    source: DocumentSource
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str | None:
        """Title, context and text, a line each; None of a document that isn't text."""
        text = self.source.text
        return None if text is None else "\n".join(filter(None, (self.title, self.context, text)))


class SearchResultBlock(RequestObject):
    """A passage that a search of the client's has found."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = _NO_CITATIONS

    type: Literal["search_result"]
    source: str
    title: str
    content: list[TextBlock]
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str:
        """Title, source and passage, a line each."""
        return "\n".join([self.title, self.source, *(part.text for part in self.content)])


class ToolReferenceBlock(RequestObject):
    """Names a deferred tool, which the model is offered from then on."""

    type: Literal["tool_reference"]
    tool_name: str
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str:
        """What the model reads of it."""
        return f"The tool {self.tool_name} can be called now."


class OtherBlock(BaseModel):
    """A block of another type: what Anthropic's servers made, an image, or what nobody knows."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    content: Any = None


def _has_type(value: Any) -> Any:
    """Refuses what is no block, in words: pydantic would list its branches."""
    type_of(value, "a content block needs a type, e.g. text")
    return value


ResultPart = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ToolReferenceBlock, Tag("[tool_reference]")]
    | Annotated[OtherBlock, Tag(OTHER)],
    known_or_other(("text", "document", "search_result", "tool_reference")),
    BeforeValidator(_has_type),
]


class ToolResultBlock(RequestObject):
    """What a call gave, or why it failed."""

    hints: ClassVar[frozenset[str]] = frozenset({"toolset_name"})

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def parts(self) -> Sequence[ResultPart]:
        """The content's blocks, where it is made of such."""
        return self.content if isinstance(self.content, list) else ()

    @property
    def text(self) -> str | list[str]:
        """The result for the model, which has no other way to tell failures than words."""
        if isinstance(self.content, list):
            texts = [_text_in_its_place(part) for part in self.content]
            return ["Error:", *texts] if self.is_error else texts
        text = self.content or ""
        return f"Error: {text}" if self.is_error else text


def _text_in_its_place(part: ResultPart) -> str:
    """A result's part as text. What isn't text leaves a note, for a session goes on without it."""
    text = None if isinstance(part, OtherBlock) else part.text
    return f"[{part.type}: left out, for this model reads text only]" if text is None else text


class ToolChangeBlock(RequestObject):
    """Offers the model a tool from here on, or takes one away."""

    type: Literal["tool_addition", "tool_removal"]
    tool: ToolChange
    cache_control: CacheControl | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ToolChangeBlock, Tag("[tool_addition]")]
    | Annotated[ToolChangeBlock, Tag("[tool_removal]")]
    | Annotated[OtherBlock, Tag(OTHER)],
    known_or_other(
        (
            "text",
            "thinking",
            "tool_use",
            "tool_result",
            "document",
            "search_result",
            "tool_addition",
            "tool_removal",
        )
    ),
    BeforeValidator(_has_type),
]

SystemPart = Annotated[TextBlock, known_types("a system block", ("text",))]


class MessageObject(RequestObject):
    """One message; several of the same role in a row are one turn."""

    hints: ClassVar[frozenset[str]] = frozenset({"output_config"})

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = Field(None, description="Only system messages lack it.")
    clear_at: Literal["never", "next_user_message"] | None = Field(
        None, description="Where a later message is the user's, the model isn't shown this one."
    )

    @property
    def blocks(self) -> Sequence[Block]:
        """The content; a string is one block of text."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content or ()


def without_effect(messages: Sequence[MessageObject]) -> Iterator[str]:
    """What of the messages the model does not get to see, by its place and type."""
    for message in messages:
        for block in message.blocks:
            if isinstance(block, OtherBlock):
                yield f"messages[].content[].{block.type}"
            elif isinstance(block, ToolResultBlock):
                for part in block.parts:
                    if isinstance(part, OtherBlock) or part.text is None:
                        yield f"messages[].content[].content[].{part.type}"
            elif isinstance(block, ToolChangeBlock) and block.tool.name is None:
                yield f"messages[].content[].{block.tool.type}"
