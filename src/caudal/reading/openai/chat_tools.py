"""Tools as OpenAI's chat API has them: functions, and custom ones, which take text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Discriminator, Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.reading.blocks import BY_TYPE, known_types
from caudal.reading.fields import RequestObject
from caudal.reading.openai.messages import CacheControl
from caudal.reading.openai.tools import (
    MAX_TOOLS,
    CustomFormat,
    FunctionFields,
    GrammarDefinition,
    ToolMode,
    check_tool_name,
    custom_tool,
    resolve_tool_choice,
    same_name,
    too_many_tools,
)

_TYPES = ("function", "custom")

_Function = TypeVar("_Function", bound=RequestObject)
_Custom = TypeVar("_Custom", bound=RequestObject)
_FunctionOrCustom = Annotated[
    Annotated[_Function, Tag("[function]")] | Annotated[_Custom, Tag("[custom]")],
    BY_TYPE,
    known_types("a tool", _TYPES),
]


class FunctionDefinition(FunctionFields):
    """A function that the model may call."""

    cache_control: CacheControl = None


class ChatFunctionTool(RequestObject):
    """A function, as a tool."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: CacheControl = None

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.function.name

    def read(self, where: str) -> Tool:
        """The tool in the shape that all APIs share; `where` it is, an error says."""
        return self.function.tool(f"{where}.function")


class ChatGrammarFormat(RequestObject):
    """Text of a grammar."""

    closed = True

    type: Literal["grammar"]
    grammar: GrammarDefinition


class CustomDefinition(RequestObject):
    """A tool that takes text."""

    name: str
    description: str | None = None
    format: CustomFormat[ChatGrammarFormat] | None = None
    cache_control: CacheControl = None


class ChatCustomTool(RequestObject):
    """A custom tool."""

    type: Literal["custom"]
    custom: CustomDefinition
    cache_control: CacheControl = None

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.custom.name

    def read(self, where: str) -> Tool:
        """The tool in the shape that all APIs share."""
        form = self.custom.format
        grammar = form.grammar if isinstance(form, ChatGrammarFormat) else None
        return custom_tool(self.name, self.custom.description, grammar)


ToolObject = _FunctionOrCustom[ChatFunctionTool, ChatCustomTool]


class ChatToolName(RequestObject):
    """Names a function or a custom tool."""

    name: str


class NamedFunction(RequestObject):
    """Names a function."""

    type: Literal["function"]
    function: ChatToolName

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.function.name


class NamedCustomTool(RequestObject):
    """Names a custom tool."""

    type: Literal["custom"]
    custom: ChatToolName

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.custom.name


NamedTool = NamedFunction | NamedCustomTool


class ChatAllowedTools(RequestObject):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[_FunctionOrCustom[NamedFunction, NamedCustomTool]]


class AllowedToolsChoice(RequestObject):
    """OpenAI's way to offer some of the tools only."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowedTools


ToolChoiceObject = Annotated[
    Annotated[NamedFunction, Tag("[function]")]
    | Annotated[NamedCustomTool, Tag("[custom]")]
    | Annotated[AllowedToolsChoice, Tag("[allowed_tools]")],
    BY_TYPE,
    known_types("a tool_choice", (*_TYPES, "allowed_tools")),
]

# The brackets keep the tags out of error messages, like the other names of unions' branches.
ToolChoiceField = Annotated[
    Annotated[ToolMode, Tag("[mode]")] | Annotated[ToolChoiceObject, Tag("[object]")],
    Discriminator(lambda choice: "[object]" if isinstance(choice, dict) else "[mode]"),
]


def read_tools(tools: Sequence[ChatFunctionTool | ChatCustomTool]) -> list[Tool]:
    """The tools in the shape that all APIs share.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    if len(tools) > MAX_TOOLS:
        raise too_many_tools(MAX_TOOLS, len(tools))
    read: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        name_field = f"{where}.{tool.type}.name"
        check_tool_name(name_field, tool.name)
        if tool.name in names:
            raise same_name(name_field, tool.name)
        names.add(tool.name)
        read.append(tool.read(where))
    return read


def read_tool_choice(
    choice: ToolMode | NamedTool | AllowedToolsChoice | None, tools: Sequence[Tool]
) -> ToolChoice:
    """Whether tools are called, and which; raises as `resolve_tool_choice`."""
    match choice:
        case NamedFunction() | NamedCustomTool():
            named = ToolChoice(mode="required", names=[choice.name])
            return resolve_tool_choice(named, tools)
        case AllowedToolsChoice(allowed_tools=allowed):
            names = [tool.name for tool in allowed.tools]
            return resolve_tool_choice(ToolChoice(mode=allowed.mode, names=names), tools)
        case _:
            return resolve_tool_choice(choice, tools)
