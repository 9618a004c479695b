"""Messages and tools as OpenAI's chat API has them, and how they become a `Conversation`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from caudal.chat.conversation import Message, Tool, ToolCall, ToolChoice
from caudal.chat.text_input import PARAMETERS, TextInput, lark_of_pattern
from caudal.errors import ParameterError
from caudal.server.blocks import known_types
from caudal.server.fields import RequestModel

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")

LONGEST_TOOL_NAME = 64
"""Most characters of a tool's name (OpenAI's limit)."""

CacheControl = Annotated[
    dict[str, Any] | None,
    Field(description="Not needed: every prompt's beginning is cached for every other."),
]
"""Anthropic's mark, which LiteLLM and others pass through."""

MAX_TOOLS = 128
"""Most tools of a request (OpenAI's limit)."""


class TextPart(RequestModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class RefusalPart(RequestModel):
    """An assistant's refusal, which OpenAI gives back as a part of its own."""

    type: Literal["refusal"]
    refusal: str


UNREADABLE = ("image_url", "input_audio", "file", "video_url", "audio_url")


class UnreadablePart(RequestModel):
    """What a model that reads text can't: an image, say. The rest of it doesn't matter."""

    model_config = ConfigDict(extra="ignore")

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


class ThinkingBlock(RequestModel):
    """What an assistant thought, as Anthropic has it; redacted blocks have no text."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = Field(None, description="Isn't checked.")
    data: str | None = Field(None, description="Of a redacted block; can't be read.")
    cache_control: CacheControl = None


class FunctionCall(RequestModel):
    """What a call calls; `arguments` is a JSON object as text."""

    name: str
    arguments: str


class ToolCallObject(RequestModel):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    cache_control: CacheControl = None
    index: int | None = Field(None, description="In calls joined from a stream; not needed.")


class ChatMessage(RequestModel):
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
            tool_calls=[
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in self.tool_calls or ()
            ],
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


class FunctionDefinition(RequestModel):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of type object.")
    strict: bool | None = Field(
        None,
        description="Arguments always follow the schema, also where the model may call freely.",
    )
    cache_control: CacheControl = None


class ToolObject(RequestModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: CacheControl = None


class FunctionName(RequestModel):
    """Names a function."""

    name: str


class NamedTool(RequestModel):
    """Names a tool."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestModel):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedToolsChoice(RequestModel):
    """OpenAI's way to offer some of the tools only."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(choice: Any) -> str:
    if isinstance(choice, AllowedToolsChoice):
        return "[allowed]"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return "[allowed]"
    return "[named]" if isinstance(choice, dict | NamedTool) else "[mode]"


ToolMode = Literal["none", "auto", "required"]

# The brackets keep the tags out of error messages, like the other names of unions' branches.
ToolChoiceField = Annotated[
    Annotated[ToolMode, Tag("[mode]")]
    | Annotated[NamedTool, Tag("[named]")]
    | Annotated[AllowedToolsChoice, Tag("[allowed]")],
    Discriminator(_kind_of_choice),
]


def read_tools(tools: Sequence[ToolObject]) -> list[Tool]:
    """The tools in the shape that all APIs share.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    if len(tools) > MAX_TOOLS:
        raise ParameterError(
            "tools", f"tools may have at most {MAX_TOOLS} tools, but has {len(tools)}."
        )
    read: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where, function = f"tools[{index}].function", tool.function
        check_tool_name(f"{where}.name", function.name)
        if function.name in names:
            raise ParameterError(
                f"{where}.name", f"{where}.name: there are two tools named {function.name!r}."
            )
        names.add(function.name)
        read.append(
            Tool(
                name=function.name,
                description=function.description,
                parameters=object_schema(f"{where}.parameters", function.parameters),
                strict=bool(function.strict),
            )
        )
    return read


class GrammarDefinition(RequestModel):
    """What a custom tool's text is held to."""

    closed = True

    syntax: Literal["lark", "regex"]
    definition: str

    @property
    def lark(self) -> str:
        """The grammar in Lark."""
        return self.definition if self.syntax == "lark" else lark_of_pattern(self.definition)


def custom_tool(name: str, description: str | None, grammar: GrammarDefinition | None) -> Tool:
    """A tool that takes text, in the shape that all APIs share."""
    about = [description] if description else []
    if grammar is not None:
        what = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
        about.append(f"The input is text that matches this {what}:\n{grammar.definition}")
    return Tool(
        name=name,
        description="\n\n".join(about) or None,
        parameters=PARAMETERS,
        strict=grammar is not None,
        text_input=TextInput(grammar=None if grammar is None else grammar.lark),
    )


def check_tool_name(where: str, name: str, *, longest: int = LONGEST_TOOL_NAME) -> None:
    """Raises `ParameterError` where a tool can't have this name."""
    if len(name) > longest or _TOOL_NAME.fullmatch(name) is None:
        raise ParameterError(
            where,
            f"{where} must be 1 to {longest} letters, digits, underscores or dashes, but is "
            f"{name!r:.80}.",
        )


def object_schema(where: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A schema of arguments, which are always an object; none means no arguments.

    Raises:
        ParameterError: The schema is for something else.
    """
    if not schema:
        return {"type": "object", "properties": {}}
    kind = schema.get("type", "object")
    if kind != "object":
        raise ParameterError(where, f"{where}.type must be 'object', but is {kind!r:.80}.")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise ParameterError(where, f"{where}.properties must be an object.")
    return {"type": "object", "properties": properties, **schema}


def read_tool_choice(choice: ToolChoiceField | None, tools: Sequence[Tool]) -> ToolChoice:
    """Whether tools are called, and which; raises as `resolve_tool_choice`."""
    match choice:
        case NamedTool():
            named = ToolChoice(mode="required", names=[choice.function.name])
            return resolve_tool_choice(named, tools)
        case AllowedToolsChoice():
            names = [tool.function.name for tool in choice.allowed_tools.tools]
            return resolve_tool_choice(
                ToolChoice(mode=choice.allowed_tools.mode, names=names), tools
            )
        case _:
            return resolve_tool_choice(choice, tools)


def resolve_tool_choice(choice: ToolMode | ToolChoice | None, tools: Sequence[Tool]) -> ToolChoice:
    """A mode, or a choice that names tools, as it applies to the tools that there are.

    Raises:
        ParameterError: It names a tool that there is not, or asks for calls without tools.
    """
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice(mode="none")
    if not tools:
        raise ParameterError("tool_choice", "tool_choice needs tools.")
    if choice == "required":
        return ToolChoice(mode="required")
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            raise ParameterError(
                "tool_choice", f"tool_choice names {name!r:.80}, which tools has not."
            )
    return choice
