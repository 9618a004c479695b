"""Items that a response's input consists of.

What a response put out goes in again as it is. Items of tools that this server doesn't have come
from other servers' answers: a session that was begun elsewhere goes on here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, Tag, TypeAdapter, model_validator

from caudal.reading.blocks import (
    BY_TYPE,
    OTHER,
    OtherObject,
    known_or_other,
    known_types,
    typed,
)
from caudal.reading.fields import RequestObject
from caudal.reading.openai.messages import RefusalPart
from caudal.server.openai.responses_tools import ToolObject

Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(RequestObject):
    """Text for the model."""

    hints = frozenset({"prompt_cache_breakpoint"})

    type: Literal["input_text"]
    text: str


class OutputTextPart(RequestObject):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = Field(
        default_factory=list, description="As they came; the model can't see them."
    )
    logprobs: list[Any] | None = Field(None, description="As they came; the model can't see them.")


MessagePart = Annotated[
    Annotated[InputTextPart, Tag("[input_text]")]
    | Annotated[OutputTextPart, Tag("[output_text]")]
    | Annotated[RefusalPart, Tag("[refusal]")],
    BY_TYPE,
    known_types("a content part", ("input_text", "output_text", "refusal")),
]


class MessageItem(RequestObject):
    """A message. `developer` is OpenAI's newer name for `system`."""

    hints = frozenset({"phase"})

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[MessagePart]
    id: str | None = None
    status: Status | None = None

    @model_validator(mode="after")
    def _check(self) -> MessageItem:
        if isinstance(self.content, list) and self.role != "assistant":
            for part in self.content:
                if not isinstance(part, InputTextPart):
                    raise ValueError(f"a message of role {self.role} can't have {part.type} parts")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts of its parts."""
        if isinstance(self.content, str):
            return [self.content]
        return [
            part.refusal if isinstance(part, RefusalPart) else part.text for part in self.content
        ]


class _Item(RequestObject):
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "async": (False,),
        "caller": ({"type": "direct"},),
        "environment": ({"type": "local"},),
    }

    id: str | None = None
    status: str | None = None
    created_by: str | None = None


class FunctionCallItem(_Item):
    """A call that the model made; `arguments` is a JSON object as text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCallItem(_Item):
    """A call of a custom tool, which takes text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class ActionCallItem(_Item):
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

_MEDIA = {"input_image": "An image", "input_file": "A file", "input_audio": "Audio"}


class MediaPart(BaseModel):
    """Something that isn't text in a tool's output: the model is told that it was there."""

    type: str
    given: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _keep(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"type": data["type"], "given": data}

    @property
    def text(self) -> str:
        """What the model reads in its place."""
        what = _MEDIA.get(self.type, "Something")
        return f"[{what} was left out here: only text can be read.]"


_OUTPUT_TYPES = ("input_text", "output_text")

OutputPart = Annotated[
    Annotated[InputTextPart, Tag("[input_text]")]
    | Annotated[OutputTextPart, Tag("[output_text]")]
    | Annotated[MediaPart, Tag(OTHER)],
    known_or_other(_OUTPUT_TYPES),
    typed("a part of a tool's output", _OUTPUT_TYPES, tuple(_MEDIA)),
]


class CallOutputItem(_Item):
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


class ShellCallOutputItem(_Item):
    """What the commands of a shell call gave: for each what it wrote, and how it ended."""

    type: Literal["shell_call_output"]
    call_id: str
    output: list[dict[str, Any]]
    max_output_length: int | None = None

    @property
    def texts(self) -> list[str]:
        """The outputs as JSON."""
        return [json.dumps(part, ensure_ascii=False) for part in self.output]


class McpCallItem(_Item):
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


class CodeInterpreterCallItem(_Item):
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


class FileSearchCallItem(_Item):
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


class SummaryPart(RequestObject):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningPart(RequestObject):
    """Reasoning itself."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(RequestObject):
    """What the model thought."""

    type: Literal["reasoning"]
    summary: list[SummaryPart] | None = Field(default_factory=list)
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = Field(
        None, description="From a response of this server: read in place of `content`."
    )
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """The reasoning; its summary, where that is all there is."""
        return "\n\n".join(part.text for part in self.content or self.summary or ())


class ToolsItem(_Item):
    """Tools that come up in the course of a conversation."""

    type: Literal["additional_tools", "tool_search_output"]
    tools: list[ToolObject]
    role: str | None = None
    call_id: str | None = None
    execution: str | None = None


class ItemReference(RequestObject):
    """An item of a stored response or conversation, by its id."""

    type: Literal["item_reference"]
    id: str


class CompactionTrigger(RequestObject):
    """Asks for the conversation to be shortened, which this server doesn't do."""

    type: Literal["compaction_trigger"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError(
            "an item of type 'compaction_trigger' is not supported: this server doesn't compact "
            "conversations"
        )


KNOWN_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "mcp_call",
    "code_interpreter_call",
    "file_search_call",
    "additional_tools",
    "tool_search_output",
    "compaction_trigger",
)
LEFT_OUT_TYPES = (
    "compaction",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "program",
    "program_output",
    "tool_search_call",
    "web_search_call",
)
"""Documented types of items in which there is nothing that a model here could read."""


def _default_type(item: Any) -> Any:
    if isinstance(item, dict) and item.get("type") is None:
        if "role" in item:
            return {**item, "type": "message"}
        if item.keys() <= {"id", "type"}:
            return {**item, "type": "item_reference"}
    return item


InputItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[CustomToolCallItem, Tag("[custom_tool_call]")]
    | Annotated[ActionCallItem, Tag("[local_shell_call]")]
    | Annotated[ActionCallItem, Tag("[shell_call]")]
    | Annotated[ActionCallItem, Tag("[apply_patch_call]")]
    | Annotated[CallOutputItem, Tag("[function_call_output]")]
    | Annotated[CallOutputItem, Tag("[custom_tool_call_output]")]
    | Annotated[CallOutputItem, Tag("[local_shell_call_output]")]
    | Annotated[CallOutputItem, Tag("[apply_patch_call_output]")]
    | Annotated[ShellCallOutputItem, Tag("[shell_call_output]")]
    | Annotated[McpCallItem, Tag("[mcp_call]")]
    | Annotated[CodeInterpreterCallItem, Tag("[code_interpreter_call]")]
    | Annotated[FileSearchCallItem, Tag("[file_search_call]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[ToolsItem, Tag("[additional_tools]")]
    | Annotated[ToolsItem, Tag("[tool_search_output]")]
    | Annotated[ItemReference, Tag("[item_reference]")]
    | Annotated[CompactionTrigger, Tag("[compaction_trigger]")]
    | Annotated[OtherObject, Tag(OTHER)],
    known_or_other(KNOWN_TYPES),
    typed("an item", KNOWN_TYPES, LEFT_OUT_TYPES),
    BeforeValidator(_default_type),
]

AnyItem = (
    MessageItem
    | FunctionCallItem
    | CustomToolCallItem
    | ActionCallItem
    | CallOutputItem
    | ShellCallOutputItem
    | McpCallItem
    | CodeInterpreterCallItem
    | FileSearchCallItem
    | ReasoningItem
    | ToolsItem
    | ItemReference
    | CompactionTrigger
    | OtherObject
)

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])

_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def new_item_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{_ID_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"


def read_stored(items: Sequence[Mapping[str, Any]]) -> list[AnyItem]:
    """Items of an earlier response, input or output, as input of the next."""
    return _ITEMS.validate_python(items)


def stored_form(item: AnyItem) -> dict[str, Any]:
    """An item as the API gives it back: with an id and a status, and content as parts."""
    if isinstance(item, OtherObject):
        return {"id": new_item_id(item.type), **item.root}
    data = item.model_dump(exclude_none=True)
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        part: dict[str, Any] = {"type": "input_text", "text": item.content}
        if item.role == "assistant":
            part = {"type": "output_text", "text": item.content, "annotations": []}
        data["content"] = [part]
    if isinstance(item, CallOutputItem) and isinstance(item.output, list):
        data["output"] = [
            part.given if isinstance(part, MediaPart) else part.model_dump(exclude_none=True)
            for part in item.output
        ]
    return {"id": new_item_id(item.type), "status": "completed", **data}
