"""Items that a response's input consists of, and how they become messages.

What a response put out goes in again as it is: messages, reasoning and calls are items of their
own, which belong to one message of the assistant's as long as nobody else has spoken.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag, TypeAdapter, model_validator

from caudal.chat.conversation import Message, ToolCall
from caudal.errors import ParameterError
from caudal.server.blocks import BY_TYPE, known_types
from caudal.server.fields import RequestModel
from caudal.server.openai.messages import RefusalPart

Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(RequestModel):
    """Text for the model."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"prompt_cache_breakpoint": ()}

    type: Literal["input_text"]
    text: str


class OutputTextPart(RequestModel):
    """Text that the model wrote."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"annotations": ([],)}

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = Field(None, description="As they came; the model can't see them.")


MessagePart = Annotated[
    Annotated[InputTextPart, Tag("[input_text]")]
    | Annotated[OutputTextPart, Tag("[output_text]")]
    | Annotated[RefusalPart, Tag("[refusal]")],
    BY_TYPE,
    known_types("a content part", ("input_text", "output_text", "refusal")),
]


class MessageItem(RequestModel):
    """A message. `developer` is OpenAI's newer name for `system`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"phase": ()}

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


class FunctionCallItem(RequestModel):
    """A call that the model made; `arguments` is a JSON object as text."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "async": (False,),
        "caller": ({"type": "direct"},),
        "namespace": (),
    }

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


ResultPart = Annotated[InputTextPart, known_types("a part of a function's output", ("input_text",))]


class FunctionCallOutputItem(RequestModel):
    """What a call gave."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "caller": ({"type": "direct"},),
        "namespace": (),
    }

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ResultPart]
    name: str | None = None
    id: str | None = None
    status: Status | None = None


class SummaryPart(RequestModel):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningPart(RequestModel):
    """Reasoning itself."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(RequestModel):
    """What the model thought."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"encrypted_content": ()}

    type: Literal["reasoning"]
    summary: list[SummaryPart] = Field(default_factory=list)
    content: list[ReasoningPart] | None = None
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """The reasoning; its summary, where that is all there is."""
        return "\n\n".join(part.text for part in self.content or self.summary)


def _default_to_message(item: Any) -> Any:
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return {"type": "message", **item}
    return item


InputItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    BY_TYPE,
    known_types("an item", ("message", "function_call", "function_call_output", "reasoning")),
    BeforeValidator(_default_to_message),
]

AnyItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])

_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def new_item_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{_ID_PREFIXES[kind]}_{uuid.uuid4().hex}"


def read_stored(items: Sequence[Mapping[str, Any]]) -> list[AnyItem]:
    """Items of an earlier response, input or output, as input of the next."""
    return _ITEMS.validate_python(items)


def stored_form(item: AnyItem) -> dict[str, Any]:
    """An item as the API gives it back: with an id and a status, and content as parts."""
    data = item.model_dump(exclude_none=True)
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        part: dict[str, Any] = {"type": "input_text", "text": item.content}
        if item.role == "assistant":
            part = {"type": "output_text", "text": item.content, "annotations": []}
        data["content"] = [part]
    return {"id": new_item_id(item.type), "status": "completed", **data}


def read_items(items: Sequence[AnyItem]) -> list[Message]:
    """The conversation's messages.

    Raises:
        ParameterError: A call has no output, or an output no call; names its id.
    """
    reader = _Reader()
    for item in items:
        reader.add(item)
    return reader.finish()


class _Reader:
    """Joins the assistant's items to messages, and matches outputs with calls."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._texts: list[str] | None = None
        self._calls: list[ToolCall] = []
        self._open_calls: dict[str, str] = {}  # names by id

    def add(self, item: AnyItem) -> None:
        match item:
            case ReasoningItem():
                if self._texts is not None or self._calls:
                    self._end_turn()
                self._reasoning.append(item.text)
            case MessageItem(role="assistant"):
                if self._texts is not None or self._calls:
                    self._end_turn()
                self._texts = item.texts
            case MessageItem():
                self._end_turn()
                texts = item.texts
                content = texts[0] if len(texts) == 1 else texts
                self._messages.append(Message(role=item.role, content=content))
            case FunctionCallItem():
                call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
                self._calls.append(call)
                self._open_calls[item.call_id] = item.name
            case FunctionCallOutputItem():
                self._end_turn()
                self._messages.append(self._output(item))

    def finish(self) -> list[Message]:
        self._end_turn()
        for identity in self._open_calls:
            raise ParameterError(
                "input", f"input has no function_call_output for the call {identity!r:.80}."
            )
        return self._messages

    def _output(self, item: FunctionCallOutputItem) -> Message:
        name = self._open_calls.pop(item.call_id, None)
        if name is None:
            raise ParameterError(
                "input",
                f"input has a function_call_output for the call {item.call_id!r:.80}, but before "
                "it no such function_call that waits for one.",
            )
        output = item.output
        content = output if isinstance(output, str) else [part.text for part in output]
        return Message(role="tool", content=content, name=name, tool_call_id=item.call_id)

    def _end_turn(self) -> None:
        if not (self._reasoning or self._texts is not None or self._calls):
            return
        content = None if self._texts is None and self._calls else "".join(self._texts or ())
        self._messages.append(
            Message(
                role="assistant",
                content=content,
                reasoning="\n\n".join(self._reasoning) or None,
                tool_calls=self._calls,
            )
        )
        self._reasoning, self._texts, self._calls = [], None, []
