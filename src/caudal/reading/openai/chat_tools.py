"""Tools as OpenAI's chat API has them: functions, and custom ones, which take text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.errors import ParameterError
from caudal.reading.blocks import BY_TYPE, known_types
from caudal.reading.fields import RequestObject
from caudal.reading.openai.messages import CacheControl
from caudal.reading.openai.tools import (
    MAX_TOOLS,
    GrammarDefinition,
    TextFormat,
    ToolMode,
    check_tool_name,
    custom_tool,
    object_schema,
    resolve_tool_choice,
)

_TYPES = ("function", "custom")


class FunctionDefinition(RequestObject):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of type object.")
    strict: bool | None = Field(
        None,
        description="Arguments always follow the schema, also where the model may call freely.",
    )
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
        schema = object_schema(f"{where}.function.parameters", self.function.parameters)
        return Tool(
            name=self.name,
            description=self.function.description,
            parameters=schema,
            strict=bool(self.function.strict),
        )


class ChatGrammarFormat(RequestObject):
    """Text of a grammar."""

    closed = True

    type: Literal["grammar"]
    grammar: GrammarDefinition


class CustomDefinition(RequestObject):
    """A tool that takes text."""

    name: str
    description: str | None = None
    format: (
        Annotated[
            Annotated[TextFormat, Tag("[text]")] | Annotated[ChatGrammarFormat, Tag("[grammar]")],
            BY_TYPE,
            known_types("a format", ("text", "grammar")),
        ]
        | None
    ) = None
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


ToolObject = Annotated[
    Annotated[ChatFunctionTool, Tag("[function]")] | Annotated[ChatCustomTool, Tag("[custom]")],
    BY_TYPE,
    known_types("a tool", _TYPES),
]


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
    tools: list[
        Annotated[
            Annotated[NamedFunction, Tag("[function]")]
            | Annotated[NamedCustomTool, Tag("[custom]")],
            BY_TYPE,
            known_types("a tool", _TYPES),
        ]
    ]


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
        raise ParameterError(
            "tools", f"tools may have at most {MAX_TOOLS} tools, but has {len(tools)}."
        )
    read: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        name_field = f"{where}.{tool.type}.name"
        check_tool_name(name_field, tool.name)
        if tool.name in names:
            raise ParameterError(
                name_field, f"{name_field}: there are two tools named {tool.name!r}."
            )
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
