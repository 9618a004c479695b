"""Tools as the responses API has them: flatter than the chat API's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.errors import ParameterError
from caudal.server.blocks import BY_TYPE, known_types
from caudal.server.fields import RequestModel
from caudal.server.openai.messages import (
    ToolMode,
    check_tool_name,
    object_schema,
    resolve_tool_choice,
)


class FunctionTool(RequestModel):
    """A function that the model may call."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of type object.")
    strict: bool | None = Field(
        None,
        description="Arguments always follow the schema, also where the model may call freely.",
    )


ToolObject = Annotated[FunctionTool, known_types("a tool", ("function",))]


class FunctionName(RequestModel):
    """Names a function: it must be called."""

    type: Literal["function"]
    name: str


NamedFunction = Annotated[FunctionName, known_types("a tool", ("function",))]


class AllowedTools(RequestModel):
    """Offers some of the tools only, and says whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


ToolChoiceObject = Annotated[
    Annotated[FunctionName, Tag("[function]")] | Annotated[AllowedTools, Tag("[allowed_tools]")],
    BY_TYPE,
    known_types("a tool_choice", ("function", "allowed_tools")),
]


def read_tools(tools: Sequence[FunctionTool]) -> list[Tool]:
    """The tools in the shape that all APIs share.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    read: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        check_tool_name(f"{where}.name", tool.name)
        if tool.name in read:
            raise ParameterError(
                f"{where}.name", f"{where}.name: there are two tools named {tool.name!r}."
            )
        read[tool.name] = Tool(
            name=tool.name,
            description=tool.description,
            parameters=object_schema(f"{where}.parameters", tool.parameters),
            strict=bool(tool.strict),
        )
    return list(read.values())


def read_tool_choice(
    choice: ToolMode | FunctionName | AllowedTools | None, tools: Sequence[Tool]
) -> ToolChoice:
    """Whether tools are called, and which; raises as `resolve_tool_choice`."""
    match choice:
        case FunctionName():
            return resolve_tool_choice(ToolChoice(mode="required", names=[choice.name]), tools)
        case AllowedTools():
            names = [tool.name for tool in choice.tools]
            return resolve_tool_choice(ToolChoice(mode=choice.mode, names=names), tools)
        case _:
            return resolve_tool_choice(choice, tools)
