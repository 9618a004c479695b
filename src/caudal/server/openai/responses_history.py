"""How a response's input becomes messages.

Messages, reasoning and calls are items of their own, which belong to one message of the assistant's
as long as nobody else has spoken.
"""

from __future__ import annotations

from collections.abc import Sequence

from caudal.chat.conversation import Message, ToolCall
from caudal.chat.text_input import arguments_of
from caudal.errors import ParameterError
from caudal.reading.blocks import OtherObject
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_calls import (
    ActionCallItem,
    CallItem,
    CallOutputItem,
    CodeInterpreterCallItem,
    CustomToolCallItem,
    FileSearchCallItem,
    FunctionCallItem,
    McpCallItem,
    ShellCallOutputItem,
    WholeCallItem,
)
from caudal.server.openai.responses_items import (
    AnyItem,
    MessageItem,
    ReasoningItem,
    ToolsItem,
)
from caudal.server.openai.responses_tools import AnyTool, qualified

_CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
}


class HistoryReader:
    """Joins the assistant's items to messages, and matches outputs with calls.

    Args:
        seal: Opens reasoning.

    Attributes:
        ignored: What couldn't be read, as it is said to the client.
        tools: Those that came up in the conversation.
    """

    def __init__(self, seal: ReasoningSeal) -> None:
        self._seal = seal
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._texts: list[str] | None = None
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []  # of calls that came with their outputs
        self._open_calls: dict[str, tuple[str, str]] = {}  # names and kinds by id
        self.ignored: list[str] = []
        self.tools: list[AnyTool] = []

    def read(self, items: Sequence[AnyItem]) -> list[Message]:
        """The conversation's messages.

        Raises:
            ParameterError: A call has no output, or an output no call; names its id.
        """
        for item in items:
            self._add(item)
        self._end_turn()
        for identity, (_, kind) in self._open_calls.items():
            raise ParameterError("input", f"No tool output found for {kind} {identity:.80}.")
        return self._messages

    def _add(self, item: AnyItem) -> None:
        match item:
            case ReasoningItem():
                if self._texts is not None or self._calls:
                    self._end_turn()
                self._reasoning.append(self._text_of(item))
            case MessageItem(role="assistant"):
                if self._texts is not None or self._calls:
                    self._end_turn()
                self._texts = item.texts
            case MessageItem():
                self._end_turn()
                texts = item.texts
                content = texts[0] if len(texts) == 1 else texts
                self._messages.append(Message(role=item.role, content=content))
            case FunctionCallItem() | CustomToolCallItem() | ActionCallItem():
                call = _call_of(item)
                self._calls.append(call)
                self._open_calls[item.call_id] = call.name, _CALLS[item.type]
            case CallOutputItem():
                self.ignored += (f"input[{item.type}].{kind}" for kind in item.media)
                self._add_output(item)
            case ShellCallOutputItem():
                self._add_output(item)
            case McpCallItem() | CodeInterpreterCallItem() | FileSearchCallItem():
                self._add_whole_call(item)
            case ToolsItem():
                self.tools += item.tools
            case OtherObject():
                self.ignored.append(f"input[{item.type}]")

    def _text_of(self, item: ReasoningItem) -> str:
        if item.encrypted_content is not None:
            text = self._seal.open(item.encrypted_content)
            if text is not None:
                return text
            self.ignored.append("input[reasoning].encrypted_content")
        return item.text

    def _add_whole_call(self, item: WholeCallItem) -> None:
        name, arguments, output = item.call
        self._calls.append(ToolCall(id=item.id, name=name, arguments=arguments))
        result = Message(role="tool", content=output, name=name, tool_call_id=item.id)
        self._results.append(result)

    def _add_output(self, item: CallOutputItem | ShellCallOutputItem) -> None:
        self._end_turn()
        name, _ = self._open_calls.pop(item.call_id, (None, ""))
        if name is None:
            raise ParameterError(
                "input",
                f"No tool call found for {item.type.replace('_', ' ')} with call_id "
                f"{item.call_id:.80}.",
            )
        texts = item.texts
        content = texts[0] if len(texts) == 1 else texts
        self._messages.append(
            Message(role="tool", content=content, name=name, tool_call_id=item.call_id)
        )

    def _end_turn(self) -> None:
        reasoning = "\n\n".join(filter(None, self._reasoning)) or None
        if reasoning or self._texts is not None or self._calls:
            content = None if self._texts is None and self._calls else "".join(self._texts or ())
            self._messages.append(
                Message(
                    role="assistant", content=content, reasoning=reasoning, tool_calls=self._calls
                )
            )
        self._messages += self._results
        self._reasoning, self._texts, self._calls, self._results = [], None, [], []


def _call_of(item: CallItem) -> ToolCall:
    if isinstance(item, ActionCallItem):
        return ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
    name = qualified(item.namespace, item.name)
    if isinstance(item, FunctionCallItem):
        return ToolCall(id=item.call_id, name=name, arguments=item.arguments)
    return ToolCall(id=item.call_id, name=name, arguments=arguments_of(item.input))
