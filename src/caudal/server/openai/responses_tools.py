"""Tools as the responses API has them: flatter than the chat API's, and in namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.reading.blocks import (
    BY_TYPE,
    OTHER,
    OtherObject,
    known_or_other,
    known_types,
    typed,
)
from caudal.reading.fields import RequestObject
from caudal.reading.openai.tools import (
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

MAX_OFFERED = 1024
"""Most tools of a request, those in namespaces included."""

HOSTED_TYPES = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
"""Documented types of tools that this server doesn't have."""


class FunctionTool(FunctionFields):
    """A function that the model may call."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),  # there is no search for tools: all are offered at once
        "output_schema": (),
    }

    type: Literal["function"]


class GrammarFormat(GrammarDefinition):
    """Text of a grammar."""

    type: Literal["grammar"]


class CustomTool(RequestObject):
    """A tool that takes text."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),
    }

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat[GrammarFormat] | None = None


class NamespaceTool(RequestObject):
    """Functions under a common name."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[NamespacedTool]


_CALLED = ("function", "custom")
_KNOWN = (*_CALLED, "namespace")

NamespacedTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[OtherObject, Tag(OTHER)],
    known_or_other(_CALLED),
    typed("a tool", _CALLED, HOSTED_TYPES),
]

ToolObject = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[NamespaceTool, Tag("[namespace]")]
    | Annotated[OtherObject, Tag(OTHER)],
    known_or_other(_KNOWN),
    typed("a tool", _KNOWN, HOSTED_TYPES),
]

CalledTool = FunctionTool | CustomTool
AnyTool = CalledTool | NamespaceTool | OtherObject

NamespaceTool.model_rebuild()


class ToolName(RequestObject):
    """Names a function or a custom tool: it must be called."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


NamedTool = Annotated[
    Annotated[ToolName, Tag("[function]")]
    | Annotated[ToolName, Tag("[custom]")]
    | Annotated[OtherObject, Tag(OTHER)],
    known_or_other(_CALLED),
    typed("a tool", _CALLED, HOSTED_TYPES),
]


class AllowedTools(RequestObject):
    """Offers some of the tools only, and says whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


ToolChoiceObject = Annotated[
    Annotated[ToolName, Tag("[function]")]
    | Annotated[ToolName, Tag("[custom]")]
    | Annotated[AllowedTools, Tag("[allowed_tools]")],
    BY_TYPE,
    known_types("a tool_choice", (*_CALLED, "allowed_tools")),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that the model may call, and how the client knows it.

    Attributes:
        tool: As the model is told.
        name: As the client calls it.
        namespace: The namespace that it is in.
        field: Where in the request it is.
    """

    tool: Tool
    name: str
    namespace: str | None
    field: str


def qualified(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def read_tools(
    tools: Sequence[AnyTool], later: Sequence[AnyTool], ignored: list[str]
) -> dict[str, OfferedTool]:
    """The tools that the model is offered, by the names that it knows.

    Args:
        tools: The request's.
        later: Those that came up in the conversation; they may come up again.
        ignored: Told of those that this server doesn't have.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    read: dict[str, OfferedTool] = {}
    for offered in _offered(tools, "tools", ignored):
        name, where = offered.tool.name, offered.field
        if name in read:
            raise same_name(f"{where}.name", name)
        read[name] = offered
    for offered in _offered(later, "input.tools", ignored):
        read.setdefault(offered.tool.name, offered)
    if len(read) > MAX_OFFERED:
        raise too_many_tools(MAX_OFFERED, len(read))
    return read


def _offered(tools: Sequence[AnyTool], field: str, ignored: list[str]) -> Iterator[OfferedTool]:
    for index, tool in enumerate(tools):
        where = f"{field}[{index}]"
        if isinstance(tool, OtherObject):
            ignored.append(f"{field}[{tool.type}]")
        elif isinstance(tool, CalledTool):
            yield _called(tool, where, None, None)
        else:
            check_tool_name(f"{where}.name", tool.name)
            about = tool.description  # told once, with the first
            for place, member in enumerate(tool.tools):
                if isinstance(member, OtherObject):
                    ignored.append(f"{field}[{tool.name}].tools[{member.type}]")
                else:
                    yield _called(member, f"{where}.tools[{place}]", tool.name, about)
                    about = None


def _called(tool: CalledTool, where: str, namespace: str | None, about: str | None) -> OfferedTool:
    check_tool_name(f"{where}.name", tool.name)
    description = tool.description
    if about:
        description = "\n\n".join(filter(None, (f"({namespace}: {about})", description)))
    name = qualified(namespace, tool.name)
    if isinstance(tool, CustomTool):
        grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
        made = custom_tool(name, description, grammar)
    else:
        made = replace(tool.tool(where), name=name, description=description)
    return OfferedTool(tool=made, name=tool.name, namespace=namespace, field=where)


def read_tool_choice(
    choice: ToolMode | ToolName | AllowedTools | None,
    tools: Sequence[Tool],
    ignored: list[str],
) -> ToolChoice:
    """Whether tools are called, and which; raises as `resolve_tool_choice`."""
    match choice:
        case ToolName():
            named = [qualified(choice.namespace, choice.name)]
            return resolve_tool_choice(ToolChoice(mode="required", names=named), tools)
        case AllowedTools():
            names = []
            for tool in choice.tools:
                if isinstance(tool, OtherObject):
                    ignored.append(f"tool_choice.tools[{tool.type}]")
                else:
                    names.append(qualified(tool.namespace, tool.name))
            if not tools and choice.mode == "auto":
                return ToolChoice()
            return resolve_tool_choice(ToolChoice(mode=choice.mode, names=names), tools)
        case _:
            return resolve_tool_choice(choice, tools)
