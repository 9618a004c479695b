"""Tools as Anthropic's API has them, and which of them the model is offered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from caudal.chat.conversation import Tool, ToolChoice
from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.reading.openai.tools import check_tool_name, object_schema, same_name
from caudal.server.anthropic.client_tools import CLIENT_TOOLS, Screen
from caudal.server.anthropic.settings import CacheControl

MAX_TOOLS = 10_000
"""Most tools of a request (Anthropic's limit where tools are searched)."""

LONGEST_NAME = 128

_SERVER_TOOLS = (
    "advisor",
    "code_execution",
    "mcp_toolset",
    "tool_search_tool",
    "web_fetch",
    "web_search",
)
"""What Anthropic's own servers run; their types begin so."""

_SEARCH = "tool_search_tool"


class _OfferedTool(RequestObject):
    """What tools have in common that clients run."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "allowed_callers": ([], ["direct"]),
        "eager_input_streaming": (False,),
    }

    name: str
    strict: bool | None = Field(
        None, description="Inputs always follow the schema, also where the model may call freely."
    )
    cache_control: CacheControl | None = None
    defer_loading: bool | None = Field(
        None, description="The model is offered the tool once a `tool_reference` names it."
    )
    input_examples: list[dict[str, Any]] | None = Field(
        None, description="Shown to the model with the schema."
    )

    def _tool(self, where: str, description: str | None, schema: dict[str, Any]) -> Tool:
        check_tool_name(f"{where}.name", self.name, longest=LONGEST_NAME)
        parameters = object_schema(f"{where}.input_schema", schema)
        if self.input_examples:
            parameters["examples"] = self.input_examples
        return Tool(
            name=self.name,
            description=description,
            parameters=parameters,
            strict=bool(self.strict),
        )


class CustomTool(_OfferedTool):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="A JSON schema of type object.")

    def tool(self, where: str) -> Tool:
        """The tool in the shape that all APIs share.

        Raises:
            ParameterError: Its name or schema can't be one; begins with `where`.
        """
        return self._tool(where, self.description, self.input_schema)


class DefinedTool(_OfferedTool):
    """A tool that Anthropic defines and the client runs: a shell, an editor, a screen."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {"display_number": (), "max_characters": ()}

    type: str
    display_width_px: int | None = None
    display_height_px: int | None = None
    enable_zoom: bool | None = None

    def tool(self, where: str) -> Tool:
        """The tool in the shape that all APIs share; raises as a custom tool does."""
        screen = Screen(
            width=self.display_width_px,
            height=self.display_height_px,
            can_zoom=bool(self.enable_zoom),
        )
        known = CLIENT_TOOLS[self.type](screen)
        return self._tool(where, known.description, dict(known.schema))


class ServerTool(BaseModel):
    """A tool that Anthropic's servers run. The model does without."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    name: str | None = None


def _branch_of(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if isinstance(kind, str) and kind.startswith(_SERVER_TOOLS):
        return "[server]"
    return "[defined]" if isinstance(kind, str) and kind in CLIENT_TOOLS else "[custom]"


def _refuse_others(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, "custom") and _branch_of(tool) == "[custom]":
        raise ValueError(
            f"a tool of type {kind!r:.80} is not supported by this server; custom ones are, and "
            f"{', '.join(CLIENT_TOOLS)}"
        )
    return tool


ToolObject = Annotated[
    Annotated[CustomTool, Tag("[custom]")]
    | Annotated[DefinedTool, Tag("[defined]")]
    | Annotated[ServerTool, Tag("[server]")],
    Discriminator(_branch_of),
    BeforeValidator(_refuse_others),
]


class ToolChoiceObject(RequestObject):
    """Whether tools are called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Goes with the type `tool`.")
    disable_parallel_tool_use: bool | None = None


class ToolChange(BaseModel):
    """What a `tool_addition` or `tool_removal` block in a conversation is about."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    name: str | None = None
    definition: ToolObject | None = None


def skipped_tools(tools: Iterable[ToolObject]) -> list[str]:
    """The tools that the model is not offered because Anthropic's servers run them."""
    return [f"tools[].{tool.type}" for tool in tools if isinstance(tool, ServerTool)]


def read_tools(
    tools: Sequence[ToolObject], *, loaded: Collection[str], removed: Collection[str]
) -> list[Tool]:
    """The tools that the model is offered: those that came into view later at the end.

    So a prompt goes on as before until there, which the cache knows already.

    Args:
        tools: The request's.
        loaded: Names that the conversation refers to, so that deferred tools may be seen.
        removed: Names that the conversation takes away.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    # Nobody can search for deferred tools where Anthropic's servers would: they are all offered.
    searched = any(isinstance(tool, ServerTool) and tool.type.startswith(_SEARCH) for tool in tools)
    read: dict[str, Tool] = {}
    hidden: set[str] = set(removed)
    later: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, ServerTool):
            continue
        where = f"tools[{index}]"
        if tool.name in read:
            raise same_name(f"{where}.name", tool.name)
        read[tool.name] = tool.tool(where)
        if tool.defer_loading and not searched:
            (later if tool.name in loaded else hidden).add(tool.name)
    offered = [tool for tool in read.values() if tool.name not in hidden]
    return sorted(offered, key=lambda tool: tool.name in later)


def read_tool_choice(
    choice: ToolChoiceObject | None, tools: Sequence[Tool], skipped: Sequence[str]
) -> ToolChoice:
    """Whether tools are called, and which.

    Args:
        choice: The request's.
        tools: What the model is offered.
        skipped: The tools of the request that it is not.

    Raises:
        ParameterError: It demands what the model is not offered.
    """
    if choice is None or choice.type == "auto":
        return ToolChoice()
    if choice.type == "none":
        return ToolChoice(mode="none")
    if not tools:
        reason = (
            f" that this server can offer, which {', '.join(skipped)} is not" if skipped else ""
        )
        raise ParameterError("tool_choice", f"tool_choice needs tools{reason}.")
    if choice.type == "any":
        return ToolChoice(mode="required")
    if choice.name is None:
        raise ParameterError("tool_choice.name", "tool_choice.name is required for type tool.")
    if choice.name not in {tool.name for tool in tools}:
        raise ParameterError(
            "tool_choice",
            f"tool_choice.name is {choice.name!r:.80}, but the model is offered no such tool.",
        )
    return ToolChoice(mode="required", names=[choice.name])
