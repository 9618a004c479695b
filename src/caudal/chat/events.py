"""What an answer consists of, piece by piece, and as a whole.

Events of one sequence come in the order in which the model wrote them. Joined, the texts of a kind
are the same however the model's text was cut into tokens and deltas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from caudal.chat.conversation import ToolCall


class ContentDelta(msgspec.Struct, tag="content", frozen=True, array_like=True, gc=False):
    """Text for the reader; never empty."""

    text: str


class ReasoningDelta(msgspec.Struct, tag="reasoning", frozen=True, array_like=True, gc=False):
    """Text the model wrote while it thought; never empty."""

    text: str


class ToolCallBegin(msgspec.Struct, tag="call", frozen=True, array_like=True, gc=False):
    """A call begins; its arguments follow, then its end. Calls don't overlap.

    Attributes:
        index: The call's place among the answer's calls, from 0.
        id: `call_…`, unique.
        name: The tool.
    """

    index: int
    id: str
    name: str


class ToolCallArgumentsDelta(
    msgspec.Struct, tag="arguments", frozen=True, array_like=True, gc=False
):
    """More of the arguments' JSON text, or of a custom tool's text; never empty."""

    index: int
    text: str


class ToolCallEnd(msgspec.Struct, tag="call_end", frozen=True, array_like=True, gc=False):
    """The call's arguments are complete: they are a JSON object, or a custom tool's text."""

    index: int


ChatEvent = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArgumentsDelta | ToolCallEnd


@dataclass(slots=True)
class Answer:
    """A whole answer, joined from events.

    Attributes:
        content: Text for the reader; may be empty.
        reasoning: Text the model wrote while it thought; may be empty.
        tool_calls: The calls, in order.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[ChatEvent]) -> None:
        """Append what the events say."""
        for event in events:
            match event:
                case ContentDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallBegin(_, identity, name):
                    self.tool_calls.append(ToolCall(id=identity, name=name, arguments=""))
                case ToolCallArgumentsDelta(index, text):
                    call = self.tool_calls[index]
                    self.tool_calls[index] = ToolCall(
                        id=call.id, name=call.name, arguments=call.arguments + text
                    )
