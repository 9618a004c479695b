"""Tools as Ollama's chat API has them, and as its Python client writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from caudal.chat.conversation import Tool
from caudal.reading.fields import RequestObject
from caudal.reading.openai.tools import FunctionFields, check_tool_name, same_name, too_many_tools

MAX_TOOLS = 1024
"""Far more than a model can choose from."""

_LONGEST_NAME = 128


class OllamaTool(RequestObject):
    """A function that the model may call."""

    hints: ClassVar[frozenset[str]] = frozenset(("items",))

    type: Literal["function"] | None = None
    function: FunctionFields


def read_tools(tools: Sequence[OllamaTool]) -> list[Tool]:
    """The tools in the shape that all APIs share.

    Raises:
        ParameterError: A name or schema can't be one; names the field.
    """
    if len(tools) > MAX_TOOLS:
        raise too_many_tools(MAX_TOOLS, len(tools))
    read: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}].function"
        function = tool.function
        check_tool_name(f"{where}.name", function.name, longest=_LONGEST_NAME)
        if function.name in names:
            raise same_name(f"{where}.name", function.name)
        names.add(function.name)
        parameters = _without_nulls(function.parameters)
        read.append(function.model_copy(update={"parameters": parameters}).tool(where))
    return read


def tool_field(index: int, part: str) -> str:
    """Where a tool's `parameters` are."""
    return f"tools[{index}].function.{part}"


def _without_nulls(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """A schema as it is meant: Ollama's clients in Go write null for no properties, and the one in
    Python `integer, string` for one of several types.
    """
    if schema is None:
        return None
    kept = {key: value for key, value in schema.items() if value is not None}
    properties = kept.get("properties")
    if isinstance(properties, dict):
        kept["properties"] = {name: _with_types(each) for name, each in properties.items()}
    return kept


def _with_types(schema: Any) -> Any:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kinds, str) and ", " in kinds:
        return {**schema, "type": sorted(kinds.split(", "))}
    return schema
