"""Messages as Ollama's chat API has them: results of tools name the tool, and no call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from caudal.chat.conversation import Message, ToolCall
from caudal.reading.fields import RequestObject
from caudal.server.encoding import json_text

NO_IMAGES: Mapping[str, Sequence[Any]] = {"images": ([],)}
"""Models here read text."""


class CalledFunction(RequestObject):
    """What a call calls, and with what."""

    hints: ClassVar[frozenset[str]] = frozenset(("description", "index"))

    name: str
    arguments: dict[str, Any] | None = None


class OllamaToolCall(RequestObject):
    """A call that the assistant made."""

    hints: ClassVar[frozenset[str]] = frozenset(("type",))  # as OpenAI's have it

    id: str | None = Field(None, description="Not needed.")
    function: CalledFunction


class OllamaMessage(RequestObject):
    """One message of a conversation."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = NO_IMAGES

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        BeforeValidator(lambda role: role.lower() if isinstance(role, str) else role),
    ]
    content: str | None = None
    thinking: str | None = Field(None, description="What an assistant thought.")
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = Field(None, description="The tool whose result this is.")
    tool_call_id: str | None = Field(None, description="The call whose result it is.")


def read_messages(messages: Sequence[OllamaMessage]) -> list[Message]:
    """The messages in the shape that all APIs share, in which a result names its call.

    A result that names none is of the first call of its tool that has none yet, or else of the
    first call at all.
    """
    read: list[Message] = []
    open_calls: list[ToolCall] = []
    for place, message in enumerate(messages):
        calls = [
            ToolCall(
                id=call.id or f"call_{place}_{number}",
                name=call.function.name,
                arguments=json_text(call.function.arguments or {}),
            )
            for number, call in enumerate(message.tool_calls or ())
        ]
        if message.role == "tool":
            answered = _answered(message, open_calls)
            if answered is not None:
                open_calls.remove(answered)
            read.append(
                Message(
                    role="tool",
                    content=message.content or "",
                    name=message.tool_name or None,
                    tool_call_id=message.tool_call_id or (answered.id if answered else None),
                )
            )
            continue
        open_calls = list(calls)
        read.append(
            Message(
                role=message.role,
                content=(message.content or None) if calls else message.content or "",
                reasoning=message.thinking or None,
                tool_calls=calls,
            )
        )
    return read


def _answered(result: OllamaMessage, calls: Sequence[ToolCall]) -> ToolCall | None:
    """The call that a result is of."""
    if result.tool_call_id:
        return next((call for call in calls if call.id == result.tool_call_id), None)
    named = (call for call in calls if call.name == result.tool_name)
    return next(named, calls[0] if calls else None)
