"""Items that a response's input consists of.

What a response put out goes in again as it is. Items of tools that this server doesn't have come
from other servers' answers: a session that was begun elsewhere goes on here.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, TypeAdapter, model_validator

from caudal.reading.blocks import (
    OTHER,
    OtherObject,
    known_or_other,
    typed,
)
from caudal.reading.fields import RequestObject
from caudal.reading.openai.messages import RefusalPart
from caudal.server.openai.responses_calls import (
    ActionCallItem,
    CallOutputItem,
    CodeInterpreterCallItem,
    CustomToolCallItem,
    FileSearchCallItem,
    FunctionCallItem,
    ItemFields,
    McpCallItem,
    ShellCallOutputItem,
)
from caudal.server.openai.responses_parts import InputTextPart, MediaPart, MessagePart
from caudal.server.openai.responses_tools import ToolObject

Status = Literal["in_progress", "completed", "incomplete"]


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


class ToolsItem(ItemFields):
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
    return f"{_ID_PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}"


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
