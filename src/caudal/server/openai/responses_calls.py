"""Items of a response's input that are calls of tools, or what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from caudal.reading.fields import RequestObject
from caudal.server.openai.responses_parts import (
    MediaPart,
    OutputPart,
)


class ItemFields(RequestObject):
    """What items of calls have besides, as other servers send it."""

    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "async": (False,),
        "caller": ({"type": "direct"},),
        "environment": ({"type": "local"},),
    }

    id: str | None = None
    status: str | None = None
    created_by: str | None = None


class FunctionCallItem(ItemFields):
    """A call that the model made; `arguments` is a JSON object as text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCallItem(ItemFields):
    """A call of a custom tool, which takes text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class ActionCallItem(ItemFields):
    """A call of a tool that clients of OpenAI's run themselves; its arguments are an object."""

    type: Literal["local_shell_call", "shell_call", "apply_patch_call"]
    call_id: str
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.type.removesuffix("_call")

    @property
    def arguments(self) -> str:
        """The object as JSON."""
        return json.dumps(self.action or self.operation or {}, ensure_ascii=False)


CallItem = FunctionCallItem | CustomToolCallItem | ActionCallItem


class CallOutputItem(ItemFields):
    """What a call gave."""

    type: Literal[
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "apply_patch_call_output",
    ]
    call_id: str
    output: str | list[OutputPart] | None = None
    name: str | None = None
    namespace: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_call(cls, data: Any) -> Any:
        # A local shell's output has the call's id as its own.
        if isinstance(data, dict) and data.get("type") == "local_shell_call_output":
            return {"call_id": data.get("id"), **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> CallOutputItem:
        if self.output is None and self.type != "apply_patch_call_output":
            raise ValueError("output is required")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts of its parts."""
        if self.output is None:
            return [self.status or ""]
        return (
            [self.output] if isinstance(self.output, str) else [part.text for part in self.output]
        )

    @property
    def media(self) -> Iterator[str]:
        """The types of its parts that can't be read."""
        if isinstance(self.output, list):
            yield from (part.type for part in self.output if isinstance(part, MediaPart))


class ShellCallOutputItem(ItemFields):
    """What the commands of a shell call gave: for each what it wrote, and how it ended."""

    type: Literal["shell_call_output"]
    call_id: str
    output: list[dict[str, Any]]
    max_output_length: int | None = None

    @property
    def texts(self) -> list[str]:
        """The outputs as JSON."""
        return [json.dumps(part, ensure_ascii=False) for part in self.output]


class McpCallItem(ItemFields):
    """A call of a tool on an MCP server, with what it gave."""

    type: Literal["mcp_call"]
    id: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None
    server_label: str | None = None

    @property
    def call(self) -> tuple[str, str, str]:
        """Name, arguments and output."""
        output = self.output
        if output is None:
            output = json.dumps(self.error, ensure_ascii=False) if self.error else ""
        return self.name, self.arguments, output


class CodeInterpreterCallItem(ItemFields):
    """A program that another server ran, with what it wrote."""

    type: Literal["code_interpreter_call"]
    id: str
    code: str | None = None
    outputs: list[dict[str, Any]] | None = None
    container_id: str | None = None

    @property
    def call(self) -> tuple[str, str, str]:
        """Name, arguments and output."""
        arguments = json.dumps({"code": self.code or ""}, ensure_ascii=False)
        logs = [str(output.get("logs", "")) for output in self.outputs or ()]
        return "code_interpreter", arguments, "\n".join(filter(None, logs))


class FileSearchCallItem(ItemFields):
    """A search through files, with what it found where the client asked for that."""

    type: Literal["file_search_call"]
    id: str
    queries: list[str]
    results: list[dict[str, Any]] | None = None

    @property
    def call(self) -> tuple[str, str, str]:
        """Name, arguments and output."""
        arguments = json.dumps({"queries": self.queries}, ensure_ascii=False)
        texts = [str(result.get("text", "")) for result in self.results or ()]
        return "file_search", arguments, "\n\n".join(filter(None, texts))


WholeCallItem = McpCallItem | CodeInterpreterCallItem | FileSearchCallItem
