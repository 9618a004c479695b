"""What both of OpenAI's APIs have in tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.chat.text_input import PARAMETERS, TextInput, lark_of_pattern
from caudal.errors import ParameterError
from caudal.reading.blocks import BY_TYPE, known_types
from caudal.reading.fields import RequestObject

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")

LONGEST_TOOL_NAME = 64
"""Most characters of a tool's name (OpenAI's limit)."""

MAX_TOOLS = 128
"""Most tools of a request (OpenAI's limit)."""

ToolMode = Literal["none", "auto", "required"]


class FunctionFields(RequestObject):
    """What is said of a function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of type object.")
    strict: bool | None = Field(
        None,
        description="Arguments always follow the schema, also where the model may call freely.",
    )

    def tool(self, where: str) -> Tool:
        """The tool in the shape that all APIs share.

        Raises:
            ParameterError: Its parameters can't be any; begins with `where`.
        """
        return Tool(
            name=self.name,
            description=self.description,
            parameters=object_schema(f"{where}.parameters", self.parameters),
            strict=bool(self.strict),
        )


class TextFormat(RequestObject):
    """Any text."""

    closed = True

    type: Literal["text"]


class GrammarDefinition(RequestObject):
    """What a custom tool's text is held to."""

    closed = True

    syntax: Literal["lark", "regex"]
    definition: str

    @property
    def lark(self) -> str:
        """The grammar in Lark."""
        return self.definition if self.syntax == "lark" else lark_of_pattern(self.definition)


GrammarForm = TypeVar("GrammarForm", bound=RequestObject)

CustomFormat = Annotated[
    Annotated[TextFormat, Tag("[text]")] | Annotated[GrammarForm, Tag("[grammar]")],
    BY_TYPE,
    known_types("a format", ("text", "grammar")),
]
"""What a custom tool's text may be: any, or what a grammar allows, which APIs write differently."""


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


def too_many_tools(limit: int, count: int) -> ParameterError:
    """A request has more tools than it may."""
    return ParameterError("tools", f"tools may have at most {limit} tools, but has {count}.")


def same_name(where: str, name: str) -> ParameterError:
    """Two tools have this name."""
    return ParameterError(where, f"{where}: there are two tools named {name!r}.")


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
